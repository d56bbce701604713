"""Runs the chaos test: starts, kills and stops processes, drains the store and collects the history."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import Done, Job
from holdfast.types import Event
from tests.chaos.actor import LIMITED, act_until_stopped, claimed, settled
from tests.chaos.checker import History
from tests.chaos.engines import Engine, open_engine
from tests.chaos.history import Act, Recorder, acts_in, codes_in
from tests.chaos.processes import PATIENCE_SECONDS, Child
from tests.chaos.reader import pages, read_until_drained

# Longer than every lease: a stopped process resumes with stale claims.
STOPPED_SECONDS = (0.6, 1.0)
AT_ONCE = 3
UNFINISHED = ("scheduled", "blocked", "parked", "ready", "running")


class Conductor:
    """Runs *count* actors and a reader on the store at *url*; *seed* determines all random choices."""

    def __init__(self, url: str, folder: Path, seed: int, count: int) -> None:
        self.engine: Engine = open_engine(url)
        self.kills = self.stops = 0
        self._url = url
        self._folder = folder
        self._seed = seed
        self._chance = random.Random(seed)
        self._started = 0
        self.engine.prepare()
        self.engine.queue.limits.set("at once", kinds=[LIMITED], key="tenant", concurrency=AT_ONCE)
        self._reader = self._start(read_until_drained, "reader")
        self._actors = [self._start_actor() for _ in range(count)]

    # --- processes -------------------------------------------------------------------------------------------------

    def _start_actor(self) -> Child:
        self._started += 1
        return self._start(act_until_stopped, f"actor{self._started}")

    def _start(self, body: Callable[..., None], name: str) -> Child:
        return Child(body, self._url, self._folder, name, f"{self._seed} {name}")

    def conduct(self, seconds: float) -> None:
        """Kill and stop processes for *seconds*."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self._chance.uniform(0.05, 0.4))
            self._chance.choice([self._kill_actor, self._kill_actor, self._stop_actor, self._kill_reader])()

    def _kill_actor(self) -> None:
        place = self._chance.randrange(len(self._actors))
        self._end(self._actors[place])
        self._actors[place] = self._start_actor()

    def _kill_reader(self) -> None:
        self._end(self._reader)
        self._reader = self._start(read_until_drained, "reader")

    def _end(self, process: Child) -> None:
        assert not process.has_ended, "a process ended by itself: " + self.errors()
        process.kill()
        self.kills += 1

    def _stop_actor(self) -> None:
        """Stop one actor past its lease while the others run, then resume it."""
        stopped = self._chance.choice(self._actors)
        assert not stopped.has_ended, "a process ended by itself: " + self.errors()
        stopped.stop()
        time.sleep(self._chance.uniform(*STOPPED_SECONDS))
        stopped.resume()
        self.stops += 1

    def errors(self) -> str:
        """Return the standard error of the processes."""
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.errors")))

    # --- draining --------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Wait for all processes to exit, and finish every job."""
        (self._folder / "stop").touch()
        for actor in self._actors:
            self._join(actor)
        self._drain()
        (self._folder / "drained").touch()
        self._join(self._reader)

    def _join(self, process: Child) -> None:
        try:
            process.end()
        except AssertionError as error:
            error.add_note(self.errors())
            raise

    def _drain(self) -> None:
        """Process all remaining jobs. Leases of killed processes, which are short, must expire first."""
        queue, recorder = self.engine.queue, Recorder(self._folder / "drain.log", "drain")
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            call = recorder.announce([])
            claims = queue.claim_many(worker="drain", lease=30)
            recorder.acknowledge(call, [claimed(claim) for claim in claims])
            for claim in claims:
                call = recorder.announce([])
                recorder.acknowledge(call, settled(claim, Done(), queue.settle(claim, Done())))
            if not claims:
                if not any(queue.counts().get(state) for state in UNFINISHED):
                    return
                time.sleep(0.02)

    def kill_all(self) -> None:
        """Kill all processes."""
        for process in [self._reader, *self._actors]:
            process.kill()

    # --- history ---------------------------------------------------------------------------------------------------

    def history(self) -> History:
        """Return the records of the processes and the contents of the store."""
        return History(
            acts=self.acts(),
            jobs=self._jobs(),
            events=self._events(),
            seen=pages(self._folder)[0],
            ledger=self.engine.ledger(),
            at_once={LIMITED: AT_ONCE},
            one_writer=self.engine.one_writer,
        )

    def acts(self) -> list[Act]:
        """Return the acts recorded so far."""
        logs = [path for path in sorted(self._folder.glob("*.log")) if path.name != "events.log"]
        return [act for path in logs for act in acts_in(path)]

    def codes(self) -> set[str]:
        """Return the codes of all refusals and failures."""
        return {code for path in self._folder.glob("*.log") for code in codes_in(path)}

    def _jobs(self) -> dict[str, Job]:
        found: dict[str, Job] = {}
        page = self.engine.queue.jobs(limit=1000)
        found.update((job.id, job) for job in page)
        while page.cursor is not None:
            page = self.engine.queue.jobs(after=page.cursor, limit=1000)
            found.update((job.id, job) for job in page)
        return found

    def _events(self) -> list[Event]:
        found: list[Event] = []
        cursor = None
        while page := self.engine.queue.events(after=cursor, limit=1000).events:
            found += page
            cursor = page[-1].cursor
        return found
