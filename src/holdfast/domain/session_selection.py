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
Standing: TypeAlias = Literal["ready", "passed", "blocks"]
"""The relation of a candidate to a claim: it is taken, skipped, or ends the selection."""

WORKS: Final[tuple[Work, ...]] = ("turn", "command", "next")
BOUNDARIES: Final[tuple[Boundary, ...]] = ("idle", "checkpoint")


class SessionCandidate(NamedTuple):
    """The properties of an unfinished entry that determine the selection."""

    seq: int
    enqueue_seq: int
    route: int
    standing: Standing
    work_class: WorkClass
    delivery: Delivery
    slot: Slot
    merge_key: tuple[str, str]
    """The merge key, or the kind if entries merge by kind."""


class Wanted(NamedTuple):
    """The selection criteria of a claim."""

    work: Work
    boundary: Boundary
    limit: int


class Choice(NamedTuple):
    """The selected entries, and whether reading further along the session could add more."""

    run: tuple[SessionCandidate, ...]
    complete: bool


def standing_of(state: State, epoch: int, *, welcome: bool, skips: bool) -> Standing:
    """Return the relation of an entry in *state* to a claim.

    *welcome*: the claim may take entries of its lane and kind. *skips*: its lane permits skipping an entry that waits
    after a failure or deferral. An entry that was enqueued for later and never claimed is always skipped.
    """
    if state == "ready":
        return "ready" if welcome else "blocks"
    if state == "scheduled":
        return "passed" if skips or not epoch else "blocks"
    # A running entry is held and blocks. A finished one, such as a failed head, is skipped.
    return "passed"


class Place(NamedTuple):
    """The identity of an entry: its number, its position in the session, and its route."""

    seq: int
    enqueue_seq: int
    route: int


def candidate(place: Place, standing: Standing, entry: SessionEntry, kind: str) -> SessionCandidate:
    """Return *entry* as a candidate for the selection."""
    merges = (entry.merge_key, kind if entry.merge_key == KIND_MERGES else "")
    return SessionCandidate(*place, standing, entry.work_class, entry.delivery, entry.slot, merges)


def choose_run(candidates: Sequence[SessionCandidate], wanted: Wanted) -> Choice:
    """Return the entries of *candidates*, which are in enqueue order, that a claim takes."""
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
    """Return whether a claim may begin with *head*."""
    asked = wanted.work in {"next", head.work_class}
    return asked and (wanted.boundary == "idle" or head.delivery == "earliest_safe_boundary")


def _follows(head: SessionCandidate, entry: SessionCandidate) -> bool:
    """Return whether *entry* joins the selection that begins with *head*."""
    return (entry.work_class, entry.slot, entry.delivery, entry.merge_key) == (
        "turn",
        "join",
        head.delivery,
        head.merge_key,
    )
