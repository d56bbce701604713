"""The options of a session entry, and the identifiers derived for it and its claims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain import limits
from holdfast.domain.errors import InvalidInput
from holdfast.domain.new_job import NewJob, check_job
from holdfast.domain.session_claims import Holder, derive_fence
from holdfast.domain.sessions import Session, SessionEntry, entry_id

SESSION = Session(1, "acme", "chat-42", 0, 4, *[None] * 13)  # type: ignore[arg-type]
HOLDER = Holder("runtime-1", "start-1", "nonce-1")


def checked(payload: Any = None, **options: Any) -> Any:
    return check_job(NewJob("chat.message", payload, **options), fresh_id="fresh")


def test_without_an_option_of_sessions_a_job_is_no_entry() -> None:
    admission = checked()

    assert admission.entry is None
    assert not admission.settings.route.session


def test_the_defaults_are_an_exclusive_turn_at_the_earliest_boundary() -> None:
    admission = checked({"n": 1}, session="s")

    assert admission.entry == SessionEntry("s", "turn", "earliest_safe_boundary", "exclusive", "default", None, None)
    assert admission.settings.route.session


def test_options_that_are_none_are_ignored() -> None:
    assert checked(session=None, source_key=None).entry is None


def test_items_are_the_payload_and_are_counted() -> None:
    admission = checked(session="s", items=[1, {"a": 2}])

    assert admission.payload_json == '[1,{"a":2}]'
    assert admission.entry.items == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"work_class": "turn"}, "work_class"),
        ({"source_key": "k"}, "source_key"),
        ({"items": [1]}, "items"),
        ({"session": ""}, "session"),
        ({"session": "x" * (limits.NAME_CHARS_MAX + 1)}, "session"),
        ({"session": 7}, "session"),
        ({"session": "s", "work_class": "wish"}, "work_class"),
        ({"session": "s", "delivery": "soon"}, "delivery"),
        ({"session": "s", "slot": "shared"}, "slot"),
        ({"session": "s", "work_class": "command", "slot": "join"}, "slot"),
        ({"session": "s", "merge_key": ""}, "merge_key"),
        ({"session": "s", "source_key": "x" * (limits.SOURCE_KEY_CHARS_MAX + 1)}, "source_key"),
        ({"session": "s", "priority": 1}, "priority"),
        ({"session": "s", "affinity": "m"}, "affinity"),
        ({"session": "s", "dedupe_key": "k"}, "dedupe_key"),
        ({"session": "s", "items": []}, "items"),
        ({"session": "s", "items": "abc"}, "items"),
        ({"session": "s", "items": {"a": 1}}, "items"),
        ({"session": "s", "items": [0] * (limits.SESSION_ENTRY_ITEMS_MAX + 1)}, "items"),
        ({"session": "s", "items": [float("nan")]}, "payload"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(**options)

    assert refused.value.field.split("[")[0] == field


def test_items_and_a_payload_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="items: cannot be combined with a payload"):
        checked({"n": 1}, session="s", items=[1])


def test_a_batch_reads_back_as_it_was_written() -> None:
    entry = SessionEntry('s"\\', "command", "after_current_turn_commit", "exclusive", "never", "k\u00e9", 3)

    assert SessionEntry.from_json(entry.to_json()) == entry


# --- derived identifiers -------------------------------------------------------------------------------------------


def test_a_source_key_makes_the_id_without_a_nonce() -> None:
    assert entry_id("t", "s", "k", 1, "a") == entry_id("t", "s", "k", 1, "b")


def test_without_a_source_key_the_nonce_makes_the_difference() -> None:
    assert entry_id("t", "s", None, 1, "a") == entry_id("t", "s", None, 1, "a")
    assert entry_id("t", "s", None, 1, "a") != entry_id("t", "s", None, 1, "b")


names = st.text(min_size=1, max_size=5)


@given(st.tuples(names, names, names, st.integers(0)), st.tuples(names, names, names, st.integers(0)))
def test_other_arguments_make_another_id(one: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> None:
    assert (entry_id(*one, "n") == entry_id(*other, "n")) == (one == other)


def test_the_same_inputs_give_the_same_fence() -> None:
    fence = derive_fence(SESSION, "head", HOLDER, 1_000)

    assert fence == derive_fence(SESSION, "head", HOLDER, 1_000)
    assert fence.fencing_token == SESSION.fence + 1


@pytest.mark.parametrize(
    ("session", "head", "holder", "at_ms"),
    [
        (SESSION._replace(tenant="other"), "head", HOLDER, 1_000),
        (SESSION._replace(name="other"), "head", HOLDER, 1_000),
        (SESSION._replace(fence=5), "head", HOLDER, 1_000),
        (SESSION, "other", HOLDER, 1_000),
        (SESSION, "head", HOLDER._replace(worker="other"), 1_000),
        (SESSION, "head", HOLDER._replace(incarnation="other"), 1_000),
        (SESSION, "head", HOLDER._replace(nonce="other"), 1_000),
        (SESSION, "head", HOLDER, 1_001),
    ],
)
def test_any_other_input_gives_another_lease_token(session: Session, head: str, holder: Holder, at_ms: int) -> None:
    assert (
        derive_fence(session, head, holder, at_ms).lease_token
        != derive_fence(SESSION, "head", HOLDER, 1_000).lease_token
    )


def test_the_claim_id_depends_on_head_and_token_for_any_worker() -> None:
    fence = derive_fence(SESSION, "head", HOLDER, 1_000)

    assert derive_fence(SESSION, "head", Holder("w2", "i2", "n2"), 2_000).claim_id == fence.claim_id
    assert derive_fence(SESSION, "other", HOLDER, 1_000).claim_id != fence.claim_id
    assert derive_fence(SESSION._replace(fence=5), "head", HOLDER, 1_000).claim_id != fence.claim_id
