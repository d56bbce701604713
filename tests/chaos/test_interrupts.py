"""Ctrl-C at any time, hundreds of times: no other thread or process hangs, and no acknowledged job is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from multiprocessing.connection import Connection

import pytest

import holdfast
from tests.chaos.engines import open_engine
from tests.chaos.processes import PATIENCE_SECONDS, Child
from tests.chaos.test_writers import all_jobs, write_until_stopped

pytestmark = pytest.mark.slow("a process is interrupted at random times for some seconds")

INTERRUPTS = 150


class Interrupted:
    """A process whose main thread is interrupted repeatedly while it and three other threads enqueue."""

    def __init__(self, url: str) -> None:
        self.queue: holdfast.Queue = open_engine(url).queue
        self.made: list[str] = []
        self.errors: list[str] = []
        self.interrupts = 0
        self.expected = False
        self.ended = threading.Event()

    def work_on(self, name: str) -> None:
        number = 0
        try:
            while not self.ended.is_set():
                self._enqueue(f"{name}-{number}")
                number += 1
        except holdfast.HoldfastError as error:
            self.errors.append(repr(error))

    def interrupt(self, _number: int, _frame: object) -> None:
        """Handle the signal: raise only where it is expected, and only once."""
        if self.expected:
            self.expected = False
            raise KeyboardInterrupt

    def work_until(self, quiet: threading.Event) -> None:
        number = 0
        while not quiet.is_set():
            try:
                self.expected = True
                while not quiet.is_set():
                    number += 1
                    self._enqueue(f"main-{number}")
                self.expected = False
            except KeyboardInterrupt:
                self.interrupts += 1
            except holdfast.HoldfastError as error:
                self.errors.append(repr(error))

    def _enqueue(self, job_id: str) -> None:
        self.queue.enqueue("task", job_id=job_id)
        self.made.append(job_id)


def be_interrupted(pipe: Connection, url: str, seed: int) -> None:
    process, chance = Interrupted(url), random.Random(seed)
    threads = [threading.Thread(target=process.work_on, args=(f"t{n}",), daemon=True) for n in range(3)]
    quiet = threading.Event()

    def disturb() -> None:
        while process.interrupts < INTERRUPTS:
            time.sleep(chance.random() * 0.01)
            os.kill(os.getpid(), signal.SIGUSR1)
        quiet.set()

    signal.signal(signal.SIGUSR1, process.interrupt)
    for thread in [*threads, threading.Thread(target=disturb, daemon=True)]:
        thread.start()
    process.work_until(quiet)
    process.ended.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    pipe.send((process.made, process.interrupts, process.errors, [thread.is_alive() for thread in threads]))


def test_interrupts_affect_neither_threads_nor_other_processes(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    writer = Child(write_until_stopped, store_url, "other")
    with writer as other, Child(be_interrupted, store_url, seed) as interrupted:
        other.hear()
        other.tell()
        made, interrupts, errors, alive = interrupted.hear()
        other.tell("end")
        count, _ = other.hear()
    assert interrupts >= INTERRUPTS
    assert errors == []
    assert not any(alive)
    jobs = all_jobs(engine.queue)
    assert {*made, *(f"other-{number}" for number in range(count))} <= jobs.keys()
    assert engine.damage() == []
    engine.queue.close()
