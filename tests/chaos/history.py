"""The log of a process: its acts, written before and after each call, so a kill loses no information.

A call is announced with its possible acts, and acknowledged with the actual ones. An announced call without an
acknowledgement may or may not have happened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

Operation: TypeAlias = Literal["enqueue", "claim", "heartbeat", "progress", "settle", "cancel", "requeue"]


@dataclass(frozen=True, kw_only=True)
class Act:
    """One operation on one job, with its result. Times are milliseconds since the machine started."""

    operation: Operation
    job: str
    epoch: int = 0
    token: str = ""
    until_ms: int = 0
    """The end of the lease, by the store's lease clock."""
    lease_ms: int = 0
    worker: str = ""
    outcome: str = ""
    state: str = ""
    """The resulting state of the job."""
    created: bool = False
    again: bool = False
    """A repeated call: the store may have applied it already."""
    forced: bool = False
    uncounted: bool = False
    """Takes no room at a limit: a later entry of a session's claim."""
    ledger: bool = False
    """Made in a transaction of the caller that also wrote to the ledger."""
    actor: str = ""
    started: float = 0
    ended: float | None = None
    """When the call returned; None if it did not, so it may or may not have happened."""

    @property
    def certain(self) -> bool:
        return self.ended is not None

    @property
    def decided_ms(self) -> int:
        """When the store granted this lease, by its lease clock."""
        return self.until_ms - self.lease_ms


_DEFAULTS = {one.name: one.default for one in fields(Act)}


def now_ms() -> float:
    """Return the milliseconds since the machine started, which SIGSTOP does not stop and no caller sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


class Recorder:
    """Writes the history of one process. Each line is one system call, so a kill leaves complete lines."""

    def __init__(self, path: Path, actor: str) -> None:
        self.actor = actor
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._number = 0

    def announce(self, acts: Sequence[Act]) -> int:
        """Record the possible acts of a call before it is made, and return the number of the call."""
        self._number += 1
        self._line({"call": self._number, "at": now_ms(), "may": [_short(act) for act in acts]})
        return self._number

    def acknowledge(self, call: int, acts: Sequence[Act]) -> None:
        """Record the acts of a call that returned."""
        self._line({"call": call, "at": now_ms(), "did": [_short(act) for act in acts]})

    def refused(self, call: int, code: str) -> None:
        """Record that a call was refused."""
        self._line({"call": call, "at": now_ms(), "did": [], "code": code})

    def unknown(self, call: int, code: str) -> None:
        """Record that a call may or may not have happened."""
        self._line({"call": call, "code": code})

    def note(self, **record: Any) -> None:
        """Record other information."""
        self._line(record)

    def _line(self, record: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")


def _short(act: Act) -> dict[str, Any]:
    return {name: value for name, value in asdict(act).items() if value != _DEFAULTS[name]}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one log. A truncated line is ignored: the result of its call is unknown."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            record: dict[str, Any] = json.loads(line)
            yield record


def acts_in(path: Path) -> list[Act]:
    """Return the acts of one log: acknowledged ones and those that may have happened."""
    open_calls: dict[int, dict[str, Any]] = {}
    acts: list[Act] = []
    for record in lines(path):
        if "may" in record:
            open_calls[record["call"]] = record
        elif "did" in record:
            call = open_calls.pop(record["call"])
            acts += [Act(**did, actor=path.stem, started=call["at"], ended=record["at"]) for did in record["did"]]
    for call in open_calls.values():
        acts += [replace(Act(**may), actor=path.stem, started=call["at"]) for may in call["may"]]
    return acts


def codes_in(path: Path) -> list[str]:
    """Return the codes of all refusals and failures of one log."""
    return [record["code"] for record in lines(path) if "code" in record]
