"""Which entries a session claim takes: tables of cases, and properties that hold for any line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast.domain.session_selection import (
    Choice,
    EntryPosition,
    SelectionCriteria,
    SessionCandidate,
    candidate,
    choose_run,
    eligibility_of,
)
from holdfast.domain.sessions import EntryType, SessionEntry

EARLY: Any
LATE: Any
EARLY, LATE = "checkpoint", "next_turn"
KINDS: dict[str, dict[str, Any]] = {
    "J": {"group": ("kind", "chat")},
    "j": {"group": ("name", "group")},
    "L": {"group": ("kind", "chat"), "delivery": LATE},
    "X": {},
    "x": {"delivery": LATE},
    "C": {"entry_type": "command"},
    "c": {"entry_type": "command", "delivery": LATE},
}


def line_of(text: str) -> list[SessionCandidate]:
    """Return a line: J joins, j joins a group, L joins late, X is alone, C a command; (J) is passed, [J] blocks."""
    line: list[SessionCandidate] = []
    eligibility: Any = "ready"
    for letter in text:
        if letter in "([":
            eligibility = "passed" if letter == "(" else "blocks"
        elif letter in ")]":
            eligibility = "ready"
        else:
            line.append(one(len(line), eligibility=eligibility, **KINDS[letter]))
    return line


def one(place: int, **changes: Any) -> SessionCandidate:
    plain = SessionCandidate(place + 1, place + 1, 7, "ready", "message", EARLY, None)
    return plain._replace(**changes)


CASES: list[tuple[str, EntryType | None, bool, int, tuple[list[int], bool]]] = [
    # the line, the type, whether at a checkpoint, the limit; the entries taken, and whether more could not be added
    ("", None, False, 8, ([], False)),
    ("JJJ", "message", False, 8, ([1, 2, 3], False)),
    ("JJJ", "message", False, 2, ([1, 2], True)),
    ("JJX", "message", False, 8, ([1, 2], True)),
    ("XJJ", "message", False, 8, ([1], True)),
    ("JjJ", "message", False, 8, ([1], True)),
    ("JL", "message", False, 8, ([1], True)),
    ("LL", "message", False, 8, ([1, 2], False)),
    ("JCJ", "message", False, 8, ([1], True)),
    ("CJJ", "message", False, 8, ([], True)),
    ("CJJ", "command", False, 8, ([1], True)),
    ("CJJ", None, False, 8, ([1], True)),
    ("CC", "command", False, 8, ([1], True)),
    ("JC", "command", False, 8, ([], True)),
    ("JC", None, False, 8, ([1], True)),
    ("JJ", "message", True, 8, ([1, 2], False)),
    ("LJ", "message", True, 8, ([], True)),
    ("xJ", None, True, 8, ([], True)),
    ("CJ", "message", True, 8, ([], True)),
    ("C", "command", True, 8, ([1], True)),
    ("c", "command", True, 8, ([], True)),
    ("(X)J(C)J", "message", False, 8, ([2, 4], False)),
    ("[J]J", "message", False, 8, ([], True)),
    ("J[J]J", "message", False, 8, ([1], True)),
    ("(JJJ)", "message", False, 8, ([], False)),
]


@pytest.mark.parametrize(("line", "only", "checkpoint", "limit", "taken"), CASES)
def test_what_a_claim_takes(
    line: str, only: EntryType | None, checkpoint: bool, limit: int, taken: tuple[list[int], bool]
) -> None:
    choice = choose_run(line_of(line), SelectionCriteria(only, checkpoint, limit))

    assert ([entry.seq for entry in choice.run], choice.complete) == taken


@pytest.mark.parametrize(
    ("state", "epoch", "claimable", "skips", "eligibility"),
    [
        ("ready", 0, True, False, "ready"),
        ("ready", 0, False, False, "blocks"),
        ("ready", 0, False, True, "blocks"),
        ("scheduled", 0, True, False, "passed"),
        ("scheduled", 1, True, False, "blocks"),
        ("scheduled", 1, True, True, "passed"),
        ("running", 1, True, False, "passed"),
        ("failed", 3, True, False, "passed"),
        ("done", 1, True, False, "passed"),
    ],
)
def test_what_an_entry_is_to_a_claim(state: Any, epoch: int, claimable: bool, skips: bool, eligibility: str) -> None:
    assert eligibility_of(state, epoch, claimable=claimable, skips=skips) == eligibility


def entry(**options: Any) -> SessionEntry:
    plain = SessionEntry("s", "message", True, EARLY, None, None)
    return replace(plain, **options)


@pytest.mark.parametrize(
    ("one_of", "other", "join"),
    [
        ((entry(), "chat"), (entry(), "chat"), True),
        ((entry(), "chat"), (entry(), "note"), False),
        ((entry(join="group"), "chat"), (entry(join="group"), "note"), True),
        ((entry(join="never"), "chat"), (entry(join="never"), "chat"), True),
        ((entry(join="never"), "chat"), (entry(), "chat"), False),
        ((entry(join="chat"), "chat"), (entry(), "chat"), False),
        ((entry(join=False), "chat"), (entry(join=False), "chat"), False),
        ((entry(join=False), "chat"), (entry(), "chat"), False),
        ((entry(), "chat"), (entry(join=False), "chat"), False),
    ],
)
def test_messages_join_by_kind_or_by_name(
    one_of: tuple[SessionEntry, str], other: tuple[SessionEntry, str], join: bool
) -> None:
    line = [candidate(EntryPosition(n, n, 1), "ready", *told) for n, told in enumerate((one_of, other), 1)]

    assert len(choose_run(line, SelectionCriteria("message", False, 8)).run) == (2 if join else 1)


# --- properties that hold for any line -----------------------------------------------------------------------------

candidates = st.builds(
    lambda place, eligibility, entry_type, delivery, group: SessionCandidate(
        place, place, 1, eligibility, entry_type, delivery, None if entry_type == "command" else group
    ),
    st.just(0),
    st.sampled_from(["ready", "ready", "ready", "passed", "blocks"]),
    st.sampled_from(["message", "message", "message", "command"]),
    st.sampled_from([EARLY, EARLY, LATE]),
    st.sampled_from(
        [("kind", "chat"), ("kind", "chat"), ("kind", "chat"), ("name", "chat"), ("name", "a"), None, None]
    ),
)
lines = st.lists(candidates, max_size=40).map(
    lambda line: [one_of._replace(seq=place, enqueue_seq=place) for place, one_of in enumerate(line, 1)]
)
criteria_strategy = st.builds(
    SelectionCriteria,
    st.sampled_from(["message", "command", None]),
    st.booleans(),
    st.integers(1, 12),
)


@given(lines, criteria_strategy)
def test_it_never_reorders_exceeds_the_limit_or_mixes(
    line: list[SessionCandidate], criteria: SelectionCriteria
) -> None:
    run = choose_run(line, criteria).run

    assert list(run) == sorted(run, key=lambda entry: entry.enqueue_seq)
    assert len(run) <= criteria.limit
    assert len({(entry.entry_type, entry.delivery, entry.group) for entry in run}) <= 1
    if len(run) > 1:
        assert all(entry.entry_type == "message" and entry.group is not None for entry in run)


@given(lines, criteria_strategy)
def test_it_never_skips_what_counts(line: list[SessionCandidate], criteria: SelectionCriteria) -> None:
    run = choose_run(line, criteria).run

    if run:
        up_to = [entry for entry in line if entry.enqueue_seq <= run[-1].enqueue_seq]
        assert [entry for entry in up_to if entry.eligibility != "passed"] == list(run)
        assert all(entry.eligibility == "ready" for entry in run)


@given(lines, criteria_strategy)
def test_the_head_is_what_was_asked_for(line: list[SessionCandidate], criteria: SelectionCriteria) -> None:
    run = choose_run(line, criteria).run

    if run:
        assert criteria.only in {None, run[0].entry_type}
        assert not criteria.checkpoint or run[0].delivery == EARLY
    elif head := next((entry for entry in line if entry.eligibility != "passed"), None):
        refused = criteria.only not in {None, head.entry_type}
        assert head.eligibility == "blocks" or refused or (criteria.checkpoint and head.delivery == LATE)


@given(lines, lines, criteria_strategy)
def test_a_complete_answer_stays_whatever_stands_behind(
    line: list[SessionCandidate], behind: list[SessionCandidate], criteria: SelectionCriteria
) -> None:
    choice = choose_run(line, criteria)
    moved = [entry._replace(enqueue_seq=entry.enqueue_seq + len(line), seq=0) for entry in behind]
    longer = choose_run([*line, *moved], criteria)

    assert longer.run[: len(choice.run)] == choice.run
    if choice.complete:
        assert longer == choice


@given(lines, criteria_strategy, st.integers(1, 10))
def test_reading_in_pages_gives_the_same_run(
    line: list[SessionCandidate], criteria: SelectionCriteria, page: int
) -> None:
    met: list[SessionCandidate] = []
    choice = Choice((), complete=False)
    for start in range(0, len(line), page):
        met += line[start : start + page]
        choice = choose_run(met, criteria)
        if choice.complete:
            break
        met = list(choice.run)

    assert choice.run == choose_run(line, criteria).run
