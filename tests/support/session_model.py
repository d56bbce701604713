"""A second, simple implementation of sessions: lists of entries that are walked from their start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEASE_MS = 30_000
MAX_ATTEMPTS = 3


@dataclass
class ModelEntry:
    """One entry: its options, and its state."""

    serial: int
    """The order over all sessions in which entries came."""
    options: dict[str, Any]
    due: int
    state: str = "ready"
    epoch: int = 0
    attempt: int = 0
    lease_until: int = 0

    def joins(self, head: ModelEntry) -> bool:
        """Return whether it may be in one run with *head*."""
        same = all(self.options[name] == head.options[name] for name in ("delivery", "join"))
        return same and self.options["join"] is not False and self.options["entry_type"] == "message"


@dataclass
class ModelSession:
    """One session: its entries, oldest first, and the fence of its newest claim."""

    entries: list[ModelEntry] = field(default_factory=list)
    keys: dict[str, ModelEntry] = field(default_factory=dict)
    fence: int = 0


class SessionModel:
    """All sessions, and the time."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.sessions: dict[str, ModelSession] = {}
        self._serial = 0

    def session(self, name: str) -> ModelSession:
        return self.sessions.setdefault(name, ModelSession())

    def say(self, name: str, options: dict[str, Any]) -> tuple[int, bool]:
        """Enqueue an entry; return its serial number and whether it is new."""
        session = self.session(name)
        key = options["message_id"]
        if key is not None and key in session.keys:
            return session.keys[key].serial, False
        self._serial += 1
        due = self.now + options["delay_ms"]
        entry = ModelEntry(self._serial, options, due, "scheduled" if options["delay_ms"] else "ready")
        session.entries.append(entry)
        if key is not None:
            session.keys[key] = entry
        return entry.serial, True

    def run_maintenance(self, name: str) -> None:
        """Expire leases and promote due entries."""
        for entry in self.session(name).entries:
            if entry.state == "running" and entry.lease_until <= self.now:
                entry.state = "failed" if entry.attempt >= MAX_ATTEMPTS else "ready"
            if entry.state == "scheduled" and entry.due <= self.now:
                entry.state = "ready"

    def running(self, name: str) -> list[ModelEntry]:
        return [entry for entry in self.session(name).entries if entry.state == "running"]

    def run_of(self, name: str, only: str | None, limit: int, *, checkpoint: bool = False) -> list[ModelEntry]:
        """Return the entries that a claim would take."""
        run: list[ModelEntry] = []
        for entry in self.session(name).entries:
            if entry.state == "scheduled" and entry.epoch > 0:
                break
            if entry.state != "ready":
                continue
            fits = entry.joins(run[0]) if run else self._leads(entry, only, checkpoint=checkpoint)
            if not fits:
                break
            run.append(entry)
            if entry.options["join"] is False or len(run) == limit:
                break
        return run

    def _leads(self, entry: ModelEntry, only: str | None, *, checkpoint: bool) -> bool:
        early = entry.options["delivery"] == "checkpoint"
        return only in {None, entry.options["entry_type"]} and (early or not checkpoint)

    def claim(self, name: str, only: str | None, limit: int) -> list[ModelEntry]:
        """Claim as an idle claim of one session does."""
        self.run_maintenance(name)
        if self.running(name):
            return []
        run = self.run_of(name, only, limit)
        if run:
            self.session(name).fence += 1
        return self._lease(run)

    def claim_any(self, limit: int) -> tuple[str | None, list[ModelEntry]]:
        """Claim as a claim of any session does."""
        heads = []
        for name in self.sessions:
            self.run_maintenance(name)
            if not self.running(name) and (head := self.run_of(name, None, 1)):
                heads.append((head[0].serial, name))
        if not heads:
            return None, []
        name = min(heads)[1]
        return name, self.claim(name, None, limit)

    def take_in(self, name: str, limit: int) -> list[ModelEntry]:
        """Claim as the holder does at a checkpoint."""
        for entry in self.session(name).entries:
            if entry.state == "scheduled" and entry.due <= self.now:
                entry.state = "ready"
        return self._lease(self.run_of(name, None, limit, checkpoint=True))

    def _lease(self, run: list[ModelEntry]) -> list[ModelEntry]:
        for entry in run:
            entry.state, entry.lease_until = "running", self.now + LEASE_MS
            entry.epoch += 1
            entry.attempt += 1
        return run

    def holds(self, held: list[tuple[ModelEntry, int]]) -> bool:
        """Return whether all of these are still held under these epochs."""
        return all(
            entry.state == "running" and entry.epoch == epoch and entry.lease_until > self.now
            for entry, epoch in held
        )

    def settle(self, held: list[tuple[ModelEntry, int]], outcome: str) -> None:
        """Settle all with the same outcome."""
        for entry, _ in held:
            match outcome:
                case "done" | "permanent":
                    entry.state = "done" if outcome == "done" else "failed"
                case "retry":
                    entry.state = "failed" if entry.attempt >= MAX_ATTEMPTS else "scheduled"
                    entry.due = self.now + 5_000
                case "deferred":
                    entry.state, entry.due = "scheduled", self.now + 10_000
                    entry.attempt -= 1
                case _:
                    entry.state, entry.attempt = "ready", entry.attempt - 1

    def take_over(self, name: str) -> None:
        """Release entries that others hold."""
        for entry in self.running(name):
            if entry.lease_until <= self.now:
                entry.state = "failed" if entry.attempt >= MAX_ATTEMPTS else "ready"
            else:
                entry.state, entry.attempt = "ready", entry.attempt - 1
