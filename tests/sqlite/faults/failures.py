"""The process whose calls fail, one after the other, and which repeats failed operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from tests.sqlite.faults.child import forked
from tests.sqlite.faults.history import numbers
from tests.sqlite.faults.interception import Action, Call, Interception
from tests.sqlite.faults.operations import OPERATIONS, copy_of, without_bulk

_NEVER = 1_000_000


def failing_at_each_call(
    interception: Interception,
    *,
    prepared: str,
    operation: str,
    calls: int,
    error: int,
    times: int,
    cold: bool,
    step: int,
    suffix: str = "",
) -> list[dict[str, Any]]:
    """Let each *step*-th of *calls* fail in a separate process until one makes fewer calls; return their reports."""
    cases: list[dict[str, Any]] = []
    while True:
        folder = copy_of(prepared, len(cases))
        at = 1 + step * len(cases)
        interception.watch(folder)

        def arm(at: int = at) -> None:
            interception.arm(Call(calls), Action.FAIL, at, error=error, times=times, suffix=suffix)

        def count_openings() -> None:
            interception.arm(Call.OPEN, Action.FAIL, _NEVER, suffix=".db")

        status, said = forked(
            _case(f"{folder}/jobs.db", operation, [arm, count_openings], interception.disarm, cold=cold)
        )
        if status != 0:
            return [*cases, {"folder": folder, "at": at, "status": status, "said": said}]
        [answer] = said
        if answer["calls"] < at:
            return cases
        cases.append({"folder": folder, "at": at, "status": status, **answer})


def _case(
    path: str, operation: str, orders: list[Callable[[], None]], disarm: Callable[[], int], *, cold: bool
) -> Callable[[Callable[[Any], None]], None]:
    arm, count_openings = orders

    def case(say: Callable[[Any], None]) -> None:
        queue = holdfast.connect(path)
        if not cold:
            OPERATIONS[operation].approach(queue, path)
        arm()
        error = _outcome(queue, operation)
        calls = disarm()
        kept = _seen_by_another(path) if error is None else None
        count_openings()
        again = _outcome(queue, operation)
        answer = {"calls": calls, "error": error, "kept": kept, "again": again, "reopened": disarm()}
        say({**answer, "found": _numbers(queue)})

    return case


def _outcome(queue: holdfast.Queue, operation: str) -> str | None:
    """Run the operation; return the name of the error it raised."""
    try:
        OPERATIONS[operation].perform(queue)
    except Exception as error:
        return type(error).__name__
    return None


def _seen_by_another(path: str) -> dict[str, Any]:
    with holdfast.connect(path) as queue:
        return _numbers(queue)


def _numbers(queue: holdfast.Queue) -> dict[str, Any]:
    return without_bulk(numbers(queue))
