"""Sixteen processes write to one store at full speed: none is refused or starves, and no job is lost."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.connection import Connection

import pytest

import holdfast
from holdfast import Done, Job, JobNotFound
from tests.chaos.engines import open_engine
from tests.chaos.processes import Child, say
from tests.chaos.threads import wait_until

pytestmark = pytest.mark.slow("sixteen processes compete for some seconds")

WRITERS = 16
LEAST = 20
"""The number of jobs that each of them enqueues at least."""


def write_until_stopped(pipe: Connection, url: str, name: str) -> None:
    """Enqueue jobs, and settle one every third time, until stopped.

    An exception, StoreBusy in particular, ends the process without its report.
    """
    queue, made, done = open_engine(url).queue, 0, list[str]()
    say(pipe)
    while not pipe.poll():
        queue.enqueue("task", {"by": name}, job_id=f"{name}-{made}")
        made += 1
        if made % 3 == 0 and (claim := queue.claim(worker=name, lease=600)) is not None:
            queue.settle(claim, Done({"by": name}))
            done.append(claim.job.id)
    queue.close()
    pipe.send((made, done))


def all_jobs(queue: holdfast.Queue) -> dict[str, Job]:
    page = queue.jobs(limit=1000)
    found = {job.id: job for job in page}
    while page.cursor is not None:
        page = queue.jobs(after=page.cursor, limit=1000)
        found.update((job.id, job) for job in page)
    return found


def _is_there(queue: holdfast.Queue, job_id: str) -> bool:
    try:
        queue.get(job_id)
    except JobNotFound:
        return False
    return True


def write_for(url: str, seconds: float) -> None:
    engine = open_engine(url)
    engine.prepare()
    names = [f"w{number}" for number in range(WRITERS)]
    writers = [Child(write_until_stopped, url, name) for name in names]
    try:
        for writer in writers:
            writer.hear()
        for writer in writers:
            writer.tell()
        time.sleep(seconds)  # the duration of the competition; nothing is measured by it
        for name in names:
            # A busy machine makes fewer calls in the time, but each writer makes progress.
            wait_until(partial(_is_there, engine.queue, f"{name}-{LEAST}"))
        for writer in writers:
            writer.tell("end")
        reports = [writer.hear() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    jobs = all_jobs(engine.queue)
    made = [count for count, _ in reports]
    done = [job_id for _, settled in reports for job_id in settled]
    assert jobs.keys() == {
        f"{name}-{number}" for name, count in zip(names, made, strict=True) for number in range(count)
    }
    assert len(done) == len(set(done))
    assert {job.id for job in jobs.values() if job.state == "done"} == set(done)
    assert engine.damage() == []
    assert min(made) * 20 > max(made), made
    engine.queue.close()


def test_sixteen_writers_all_make_progress(store_url: str) -> None:
    write_for(store_url, 1.5)


@pytest.mark.long
def test_sixteen_writers_all_make_progress_for_a_minute(store_url: str) -> None:
    write_for(store_url, 60)
