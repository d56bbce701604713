"""Redirect the output of a worker process and its children while a live screen is drawn.

Output of a handler, a subprocess or an isolated process would overwrite parts of the screen. The standard streams are
therefore redirected to a pipe, and each line read from the pipe is printed above the screen.
"""

import codecs
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

_READ_BYTES: Final = 65_536
# Longer lines are split.
_LINE_CHARS_MAX: Final = 65_536
# How long to wait for the end of the pipe; a process left behind by a handler may keep it open.
_CLOSE_SECONDS: Final = 1.0


@contextmanager
def terminal_of(stream: TextIO) -> Iterator[TextIO]:
    """Open a duplicate of *stream*'s terminal, which redirecting *stream* does not affect."""
    duplicate = os.dup(stream.fileno())
    with os.fdopen(duplicate, "w", encoding=stream.encoding, errors=stream.errors, buffering=1) as terminal:
        yield terminal


@contextmanager
def without_echo(stream: TextIO) -> Iterator[None]:
    """Turn the terminal's echo off: `^C` or a line break would move the cursor while the screen is drawn.

    If the worker is killed, the shell restores the setting.
    """
    descriptor = stream.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        # Not a terminal.
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
    """Set the terminal's attributes, except from a background process, which the system would stop."""
    if os.tcgetpgrp(descriptor) == os.getpgrp():
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


@contextmanager
def redirected(descriptors: Sequence[int], show: Callable[[list[str]], None]) -> Iterator[None]:
    """Pass lines that this process or a child writes to *descriptors* to *show*, which runs in another thread.

    The descriptors are restored at the end of the block.
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
        reader.join(_CLOSE_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _read(reading: int, show: Callable[[list[str]], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while part := pipe.read(_READ_BYTES):
            *lines, rest = (rest + decoder.decode(part)).split("\n")
            if len(rest) > _LINE_CHARS_MAX:
                lines, rest = [*lines, rest], ""
            if lines:
                # If the terminal was closed, reading continues: a broken pipe would fail handlers that print.
                with suppress(OSError):
                    show(lines)
    if rest:
        with suppress(OSError):
            show([rest])
