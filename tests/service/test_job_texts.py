"""The text of a job whose row was never made is the text of its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import Backoff, Done, NewJob, json_view
from holdfast.domain.job import Job, columns_of, row_of
from holdfast.domain.lazy_rows import LazyRow
from tests.support.filesystems import quick_folder
from tests.support.stores import DURABLE_ENGINES, Harness

OPTIONS: list[dict[str, Any]] = [
    {"tenant": "acme", "priority": -3, "lane": "default"},
    {"affinity": "model"},
    {"headers": {"trace": 'a "quoted" \\ value'}},
    {"tags": {"order": "42"}},
    {"delay": 60},
    {"deadline": 60},
    {"max_attempts": 9},
    {"backoff": Backoff(base=1)},
    {"events": "all"},
    {"requires": ["gpu"]},
    {"dedupe_key": "once"},
    {"job_id": 'chosen "id"'},
]


@pytest.fixture(params=DURABLE_ENGINES)
def durable(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A store of each engine."""
    with quick_folder() as folder:
        made = Harness(request.param, folder)
        made.open()
        yield made
        made.close()


def usual(jobs: Sequence[Job]) -> list[bool]:
    """Return whether each text was made without the row; compare it with that of the row, and with the stored job."""
    found = []
    for job in jobs:
        columns = columns_of(job)
        text = json_view.job_text(job)
        found.append(columns_of(job) is columns and isinstance(columns, LazyRow))
        row_of(job)
        assert json_view.job_text(job) == text
    return found


def test_texts_of_new_claimed_and_settled_jobs_are_those_of_their_rows(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue("mail")
        new = [queue.enqueue("mail", {"to": "ä"}), *queue.enqueue_many([NewJob("mail", 1), NewJob("mail", 2)])]
        assert usual([one.job for one in new]) == [True] * 3
        claims = queue.claim_many(limit=4)
        assert usual([one.job for one in queue.claim_many(limit=1)]) == []

        settled = queue.settle_many([(claim, Done({"sent": True})) for claim in claims])
        jobs = [one.job for one in settled if one.job is not None]
        assert [job.finished for job in jobs] == [True] * 4
        assert usual(jobs) == [True] * 4
        assert [json_view.job(job) for job in jobs] == [json_view.job(queue.get(job.id)) for job in jobs]
        # Made by the text of the settled job, or here.
        usual([claim.job for claim in claims])


def test_texts_of_claims_have_the_lease_without_the_row(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number) for number in range(3)])
        queue.claim()
        for claim in queue.claim_many(limit=2, acknowledged=1):
            text = json_view.claim_text(claim)
            assert isinstance(columns_of(claim.job), LazyRow)
            row_of(claim.job)
            assert json_view.claim_text(claim) == text


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_texts_of_jobs_with_an_option_are_those_of_their_rows(durable: Harness, options: dict[str, Any]) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", 1), NewJob("mail", 2, **options), NewJob("mail", 3)])
        new = [queue.enqueue("mail", 4, **(options | ({"job_id": "other"} if "job_id" in options else {})))]
        usual([one.job for one in new])
        claims = queue.claim_many(limit=9, capabilities=["gpu"])
        held = [json_view.job(claim.job) for claim in claims]
        assert held == [json_view.job(queue.get(claim.job.id)) for claim in claims]
        settled = queue.settle_many([(claim, Done()) for claim in claims])
        usual([one.job for one in settled if one.job is not None])


def test_texts_of_jobs_that_changed_while_they_ran_are_those_of_their_rows(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number) for number in range(4)])
        queue.claim()
        claims = queue.claim_many(limit=3)
        queue.progress(claims[0], phase="half", percent=50)
        queue.cancel(claims[1].job.id)
        queue.reprioritize(claims[2].job.id, 5)
        settled = queue.settle_many([(claim, Done()) for claim in claims])
        jobs = [one.job for one in settled if one.job is not None]
        usual(jobs)
        assert [json_view.job(job) for job in jobs] == [json_view.job(queue.get(job.id)) for job in jobs]
