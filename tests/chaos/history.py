"""What processes say they did: acts, written down before and after each call, so that a kill hides nothing for good.

A call is announced with what it may bring about, and acknowledged with what it did. An announced call without an
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

Deed: TypeAlias = Literal["enqueue", "claim", "heartbeat", "progress", "settle", "cancel", "requeue"]


@dataclass(frozen=True, kw_only=True)
class Act:
    """One thing done to one job, with what the store answered. Moments are milliseconds since the machine started."""

    deed: Deed
    job: str
    epoch: int = 0
    token: str = ""
    until_ms: int = 0
    """The end of the lease, by the store's lease clock."""
    lease_ms: int = 0
    worker: str = ""
    outcome: str = ""
    state: str = ""
    """The state in which it left the job."""
    created: bool = False
    again: bool = False
    """Sent once more: the store may have taken it already."""
    forced: bool = False
    ledger: bool = False
    """Done in a transaction of the caller's that also wrote to the ledger."""
    actor: str = ""
    started: float = 0
    ended: float | None = None
    """When the answer came; None if none came, so that it may or may not have happened."""

    @property
    def certain(self) -> bool:
        return self.ended is not None

    @property
    def decided_ms(self) -> int:
        """When the store gave this lease, by its lease clock."""
        return self.until_ms - self.lease_ms


_DEFAULTS = {one.name: one.default for one in fields(Act)}


def moment() -> float:
    """Return the milliseconds since the machine started, which go on through SIGSTOP and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


class Recorder:
    """Writes one process's history. Each line is one system call, so that a kill leaves whole lines."""

    def __init__(self, path: Path, actor: str) -> None:
        self.actor = actor
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._number = 0

    def announce(self, acts: Sequence[Act]) -> int:
        """Write down what is about to be asked for, and return the number of the call."""
        self._number += 1
        self._line({"call": self._number, "at": moment(), "may": [_short(act) for act in acts]})
        return self._number

    def acknowledge(self, call: int, acts: Sequence[Act]) -> None:
        """Write down what the answer says was done."""
        self._line({"call": call, "at": moment(), "did": [_short(act) for act in acts]})

    def refused(self, call: int, code: str) -> None:
        """Write down that nothing was done."""
        self._line({"call": call, "at": moment(), "did": [], "code": code})

    def unknown(self, call: int, code: str) -> None:
        """Write down that it may or may not have been done."""
        self._line({"call": call, "code": code})

    def note(self, **words: Any) -> None:
        """Write down something that is not a call."""
        self._line(words)

    def _line(self, words: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(words, separators=(",", ":")).encode() + b"\n")


def _short(act: Act) -> dict[str, Any]:
    return {name: value for name, value in asdict(act).items() if value != _DEFAULTS[name]}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written to one log. A line cut short by a kill was never written: its call stays unknown."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            words: dict[str, Any] = json.loads(line)
            yield words


def acts_in(path: Path) -> list[Act]:
    """Return every act of one log: those acknowledged, and those that may have happened."""
    open_calls: dict[int, dict[str, Any]] = {}
    acts: list[Act] = []
    for words in lines(path):
        if "may" in words:
            open_calls[words["call"]] = words
        elif "did" in words:
            begun = open_calls.pop(words["call"])
            acts += [Act(**did, actor=path.stem, started=begun["at"], ended=words["at"]) for did in words["did"]]
    for begun in open_calls.values():
        acts += [replace(Act(**may), actor=path.stem, started=begun["at"]) for may in begun["may"]]
    return acts


def codes_in(path: Path) -> list[str]:
    """Return the codes of all refusals and failures of one log."""
    return [words["code"] for words in lines(path) if "code" in words]
