"""Outcomes: their stored form, when two of them are equal, and invalid ones."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import Artifact, Backoff, Deferred, Done, Failed, InvalidInput, NewJob, Outcome, Released
from holdfast.domain import limits, strict_json
from holdfast.domain.artifacts import check_artifacts
from holdfast.domain.outcomes import CheckedOutcome, check_outcome

TIME = datetime(2024, 2, 3, tzinfo=UTC)
numbers = itertools.count()


def check(outcome: Any, tenant: str = "acme") -> CheckedOutcome:
    # A different new id each time, like the client's.
    return check_outcome(outcome, tenant=tenant, fresh_id=lambda: f"fresh-{next(numbers)}")


DIFFERENT: list[Outcome] = [
    Done(),
    Done(0),
    Done(False),
    Done({"a": 1}),
    Done({"a": 1.0}),
    Done([]),
    Done(follow_ups=[NewJob("next")]),
    Done(follow_ups=[NewJob("next", 1)]),
    Done(follow_ups=[NewJob("next"), NewJob("next")]),
    Done(follow_ups=[NewJob("next", job_id="chosen")]),
    Done(follow_ups=[NewJob("next", tenant="other")]),
    Done(artifacts=[Artifact("a", b"1")]),
    Done(artifacts=[Artifact("a", b"2")]),
    Done(artifacts=[Artifact("b", b"1")]),
    Done(artifacts=[Artifact("a", b"1", "text/plain")]),
    Failed("no"),
    Failed("no", permanent=True),
    Failed("no", reason="smtp"),
    Failed("other"),
    Failed("no", retry_after=0),
    Failed("no", retry_after=5),
    Failed("no", backoff=Backoff(1)),
    Failed("no", traceback="line 1"),
    Deferred(after=0),
    Deferred(after=30),
    Deferred(until=TIME),
    Released(),
]


class TestDigest:
    @pytest.mark.parametrize("outcome", DIFFERENT, ids=range(len(DIFFERENT)))
    def test_the_same_outcome_sent_again_has_the_same_digest(self, outcome: Outcome) -> None:
        assert check(outcome).digest == check(outcome).digest

    def test_no_two_different_outcomes_share_a_digest_and_a_result(self) -> None:
        stored = {(checked.digest, checked.result_json) for checked in map(check, DIFFERENT)}
        assert len(stored) == len(DIFFERENT)

    def test_a_success_without_extras_needs_no_digest(self) -> None:
        assert check(Done("stored")).digest is None
        assert check(Done("stored", follow_ups=[])).digest is None

    def test_seconds_and_timedelta_say_the_same(self) -> None:
        assert check(Deferred(after=30)).digest == check(Deferred(after=timedelta(seconds=30))).digest

    def test_a_follow_up_written_as_a_dict_says_the_same(self) -> None:
        written = Done(follow_ups=[{"kind": "next", "payload": 1}])
        assert check(written).digest == check(Done(follow_ups=[NewJob("next", 1)])).digest


class TestDone:
    @given(
        st.none() | st.booleans() | st.integers() | st.lists(st.integers()) | st.dictionaries(st.just("k"), st.none())
    )
    def test_the_result_is_stored_as_json(self, result: Any) -> None:
        stored = check(Done(result)).result_json
        assert stored is not None
        assert repr(strict_json.decode(stored)) == repr(result)

    def test_follow_ups_inherit_the_tenant_unless_they_name_one(self) -> None:
        own, named = check(Done(follow_ups=[NewJob("a"), NewJob("b", tenant="other")])).follow_ups
        assert (own.settings.tenant, named.settings.tenant) == ("acme", "other")

    @pytest.mark.parametrize(
        ("outcome", "field"),
        [
            (Done(float("nan")), "result"),
            (Done({"a": b""}), "result.a"),
            (Done("x" * limits.RESULT_BYTES_MAX), "result"),
            (Done(follow_ups=[NewJob("a"), NewJob("")]), "follow_ups[1].kind"),
            (Done(follow_ups=[{"payload": 1}]), "follow_ups[0].kind"),
            (Done(follow_ups=["a"]), "follow_ups[0].job"),  # type: ignore[list-item]
            (Done(follow_ups=[NewJob("a")] * (limits.FOLLOW_UPS_MAX + 1)), "follow_ups"),
            pytest.param(
                Done(follow_ups=[NewJob("a", "x" * 1_000_000)] * 68),
                "follow_ups",
                marks=pytest.mark.slow("it encodes 64 MiB"),
            ),
            (Done(follow_ups=None), "follow_ups"),  # type: ignore[arg-type]
            (Done(follow_ups=5), "follow_ups"),  # type: ignore[arg-type]
            (Done(artifacts=None), "artifacts"),  # type: ignore[arg-type]
            (Done(artifacts=[b"data"]), "artifacts[0]"),  # type: ignore[list-item]
        ],
        ids=range(12),
    )
    def test_an_invalid_part_is_refused_with_its_path(self, outcome: Done, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            check(outcome)
        assert caught.value.field == field


class TestArtifacts:
    @pytest.mark.parametrize("name", ["report.pdf", "...", "a b", "日本.txt", "👩‍👩‍👧", "n" * 200])
    def test_a_label_is_a_fine_name(self, name: str) -> None:
        assert check_artifacts([Artifact(name, b"")])[0].name == name

    @pytest.mark.parametrize(
        "name",
        ["../x", "/etc/passwd", "a/b", "a\\b", "C:\\x", ".", "..", "", " ", "a\0", "a\n", "\ud800", "n" * 201, None],
    )
    def test_a_path_or_unsound_name_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            check_artifacts([Artifact("fine", b""), Artifact(name, b"")])
        assert caught.value.field == "artifacts[1].name"

    def test_two_of_one_name_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="given twice") as caught:
            check_artifacts([Artifact("a", b"1"), Artifact("b", b"1"), Artifact("a", b"2")])
        assert caught.value.field == "artifacts[2].name"

    @pytest.mark.parametrize("data", ["text", bytearray(b"x"), memoryview(b"x"), None, 1])
    def test_data_is_bytes_and_nothing_else(self, data: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            check_artifacts([Artifact("a", data)])
        assert caught.value.field == "artifacts[0].data"

    def test_the_largest_is_taken_and_one_byte_more_is_not(self) -> None:
        assert check_artifacts([Artifact("a", bytes(limits.ARTIFACTS_DIRECT_BYTES_MAX))])
        with pytest.raises(InvalidInput) as caught:
            check_artifacts([Artifact("a", bytes(limits.ARTIFACTS_DIRECT_BYTES_MAX + 1))])
        assert caught.value.field == "artifacts[0].data"

    def test_as_many_as_the_limit_are_taken_and_one_more_is_not(self) -> None:
        many = [Artifact(str(number), b"") for number in range(limits.ARTIFACTS_MAX + 1)]
        assert len(check_artifacts(many[1:])) == limits.ARTIFACTS_MAX
        with pytest.raises(InvalidInput) as caught:
            check_artifacts(many)
        assert caught.value.field == "artifacts"

    def test_the_media_type_is_checked(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            check_artifacts([Artifact("a", b"", "text/html\r\nx: y")])
        assert caught.value.field == "artifacts[0].media_type"


class TestFailed:
    def test_the_class_follows_from_permanent(self) -> None:
        classes = [check(Failed("no", permanent=permanent)).failure for permanent in (False, True)]
        assert [failure and failure.failure_class for failure in classes] == ["transient", "permanent"]

    @given(st.text(st.characters(), max_size=50) | st.text("\0\ud800\udfffa", max_size=50))
    def test_no_text_of_a_failure_is_ever_refused(self, text: str) -> None:
        failure = check(Failed(text, traceback=text)).failure
        assert failure is not None
        assert "\0" not in failure.message
        assert failure.message.encode().decode() == failure.message

    @given(st.integers(limits.FAILURE_MESSAGE_CHARS_MAX, 2 * limits.FAILURE_MESSAGE_CHARS_MAX))
    def test_a_long_text_is_shortened_in_its_middle(self, length: int) -> None:
        failure = check(Failed("start" + "é" * length + "the end")).failure
        assert failure is not None
        assert len(failure.message) <= limits.FAILURE_MESSAGE_CHARS_MAX
        assert failure.message.startswith("start")
        assert failure.message.endswith("the end")

    @pytest.mark.parametrize(
        ("outcome", "field"),
        [
            (Failed(None), "message"),  # type: ignore[arg-type]
            (Failed("no", reason="Not A Code"), "reason"),
            (Failed("no", reason=""), "reason"),
            (Failed("no", permanent=1), "permanent"),  # type: ignore[arg-type]
            (Failed("no", retry_after=-1), "retry_after"),
            (Failed("no", retry_after=float("nan")), "retry_after"),
            (Failed("no", backoff=5), "backoff"),  # type: ignore[arg-type]
            (Failed("no", traceback=5), "traceback"),  # type: ignore[arg-type]
        ],
    )
    def test_an_invalid_option_is_refused_by_name(self, outcome: Failed, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            check(outcome)
        assert caught.value.field == field


class TestDeferred:
    @pytest.mark.parametrize(
        ("outcome", "field"),
        [
            (Deferred(), "after"),
            (Deferred(after=1, until=TIME), "after"),
            (Deferred(after=-1), "after"),
            (Deferred(after=True), "after"),
            (Deferred(after=367 * 86_400), "after"),
            (Deferred(until=datetime(2024, 1, 1)), "until"),  # without a time zone, which is the point
            (Deferred(until=5), "until"),  # type: ignore[arg-type]
        ],
    )
    def test_it_needs_exactly_one_sound_time(self, outcome: Deferred, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            check(outcome)
        assert caught.value.field == field

    @pytest.mark.parametrize("outcome", [None, "done", Done, Released, {"done": True}, True])
    def test_what_is_no_outcome_is_refused(self, outcome: Any) -> None:
        with pytest.raises(InvalidInput) as caught:
            check(outcome)
        assert caught.value.field == "outcome"
