"""New jobs: the options of enqueue in stored form, the digest of a request, and duplicate keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import Backoff, Conflict, InvalidInput, NewJob
from holdfast.domain import duplicates, limits, new_job, validation
from holdfast.domain.job import STATES, JobRow, State, job_of
from holdfast.domain.job_options import OnDuplicate
from holdfast.domain.new_job import CheckedJob
from holdfast.types import Now

NOW = Now(1_700_000_000_000, 5_000)
TIME = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)


def check(payload: Any = None, **options: Any) -> CheckedJob:
    return new_job.check_job(NewJob("work", payload, **options), fresh_id="fresh")


def stored(**options: Any) -> JobRow:
    return new_job.new_job(check(**options), 1, "default", NOW)


def test_a_new_job_has_no_attempt_no_failure_and_no_result() -> None:
    row = stored(priority=3, tags={"a": "1"})
    fields = JobRow._fields
    counters = {"epoch", "unacknowledged", "cancel_requested", "suspect", "deferrals", "releases", "attempt"}

    unclaimed = {name: getattr(row, name) for name in fields[fields.index("epoch") : fields.index("dedupe_key")]}

    assert unclaimed == {name: 0 if name in counters else None for name in unclaimed}
    assert (row.attempt, row.result_json, row.finished_at_ms, row.predecessor, row.event_count) == (
        0,
        None,
        None,
        None,
        0,
    )
    assert (type(row), len(row)) == (JobRow, len(fields))


class TestOptions:
    def test_a_bare_kind_gets_the_documented_defaults(self) -> None:
        job = job_of(stored())
        assert (job.id, job.kind, job.lane, job.tenant, job.priority) == ("fresh", "work", "default", "default", 0)
        assert (job.payload, job.headers, job.tags, job.requires, job.affinity) == (None, {}, {}, (), None)
        assert (job.state, job.attempt, job.max_attempts, job.epoch) == ("ready", 0, 5, 0)
        assert job.backoff == Backoff(60, 2, 3600, 0.2)

    def test_a_dict_and_a_new_job_mean_the_same(self) -> None:
        options: dict[str, Any] = {"priority": 3, "tags": {"a": "b"}, "delay": 5}
        written = new_job.check_job({"kind": "work", "payload": [1], **options}, fresh_id="fresh")
        assert written == check([1], **options)

    def test_a_tenant_given_for_the_call_serves_where_none_is_named(self) -> None:
        inherited = new_job.check_job(NewJob("work"), fresh_id="fresh", tenant="acme")
        named = new_job.check_job(NewJob("work", tenant="own"), fresh_id="fresh", tenant="acme")
        assert (inherited.settings.tenant, named.settings.tenant) == ("acme", "own")

    def test_requirements_are_a_set(self) -> None:
        assert check(requires=["gpu", "avx", "gpu"]).settings == check(requires=["avx", "gpu"]).settings

    def test_an_error_names_the_path_in_the_larger_call(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            new_job.check_job({"kind": "work", "payload": {"a": [b""]}}, fresh_id="x", field="follow_ups[2]")
        assert caught.value.field == "follow_ups[2].payload.a[0]"


class TestTimes:
    def test_a_delay_is_counted_from_the_stores_clock(self) -> None:
        job = stored(delay=1.5)
        assert (job.state, job.due_at_ms) == ("scheduled", NOW.wall_ms + 1_500)

    def test_a_time_in_the_past_means_now(self) -> None:
        job = stored(run_at=validation.datetime_of(NOW.wall_ms - 10_000))
        assert (job.state, job.due_at_ms) == ("ready", NOW.wall_ms)

    @given(st.integers(0, limits.PAUSE_MS_MAX))
    def test_a_job_is_scheduled_exactly_if_it_is_due_later(self, delay_ms: int) -> None:
        job = stored(delay=timedelta(milliseconds=delay_ms))
        assert (job.state == "scheduled") is (job.due_at_ms > NOW.wall_ms)

    def test_a_deadline_in_seconds_counts_from_the_stores_clock_and_a_datetime_is_kept(self) -> None:
        assert stored(deadline=2).deadline_at_ms == NOW.wall_ms + 2_000
        assert job_of(stored(deadline=TIME)).deadline_at == TIME


BASE: dict[str, Any] = {"job_id": "a", "payload": {"x": 1, "y": [2, 3]}, "tags": {"t": "1", "u": "2"}}
OTHERS: list[dict[str, Any]] = [
    {"payload": {"x": 1}},
    {"payload": {"x": 1.0, "y": [2, 3]}},
    {"payload": {"x": True, "y": [2, 3]}},
    {"payload": {"x": 1, "y": [3, 2]}},
    {"payload": None},
    {"tags": {"t": "1"}},
    {"headers": {"t": "1"}},
    {"lane": "other"},
    {"tenant": "other"},
    {"priority": 1},
    {"delay": 1},
    {"run_at": TIME},
    {"deadline": 5},
    {"deadline": TIME},
    {"requires": ["gpu"]},
    {"affinity": "gpu"},
    {"max_attempts": 4},
    {"backoff": Backoff(1)},
    {"dedupe_key": "k"},
    {"events": "all"},
]


class TestDigest:
    def test_only_a_chosen_id_has_one(self) -> None:
        assert check(BASE["payload"]).digest is None
        assert check(**BASE).digest is not None

    def test_the_order_of_keys_does_not_matter(self) -> None:
        turned = {"job_id": "a", "payload": {"y": [2, 3], "x": 1}, "tags": {"u": "2", "t": "1"}}
        assert check(**turned).digest == check(**BASE).digest

    def test_saying_a_default_is_saying_nothing(self) -> None:
        spelled = {
            "lane": "default",
            "tenant": "default",
            "priority": 0,
            "delay": 0,
            "headers": {},
            "max_attempts": 5,
        }
        assert check(**BASE, **spelled).digest == check(**BASE).digest

    @pytest.mark.parametrize("other", OTHERS, ids="-".join)
    def test_any_other_option_makes_another_request(self, other: dict[str, Any]) -> None:
        assert check(**{**BASE, **other}).digest != check(**BASE).digest

    def test_the_same_request_returns_the_original_and_another_is_a_conflict(self) -> None:
        original = stored(**BASE)
        assert duplicates.same_request(original, check(**BASE)) is original
        with pytest.raises(Conflict) as caught:
            duplicates.same_request(original, check(**{**BASE, "priority": 1}))
        assert caught.value.job_id == "a"


UNFINISHED: list[State] = [state for state in STATES if not stored()._replace(state=state).finished]


class TestDuplicates:
    @staticmethod
    def meet(on_duplicate: OnDuplicate, holder: JobRow, successor: JobRow | None = None) -> str:
        again = check(dedupe_key="k", on_duplicate=on_duplicate)
        return duplicates.resolve_duplicate(again, holder, successor)

    @pytest.mark.parametrize("state", UNFINISHED)
    def test_keep_keeps_the_first_in_every_state(self, state: State) -> None:
        assert self.meet("keep", stored(dedupe_key="k")._replace(state=state)) == "keep"

    @pytest.mark.parametrize("state", ["scheduled", "ready"])
    def test_replace_replaces_a_job_that_was_never_claimed(self, state: State) -> None:
        assert self.meet("replace", stored(dedupe_key="k")._replace(state=state)) == "replace"

    @pytest.mark.parametrize("state", ["scheduled", "ready", "running"])
    def test_replace_of_a_job_that_was_claimed_is_a_conflict(self, state: State) -> None:
        with pytest.raises(Conflict) as caught:
            self.meet("replace", stored(dedupe_key="k")._replace(state=state, epoch=1))
        assert caught.value.job_id == "fresh"

    @pytest.mark.parametrize("state", ["scheduled", "ready"])
    @pytest.mark.parametrize("epoch", [0, 1])
    def test_run_again_keeps_a_first_that_still_waits(self, state: State, epoch: int) -> None:
        assert self.meet("run_again", stored(dedupe_key="k")._replace(state=state, epoch=epoch)) == "keep"

    def test_run_again_gives_a_running_first_one_successor_and_then_replaces_that(self) -> None:
        holder = stored(dedupe_key="k")._replace(state="running", epoch=1)
        assert self.meet("run_again", holder) == "succeed"
        assert self.meet("run_again", holder, successor=stored()) == "replace_successor"

    def test_replacing_changes_what_the_job_carries_and_nothing_else(self) -> None:
        before = stored(payload=1, tags={"a": "1"}, headers={"h": "1"}, dedupe_key="k")
        replacement = check(2, tags={"b": "2"}, headers={"i": "2"}, dedupe_key="k", priority=9, delay=60)
        after = duplicates.replace_content(before, replacement)
        shown = job_of(after)
        assert (shown.payload, shown.tags, shown.headers) == (2, {"b": "2"}, {"i": "2"})
        kept = before._asdict().keys() - {"payload_json", "tags_json", "headers_json"}
        assert {name: getattr(after, name) for name in kept} == {name: getattr(before, name) for name in kept}
