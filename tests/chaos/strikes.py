"""Interrupts at a chosen point: every point at which the interpreter may handle a signal.

CPython checks for signals when a function is entered and when a call of a built-in returns. A profile function is
called at both and may raise there, so tests cover every such point and not only those that real signals hit.
"""

from __future__ import annotations

import dis
import gc
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import holdfast.storage

_STORES = str(Path(holdfast.storage.__file__).parent)
_DRIVER = str(Path(psycopg.__file__).parent)
# Modules that hold no resources themselves.
_HOLDS_NOTHING = tuple(
    str(Path(_STORES) / name) for name in ("contract.py", "select_ready.py", "sql_", "randomness.py")
)
# Modules of the standard library that hold resources.
_LIBRARY = {str(Path(sysconfig.get_path("stdlib")) / name) for name in ("contextlib.py", "threading.py")}


@pytest.fixture(autouse=True)
def discard_interrupted_coroutines() -> Iterator[None]:
    """Collect the coroutines that an interrupt kept from being started, which would fail a later test by a warning.

    A module whose tests interrupt calls imports this fixture.
    """
    # Otherwise the collection would also visit what thousands of earlier tests have left.
    gc.freeze()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        gc.collect()


class Strike:
    """Raises KeyboardInterrupt in this thread at the *first*-th point, and again *again* points after that.

    Only points in storage modules that hold resources count, and in the context managers and locks they use; with
    *driver* also those in the driver of PostgreSQL.
    """

    def __init__(self, first: int, again: int | None = None, *, driver: bool = False) -> None:
        self.struck = 0
        self.passed = 0
        """The number of points that were reached."""
        self.places: list[str] = []
        self._left = first
        self._again = again
        self._folders = (_STORES, _DRIVER) if driver else (_STORES,)

    def during(self, work: Callable[[], Any]) -> Any:
        """Call *work*, which is interrupted unless it returns earlier."""
        sys.setprofile(self._profile)
        try:
            return work()
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if (event == "c_return" or (event == "call" and _entered(frame))) and self._counts(frame):
            self._come(frame)

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Continue counting after the first interrupt, which ends profiling, in the next calls.

        Not in the driver: an error that a trace function raises in its constructors has crashed CPython 3.11.
        """
        if not self._counts(frame) or frame.f_code.co_filename.startswith(_DRIVER):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if _entered(frame):
            self._come(frame)
        return _CallReturns(self._come).trace

    def _counts(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "adapters" and name.startswith(_DRIVER):
            return False  # psycopg's compiled Transformer reads this property and crashes if it raises
        return name in _LIBRARY or (name.startswith(self._folders) and not name.startswith(_HOLDS_NOTHING))

    def _come(self, frame: FrameType) -> None:
        self.passed += 1
        self._left -= 1
        if self._left >= 0:
            return
        self.struck += 1
        self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        if self.struck == 1 and self._again is not None:
            self._left = self._again
            sys.settrace(self._trace)
        else:
            sys.settrace(None)
        raise KeyboardInterrupt


class _CallReturns:
    """Reports each point in one frame right after a call; no signal is handled at any other point."""

    def __init__(self, come: Callable[[FrameType], None]) -> None:
        self._come = come
        self._called = False

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            called, self._called = self._called, _is_call(frame)
            if called:
                self._come(frame)
        return self.trace


def _is_call(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")


def _entered(frame: FrameType) -> bool:
    """Return whether a frame starts or resumes; no signal is handled while an error is thrown into it."""
    return frame.f_lasti < 0 or dis.opname[frame.f_code.co_code[frame.f_lasti]] != "YIELD_VALUE"
