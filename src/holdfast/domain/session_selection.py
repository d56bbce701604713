"""Which batches of a session a claim takes: total, pure functions over candidates in enqueue order.

The head decides: a command or an exclusive turn goes alone, a joining turn takes along those behind it that join, are
delivered alike and have the same merge key. Nothing is ever reordered, and nothing that counts is stepped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain.job import State
from holdfast.domain.sessions import KIND_MERGES, Batch, Delivery, Slot, WorkClass

Work: TypeAlias = Literal["turn", "command", "next"]
Boundary: TypeAlias = Literal["idle", "checkpoint"]
Standing: TypeAlias = Literal["ready", "passed", "blocks"]
"""What a candidate is to a claim: to be taken, to be stepped over, or the end of what may be taken."""

WORKS: Final[tuple[Work, ...]] = ("turn", "command", "next")
BOUNDARIES: Final[tuple[Boundary, ...]] = ("idle", "checkpoint")


class Candidate(NamedTuple):
    """What the selection needs to know of one unfinished batch."""

    seq: int
    enqueue_seq: int
    route: int
    standing: Standing
    work_class: WorkClass
    delivery: Delivery
    slot: Slot
    merge_key: tuple[str, str]
    """The key, and the kind where that is what merges."""


class Wanted(NamedTuple):
    """What a claim asks of a session."""

    work: Work
    boundary: Boundary
    limit: int


class Choice(NamedTuple):
    """The run of batches to take, and whether looking further along the session could make it longer."""

    run: tuple[Candidate, ...]
    complete: bool


def standing_of(state: State, epoch: int, *, welcome: bool, skips: bool) -> Standing:
    """Return what a batch in *state* is to a claim.

    *welcome*: the claimer may take batches of its lane and kind. *skips*: its lane lets a batch that waits after a
    failure or deferral be passed. One that was enqueued for later, and never handed out, is always passed.
    """
    if state == "ready":
        return "ready" if welcome else "blocks"
    if state == "scheduled":
        return "passed" if skips or not epoch else "blocks"
    # Running: in hand. Finished: passed, as a failed head is.
    return "passed"


class Place(NamedTuple):
    """Which batch: its number, its place in the session, and its route."""

    seq: int
    enqueue_seq: int
    route: int


def candidate(place: Place, standing: Standing, batch: Batch, kind: str) -> Candidate:
    """Return *batch* as the selection sees it."""
    merges = (batch.merge_key, kind if batch.merge_key == KIND_MERGES else "")
    return Candidate(*place, standing, batch.work_class, batch.delivery, batch.slot, merges)


def choose_run(candidates: Sequence[Candidate], wanted: Wanted) -> Choice:
    """Return the batches that a claim takes of *candidates*, which stand in enqueue order."""
    run: list[Candidate] = []
    for batch in candidates:
        if batch.standing == "passed":
            continue
        if batch.standing == "blocks" or not (_follows(run[0], batch) if run else _leads(batch, wanted)):
            return Choice(tuple(run), complete=True)
        run.append(batch)
        if len(run) == wanted.limit or batch.slot == "exclusive":
            return Choice(tuple(run), complete=True)
    return Choice(tuple(run), complete=False)


def _leads(head: Candidate, wanted: Wanted) -> bool:
    """Whether a claim may begin with *head*."""
    asked = wanted.work in {"next", head.work_class}
    return asked and (wanted.boundary == "idle" or head.delivery == "earliest_safe_boundary")


def _follows(head: Candidate, batch: Candidate) -> bool:
    """Whether *batch* joins the run that *head* leads."""
    return (batch.work_class, batch.slot, batch.delivery, batch.merge_key) == (
        "turn",
        "join",
        head.delivery,
        head.merge_key,
    )
