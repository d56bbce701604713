"""Holdfast as a candidate, through its public API."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import holdfast
from bench.candidates import BATCH, Candidate, Durability, PythonSession, Scenario, handle, payload

_SCENARIOS: frozenset[Scenario] = frozenset(
    {"single", "threads-8", "threads-64", "bulk", "drain", "one-by-one", "pick-up"}
)


class HoldfastSession(PythonSession):
    """Holdfast with leases, fences, events and history; settles together with the next claim."""

    def __init__(self, durability: Durability, folder: Path) -> None:
        self.queue = holdfast.connect(str(folder / "holdfast.db"), durability=durability)
        self.queue.migrate()

    def enqueue(self, number: int) -> None:
        """Enqueue one job."""
        self.queue.enqueue("mail", payload(number))

    def enqueue_bulk(self, first: int, count: int) -> None:
        """Enqueue many jobs in one call."""
        self.queue.enqueue_many([{"kind": "mail", "payload": payload(first + index)} for index in range(count)])

    def drain(self, batch: int) -> int:
        """Settle the handled jobs and claim the next ones in one commit, until no job is left."""
        handled = 0
        done: list[tuple[holdfast.Claim, holdfast.Done]] = []
        while True:
            claims = self.queue.settle_and_claim(done, limit=batch).claims
            if not claims:
                return handled
            done = []
            for claim in claims:
                handle(claim.job.payload)
                done.append((claim, holdfast.Done()))
            handled += len(claims)

    def close(self) -> None:
        """Close the store."""
        self.queue.close()


def candidates() -> list[Candidate]:
    """Return Holdfast with each durability."""
    return [
        Candidate(
            "holdfast",
            durability,
            f'connect(durability="{durability}"); settle_and_claim in batches of {BATCH} in a plain loop',
            _SCENARIOS,
            partial(HoldfastSession, durability),
        )
        for durability in ("full", "relaxed")
    ]
