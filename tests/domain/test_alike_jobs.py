"""Jobs of one call that differ only in id and payload are the same as if each were validated by itself."""

from __future__ import annotations

import uuid
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import InvalidInput, NewJob
from holdfast.client import ids, validate_calls
from holdfast.domain import limits, new_job
from holdfast.domain.alike_jobs import AlikeNewJobs, as_alike, check_alike
from holdfast.domain.job import columns_of, job_of
from holdfast.domain.lazy_rows import LazyRow
from holdfast.tasks.definition import TaskTable
from holdfast.types import Now
from tests.domain.test_strict_json import REFUSED, VALUES

NOW = Now(1_700_000_000_000, 5_000)


def each(kind: str, payloads: list[Any]) -> list[new_job.CheckedJob]:
    jobs = [NewJob(kind, payload) for payload in payloads]
    return [new_job.check_job(one, fresh_id=str(index)) for index, one in enumerate(jobs)]


def together(kind: str, payloads: list[Any]) -> AlikeNewJobs | None:
    return check_alike(kind, payloads, [str(index) for index in range(len(payloads))])


@given(st.lists(VALUES, max_size=4))
def test_they_are_validated_as_single_ones(payloads: list[Any]) -> None:
    found = together("work", payloads)

    if all(len(new.payload_json) <= 100 for new in each("work", [[one] for one in payloads])):
        assert found is not None or any(map(_is_deep, payloads))
    if found is not None:
        assert list(found) == each("work", payloads)


def _is_deep(value: Any, levels: int = 4) -> bool:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return levels == 0 or any(_is_deep(one, levels - 1) for one in inner)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_refused_payload_is_named_by_the_index_of_its_job(number: int) -> None:
    payload, field = REFUSED[number]
    assert together("work", [1, payload]) is None
    with pytest.raises(InvalidInput) as refusal:
        validate_calls.jobs([{"kind": "work", "payload": 1}, {"kind": "work", "payload": payload}], TaskTable())
    assert refusal.value.field == f"jobs[1].{field}"


def test_a_long_payload_is_looked_at_by_itself() -> None:
    assert together("work", ["x" * (limits.INTEGER_DIGITS_MAX - 2)]) is not None
    assert together("work", ["x" * limits.INTEGER_DIGITS_MAX]) is None


@pytest.mark.parametrize(
    "other",
    [
        NewJob("work", 2),
        {"kind": "work", "payload": 2, "priority": 1},
        {"kind": "other", "payload": 2},
        {"kind": "work"},
    ],
)
def test_other_jobs_are_validated_one_by_one(other: Any) -> None:
    jobs = [{"kind": "work", "payload": 1}, other]

    checked = validate_calls.jobs(jobs, TaskTable())

    assert isinstance(checked, list)
    assert checked == [new_job.check_job(one, fresh_id=new.id) for one, new in zip(jobs, checked, strict=True)]


@pytest.mark.parametrize("kind", ["", 1, new_job.SYSTEM_KIND, ["work"], None])
def test_an_invalid_kind_is_named_by_the_index_of_its_job(kind: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        validate_calls.jobs([{"kind": kind, "payload": 1}] * 2, TaskTable())
    assert refusal.value.field == "jobs[0].kind"


def test_their_rows_are_those_of_single_jobs() -> None:
    payloads = [None, {"to": "ada@example.org"}]
    found = together("work", payloads)
    assert found is not None

    jobs = found.stored([7, 9], "default", NOW)

    expected = [
        job_of(new_job.NewRow(new, seq, "default", NOW))
        for new, seq in zip(each("work", payloads), [7, 9], strict=True)
    ]
    known = attrgetter("number", "id", "kind", "lane", "tenant", "payload")
    assert list(map(known, jobs)) == list(map(known, expected))
    for one, other in zip(map(columns_of, jobs), map(columns_of, expected), strict=True):
        assert isinstance(one, LazyRow)
        assert isinstance(other, LazyRow)
        assert one.usual() == other.usual() is not None
    assert list(jobs) == expected
    assert jobs[0] is jobs[0]


def test_validated_jobs_are_alike_if_only_ids_and_payloads_differ() -> None:
    jobs = [new_job.check_job(NewJob("work", nth, priority=3), fresh_id=str(nth)) for nth in range(3)]

    assert (found := as_alike(jobs)) is not None
    assert [new[:3] for new in found] == [new[:3] for new in jobs]
    assert found[-1] == list(found)[2]
    assert as_alike(found) is found
    changes: list[dict[str, Any]] = [{"priority": 4}, {"job_id": "a"}, {"dedupe_key": "a"}, {"after": ["a"]}]
    for change in changes:
        other = new_job.check_job({"kind": "work", "priority": 3, **change}, fresh_id="other")
        assert as_alike([*jobs, other]) is None


def test_ids_of_one_call_ascend_and_are_all_different() -> None:
    found = ids.job_ids(1_000)

    assert found == sorted(set(found))
    assert len(found) == 1_000
    assert {(len(one), uuid.UUID(one).version, uuid.UUID(one).variant) for one in found} == {(36, 7, uuid.RFC_4122)}
    assert ids.job_ids(0) == []
