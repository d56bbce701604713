"""The options of a session entry, and the identifiers derived for it and its claims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast.domain import limits
from holdfast.domain.errors import InvalidInput
from holdfast.domain.new_job import NewJob, check_job
from holdfast.domain.session_claims import derive_fence
from holdfast.domain.sessions import Session, SessionEntry, entry_from_json, entry_id, entry_to_json

SESSION = Session(1, "acme", "chat-42", 0, 4, *[None] * 10)  # type: ignore[arg-type]


def checked(payload: Any = None, **options: Any) -> Any:
    return check_job(NewJob("chat.message", payload, **options), fresh_id="fresh")


def test_without_an_option_of_sessions_a_job_is_no_entry() -> None:
    admission = checked()

    assert admission.entry is None
    assert not admission.settings.route.session


def test_the_defaults_are_a_message_alone_at_the_next_checkpoint() -> None:
    admission = checked({"n": 1}, session="s")

    assert admission.entry == SessionEntry("s", "message", False, "checkpoint", None, None)
    assert admission.settings.route.session


def test_options_that_are_none_are_ignored() -> None:
    assert checked(session=None, message_id=None).entry is None


def test_messages_are_the_payload_and_are_counted() -> None:
    admission = checked(session="s", messages=[1, {"a": 2}])

    assert admission.payload_json == '[1,{"a":2}]'
    assert admission.entry.messages == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"entry_type": "message"}, "entry_type"),
        ({"message_id": "k"}, "message_id"),
        ({"messages": [1]}, "messages"),
        ({"session": ""}, "session"),
        ({"session": "x" * (limits.NAME_CHARS_MAX + 1)}, "session"),
        ({"session": 7}, "session"),
        ({"session": "s", "entry_type": "wish"}, "entry_type"),
        ({"session": "s", "delivery": "soon"}, "delivery"),
        ({"session": "s", "join": 1}, "join"),
        ({"session": "s", "join": None}, "join"),
        ({"session": "s", "join": ""}, "join"),
        ({"session": "s", "join": "x" * (limits.NAME_CHARS_MAX + 1)}, "join"),
        ({"session": "s", "entry_type": "command", "join": True}, "join"),
        ({"session": "s", "entry_type": "command", "join": "group"}, "join"),
        ({"session": "s", "message_id": "x" * (limits.MESSAGE_ID_CHARS_MAX + 1)}, "message_id"),
        ({"session": "s", "priority": 1}, "priority"),
        ({"session": "s", "affinity": "m"}, "affinity"),
        ({"session": "s", "dedupe_key": "k"}, "dedupe_key"),
        ({"session": "s", "messages": []}, "messages"),
        ({"session": "s", "messages": "abc"}, "messages"),
        ({"session": "s", "messages": {"a": 1}}, "messages"),
        ({"session": "s", "messages": [0] * (limits.SESSION_ENTRY_MESSAGES_MAX + 1)}, "messages"),
        ({"session": "s", "messages": [float("nan")]}, "payload"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(**options)

    assert refused.value.field.split("[")[0] == field


def test_messages_and_a_payload_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="messages: cannot be combined with a payload"):
        checked({"n": 1}, session="s", messages=[1])


@pytest.mark.parametrize("join", [True, False, "group"])
def test_an_entry_reads_back_as_it_was_written(join: bool | str) -> None:
    entry = SessionEntry('s"\\', "command", join, "next_turn", "k\u00e9", 3)

    assert entry_from_json(entry_to_json(entry)) == entry


# --- derived identifiers -------------------------------------------------------------------------------------------


def test_a_message_id_makes_the_id_without_a_fresh_id() -> None:
    assert entry_id("t", "s", "k", 1, "a") == entry_id("t", "s", "k", 1, "b")


def test_without_a_message_id_the_fresh_id_makes_the_difference() -> None:
    assert entry_id("t", "s", None, 1, "a") == entry_id("t", "s", None, 1, "a")
    assert entry_id("t", "s", None, 1, "a") != entry_id("t", "s", None, 1, "b")


names = st.text(min_size=1, max_size=5)


@pytest.mark.slow("in a new checkout, the first text makes the table of all characters")
@given(st.tuples(names, names, names, st.integers(0)), st.tuples(names, names, names, st.integers(0)))
def test_other_arguments_make_another_id(one: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> None:
    assert (entry_id(*one, "n") == entry_id(*other, "n")) == (one == other)


def test_the_same_inputs_give_the_same_fence() -> None:
    fence = derive_fence(SESSION, "head", "token")

    assert fence == derive_fence(SESSION, "head", "token")
    assert (fence.fencing_token, fence.lease_token) == (SESSION.fence + 1, "token")


@pytest.mark.parametrize(
    ("session", "head"),
    [
        (SESSION._replace(tenant="other"), "head"),
        (SESSION._replace(name="other"), "head"),
        (SESSION._replace(fence=5), "head"),
        (SESSION, "other"),
    ],
)
def test_the_claim_id_depends_on_session_head_and_fencing_token(session: Session, head: str) -> None:
    fence = derive_fence(SESSION, "head", "token")

    assert derive_fence(session, head, "token").claim_id != fence.claim_id
    assert derive_fence(SESSION, "head", "other").claim_id == fence.claim_id
