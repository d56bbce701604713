"""Jobs under limits by key: enqueueing, settling and draining them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast import Claim, Done, Queue


def enqueue(queue: Queue, count: int, kind: str = "call", **options: Any) -> list[str]:
    return [queue.enqueue(kind, {"n": n}, **options).id for n in range(count)]


def tenants(claims: Sequence[Claim]) -> Counter[str]:
    return Counter(claim.job.tenant for claim in claims)


def finish(queue: Queue, claims: Sequence[Claim]) -> None:
    queue.settle_many([(claim, Done()) for claim in claims])


def drain(queue: Queue, limit: int = 10) -> list[str]:
    """Run what can be run, at most *limit* at once, and return the ids in order."""
    done: list[str] = []
    while claims := queue.claim_many(limit=limit):
        done += [claim.job.id for claim in claims]
        finish(queue, claims)
    return done
