"""The process that is killed repeatedly, at one system call after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from tests.sqlite.faults.child import forked
from tests.sqlite.faults.interception import Action, Call, Interception
from tests.sqlite.faults.operations import OPERATIONS, copy_of


def killed_at_each_call(
    interception: Interception, *, prepared: str, operation: str, after: bool, cold: bool, step: int
) -> list[dict[str, Any]]:
    """Kill a process at every *step*-th call until one completes; yield the folder and the messages of each.

    A kill after one call leaves the same files as a kill before the next call. Kills before each call are therefore
    followed by one more, after the last call.
    """
    cases: list[dict[str, Any]] = []

    def run(action: Action, at: int) -> int:
        folder = copy_of(prepared, len(cases))
        interception.watch(folder)
        status, said = forked(_case(interception, f"{folder}/jobs.db", operation, action, at, cold=cold))
        cases.append({"folder": folder, "at": at, "status": status, "said": said})
        return status

    at = 1
    while run(Action.KILL_AFTER if after else Action.KILL_BEFORE, at) != 0:
        at += step
    if step == 1 and not after:
        run(Action.KILL_AFTER, at - 1)
        # The completed process stays the last.
        cases[-2:] = reversed(cases[-2:])
    return cases


def _case(
    interception: Interception, path: str, operation: str, action: Action, at: int, *, cold: bool
) -> Callable[[Callable[[Any], None]], None]:
    def case(say: Callable[[Any], None]) -> None:
        queue = holdfast.connect(path)
        if not cold:
            OPERATIONS[operation].approach(queue, path)
        interception.arm(Call.CHANGE, action, at)
        OPERATIONS[operation].perform(queue)
        say("acknowledged")

    return case
