"""Selection of a session's entries for a claim: total, pure functions over candidates in enqueue order.

The head determines the selection: a command or an exclusive turn is taken alone; a joining turn is taken with the
entries behind it that join, have the same delivery and the same merge key. Entries are never reordered, and no entry
that blocks is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain.job import State
from holdfast.domain.sessions import KIND_MERGES, Delivery, SessionEntry, Slot, WorkClass

Work: TypeAlias = Literal["turn", "command", "next"]
Boundary: TypeAlias = Literal["idle", "checkpoint"]
Eligibility: TypeAlias = Literal["ready", "passed", "blocks"]
"""The relation of a candidate to a claim: it is taken, skipped, or ends the selection."""

WORKS: Final[tuple[Work, ...]] = ("turn", "command", "next")
BOUNDARIES: Final[tuple[Boundary, ...]] = ("idle", "checkpoint")


class SessionCandidate(NamedTuple):
    """The properties of an unfinished entry that determine the selection."""

    seq: int
    enqueue_seq: int
    route: int
    eligibility: Eligibility
    work_class: WorkClass
    delivery: Delivery
    slot: Slot
    merge_key: tuple[str, str]
    """The merge key, or the kind if entries merge by kind."""


class SelectionCriteria(NamedTuple):
    """The selection criteria of a claim."""

    work: Work
    boundary: Boundary
    limit: int


class Choice(NamedTuple):
    """The selected entries, and whether reading further along the session could add more."""

    run: tuple[SessionCandidate, ...]
    complete: bool


def eligibility_of(state: State, epoch: int, *, claimable: bool, skips: bool) -> Eligibility:
    """Return the relation of an entry in *state* to a claim.

    *claimable*: the claim may take entries of its lane and kind. *skips*: its lane permits skipping an entry that
    waits after a failure or deferral. An entry that was enqueued for later and never claimed is always skipped.
    """
    if state == "ready":
        return "ready" if claimable else "blocks"
    if state == "scheduled":
        return "passed" if skips or not epoch else "blocks"
    # A running entry is held by a claim, and a finished one, such as a failed head, blocks nothing: both are skipped.
    return "passed"


class EntryPosition(NamedTuple):
    """The identity of an entry: its number, its position in the session, and its route."""

    seq: int
    enqueue_seq: int
    route: int


def candidate(position: EntryPosition, eligibility: Eligibility, entry: SessionEntry, kind: str) -> SessionCandidate:
    """Return *entry* as a candidate for the selection."""
    merges = (entry.merge_key, kind if entry.merge_key == KIND_MERGES else "")
    return SessionCandidate(*position, eligibility, entry.work_class, entry.delivery, entry.slot, merges)


def choose_run(candidates: Sequence[SessionCandidate], criteria: SelectionCriteria) -> Choice:
    """Return the entries of *candidates*, which are in enqueue order, that a claim takes."""
    run: list[SessionCandidate] = []
    for entry in candidates:
        if entry.eligibility == "passed":
            continue
        if entry.eligibility == "blocks" or not (_follows(run[0], entry) if run else _leads(entry, criteria)):
            return Choice(tuple(run), complete=True)
        run.append(entry)
        if len(run) == criteria.limit or entry.slot == "exclusive":
            return Choice(tuple(run), complete=True)
    return Choice(tuple(run), complete=False)


def _leads(head: SessionCandidate, criteria: SelectionCriteria) -> bool:
    """Return whether a claim may begin with *head*."""
    matches = criteria.work in {"next", head.work_class}
    return matches and (criteria.boundary == "idle" or head.delivery == "earliest_safe_boundary")


def _follows(head: SessionCandidate, entry: SessionCandidate) -> bool:
    """Return whether *entry* joins the selection that begins with *head*."""
    return (entry.work_class, entry.slot, entry.delivery, entry.merge_key) == (
        "turn",
        "join",
        head.delivery,
        head.merge_key,
    )
