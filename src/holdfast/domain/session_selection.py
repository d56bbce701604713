"""Which entries of a session a claim takes: total, pure functions over candidates in enqueue order.

The head decides: a command or an exclusive turn goes alone, a joining turn takes along those behind it that join, are
delivered alike and have the same merge key. Nothing is ever reordered, and nothing that counts is stepped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain.job import State
from holdfast.domain.sessions import KIND_MERGES, Delivery, SessionEntry, Slot, WorkClass

Work: TypeAlias = Literal["turn", "command", "next"]
Boundary: TypeAlias = Literal["idle", "checkpoint"]
Standing: TypeAlias = Literal["ready", "passed", "blocks"]
"""What a candidate is to a claim: to be taken, to be stepped over, or the end of what may be taken."""

WORKS: Final[tuple[Work, ...]] = ("turn", "command", "next")
BOUNDARIES: Final[tuple[Boundary, ...]] = ("idle", "checkpoint")


class SessionCandidate(NamedTuple):
    """What the selection needs to know of one unfinished entry."""

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
    """The run of entries to take, and whether looking further along the session could make it longer."""

    run: tuple[SessionCandidate, ...]
    complete: bool


def standing_of(state: State, epoch: int, *, welcome: bool, skips: bool) -> Standing:
    """Return what an entry in *state* is to a claim.

    *welcome*: the claimer may take entries of its lane and kind. *skips*: its lane lets an entry that waits after a
    failure or deferral be passed. One that was enqueued for later, and never handed out, is always passed.
    """
    if state == "ready":
        return "ready" if welcome else "blocks"
    if state == "scheduled":
        return "passed" if skips or not epoch else "blocks"
    # Running: in hand. Finished: passed, as a failed head is.
    return "passed"


class Place(NamedTuple):
    """Which entry: its number, its place in the session, and its route."""

    seq: int
    enqueue_seq: int
    route: int


def candidate(place: Place, standing: Standing, entry: SessionEntry, kind: str) -> SessionCandidate:
    """Return *entry* as the selection sees it."""
    merges = (entry.merge_key, kind if entry.merge_key == KIND_MERGES else "")
    return SessionCandidate(*place, standing, entry.work_class, entry.delivery, entry.slot, merges)


def choose_run(candidates: Sequence[SessionCandidate], wanted: Wanted) -> Choice:
    """Return the entries that a claim takes of *candidates*, which stand in enqueue order."""
    run: list[SessionCandidate] = []
    for entry in candidates:
        if entry.standing == "passed":
            continue
        if entry.standing == "blocks" or not (_follows(run[0], entry) if run else _leads(entry, wanted)):
            return Choice(tuple(run), complete=True)
        run.append(entry)
        if len(run) == wanted.limit or entry.slot == "exclusive":
            return Choice(tuple(run), complete=True)
    return Choice(tuple(run), complete=False)


def _leads(head: SessionCandidate, wanted: Wanted) -> bool:
    """Whether a claim may begin with *head*."""
    asked = wanted.work in {"next", head.work_class}
    return asked and (wanted.boundary == "idle" or head.delivery == "earliest_safe_boundary")


def _follows(head: SessionCandidate, entry: SessionCandidate) -> bool:
    """Whether *entry* joins the run that *head* leads."""
    return (entry.work_class, entry.slot, entry.delivery, entry.merge_key) == (
        "turn",
        "join",
        head.delivery,
        head.merge_key,
    )
