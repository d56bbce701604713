"""What a worker's process and the processes it starts print while a live screen is drawn: read through a pipe.

A terminal shows one stream of characters. Whatever is printed past the live screen, by a handler, a subprocess or an
isolated process, would land in the middle of it. So the standard streams become a pipe while the screen is drawn, and
each line that is read from it is shown above the screen.
"""

from __future__ import annotations

import codecs
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

_BYTES_AT_ONCE: Final = 65_536
# A line that is longer is shown in pieces.
_LINE_CHARS_MAX: Final = 65_536
# A process that a handler left behind may keep the pipe open; the worker does not wait for it.
_ENDING_SECONDS: Final = 1.0


@contextmanager
def terminal_of(stream: TextIO) -> Iterator[TextIO]:
    """Open the terminal behind *stream* once more; it stays what it is when *stream* is redirected."""
    again = os.dup(stream.fileno())
    with os.fdopen(again, "w", encoding=stream.encoding, errors=stream.errors, buffering=1) as terminal:
        yield terminal


@contextmanager
def without_echo(stream: TextIO) -> Iterator[None]:
    """Keep the terminal from showing what is typed: `^C` or an empty line would move the screen under the cursor.

    A shell restores the setting itself if the worker is killed.
    """
    descriptor = stream.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        # Not a terminal that can be asked.
        yield
        return
    changed = [*before]
    changed[3] &= ~termios.ECHO
    _set_attributes(descriptor, changed)
    try:
        yield
    finally:
        _set_attributes(descriptor, before)


def _set_attributes(descriptor: int, attributes: list[Any]) -> None:
    """Set the terminal's attributes; from a process in the background that would stop it, and is not worth it."""
    if os.tcgetpgrp(descriptor) == os.getpgrp():
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


@contextmanager
def redirected(descriptors: Sequence[int], show: Callable[[list[str]], None]) -> Iterator[None]:
    """Pass the lines written to *descriptors*, by this process or by one that it starts, to *show*.

    *show* is called in a thread. The descriptors are what they were after the block.
    """
    _flush()
    reading, writing = os.pipe()
    before = [(descriptor, os.dup(descriptor)) for descriptor in descriptors]
    for descriptor in descriptors:
        os.dup2(writing, descriptor)
    os.close(writing)
    reader = threading.Thread(target=_read, args=(reading, show), name="holdfast-output", daemon=True)
    reader.start()
    try:
        yield
    finally:
        _flush()
        for descriptor, saved in before:
            os.dup2(saved, descriptor)
            os.close(saved)
        reader.join(_ENDING_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _read(reading: int, show: Callable[[list[str]], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while part := pipe.read(_BYTES_AT_ONCE):
            *lines, rest = (rest + decoder.decode(part)).split("\n")
            if len(rest) > _LINE_CHARS_MAX:
                lines, rest = [*lines, rest], ""
            if lines:
                show(lines)
    if rest:
        show([rest])
