"""Sixteen processes write to one store as fast as they can: nobody is refused or starves, and nothing is lost."""

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
"""So many jobs each of them makes, however long that takes."""


def write_until_told(pipe: Connection, url: str, name: str) -> None:
    """Enqueue one job after another, and every third time settle one, until told to end.

    Whatever is raised, StoreBusy above all, ends the process without its report.
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
    writers = [Child(write_until_told, url, name) for name in names]
    try:
        for writer in writers:
            writer.hear()
        for writer in writers:
            writer.tell()
        time.sleep(seconds)  # a time in which they compete, not a time they are measured by
        for name in names:
            # A busy machine gets less done in the time, but each writer gets its turn.
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


def test_sixteen_writers_all_get_their_turn(store_url: str) -> None:
    write_for(store_url, 1.5)


@pytest.mark.long
def test_sixteen_writers_all_get_their_turn_for_a_minute(store_url: str) -> None:
    write_for(store_url, 60)
