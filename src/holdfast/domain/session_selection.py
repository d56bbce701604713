"""Selection of a session's entries for a claim: total, pure functions over candidates in enqueue order.

The head determines the selection: a command, or a message that does not join, is taken alone; a joining message is
taken with the messages behind it that join by the same kind or name and have the same delivery. Entries are never
reordered, and no entry that blocks is skipped.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.domain import sessions
from holdfast.domain.job import State

Eligibility: TypeAlias = Literal["ready", "passed", "blocks"]
"""The relation of a candidate to a claim: it is taken, skipped, or ends the selection."""
Group: TypeAlias = tuple[Literal["kind", "name"], str]
"""The kind or the name by which messages join."""


class SessionCandidate(NamedTuple):
    """The properties of an unfinished entry that determine the selection."""

    seq: int
    enqueue_seq: int
    route: int
    eligibility: Eligibility
    entry_type: sessions.EntryType
    delivery: sessions.EntryDelivery
    group: Group | None
    """By what it joins others; None if it is claimed alone."""


class SelectionCriteria(NamedTuple):
    """The selection criteria of a claim."""

    only: sessions.EntryType | None
    """The type that the head must have; None for any."""
    checkpoint: bool
    """Whether a running turn takes more entries."""
    limit: int


class Choice(NamedTuple):
    """The selected entries, and whether reading further along the session could add more."""

    run: tuple[SessionCandidate, ...]
    complete: bool


def eligibility_of(state: State, epoch: int, *, claimable: bool, skips: bool) -> Eligibility:
    """Return the relation of an entry in *state* to a claim.

    *claimable*: the claim may take entries of its lane and kind. *skips*: its lane permits skipping an entry that
    waits after a failure or deferral. An entry that was enqueued for later and never claimed is always skipped; one
    that waits for room at a limit never is.
    """
    if state == "ready":
        return "ready" if claimable else "blocks"
    if state == "scheduled":
        return "passed" if skips or not epoch else "blocks"
    if state == "parked":
        return "blocks"
    # A running entry is held by a claim, and a finished one, such as a failed head, blocks nothing: both are skipped.
    return "passed"


class EntryPosition(NamedTuple):
    """The identity of an entry: its number, its position in the session, and its route."""

    seq: int
    enqueue_seq: int
    route: int


def candidate(
    position: EntryPosition, eligibility: Eligibility, entry: sessions.SessionEntry, kind: str
) -> SessionCandidate:
    """Return *entry* as a candidate for the selection."""
    group: Group | None = None
    if entry.join is not False:
        group = ("kind", kind) if entry.join is True else ("name", entry.join)
    return SessionCandidate(*position, eligibility, entry.entry_type, entry.delivery, group)


def choose_run(candidates: Sequence[SessionCandidate], criteria: SelectionCriteria) -> Choice:
    """Return the entries of *candidates*, which are in enqueue order, that a claim takes."""
    run: list[SessionCandidate] = []
    for entry in candidates:
        if entry.eligibility == "passed":
            continue
        if entry.eligibility == "blocks" or not (_follows(run[0], entry) if run else _leads(entry, criteria)):
            return Choice(tuple(run), complete=True)
        run.append(entry)
        if len(run) == criteria.limit or entry.group is None:
            return Choice(tuple(run), complete=True)
    return Choice(tuple(run), complete=False)


def _leads(head: SessionCandidate, criteria: SelectionCriteria) -> bool:
    """Return whether a claim may begin with *head*."""
    matches = criteria.only in {None, head.entry_type}
    return matches and (not criteria.checkpoint or head.delivery == "checkpoint")


def _follows(head: SessionCandidate, entry: SessionCandidate) -> bool:
    """Return whether *entry* joins the selection that begins with *head*, which joins others."""
    return (entry.group, entry.delivery) == (head.group, head.delivery)
