"""A queue in ordinary use, with a note before each call of the request, and after it of the result."""

from __future__ import annotations

import json
import threading
from typing import Any, Literal

import holdfast
from tests.sqlite.faults.history import received
from tests.sqlite.faults.interception import Action, Call, Interception

_LARGE = 60_000


def ordinary_use(
    interception: Interception,
    *,
    folder: str,
    log: str,
    rounds: int,
    durability: Literal["full", "relaxed"],
    huge: bool,
) -> None:
    """Use a queue for *rounds* rounds, closing and opening it in between; *huge* makes the log long once."""
    interception.watch(folder)
    interception.record(log)
    path = f"{folder}/jobs.db"
    queue = holdfast.connect(path, durability=durability)
    queue.migrate()
    for number in range(rounds):
        use = _Round(interception, queue, number)
        use.enqueue()
        use.work()
        use.threads()
        if number % 4 == 3:
            queue.close()
            queue = holdfast.connect(path, durability=durability)
    if huge:
        _Round(interception, queue, rounds).batch(20, 900_000)
        _Round(interception, queue, rounds + 1).enqueue()


def use_with_failing_syncs(interception: Interception, folder: str, log: str, suffix: str, payload_bytes: int) -> int:
    """Enqueue while some syncs fail, repeating unconfirmed calls; return how many failed."""
    interception.watch(folder)
    interception.record(log)
    queue = holdfast.connect(f"{folder}/jobs.db")
    queue.migrate()
    failed = [False]
    for number in range(50):
        if not failed[-1]:
            interception.arm(Call.SYNC, Action.FAIL, 1, suffix=suffix)
        interception.note(received([_insist(queue, f"job-{number}", payload_bytes).job]))
        failed.append(bool(interception.disarm()))
    return sum(failed)


def _insist(queue: holdfast.Queue, job_id: str, payload_bytes: int) -> holdfast.types.Enqueued[Any]:
    for _ in range(3):
        try:
            return queue.enqueue("mail", "x" * payload_bytes, job_id=job_id)
        except holdfast.Unavailable:
            continue
    raise AssertionError(f"{job_id} was refused again and again")


class _Round:
    def __init__(self, interception: Interception, queue: holdfast.Queue, number: int) -> None:
        self.note = interception.note
        self.queue = queue
        self.name = f"r{number}"

    def enqueue(self) -> None:
        self._enqueue("single")
        self._enqueue("keyed", dedupe_key="key")
        self._enqueue("later", delay=3600)
        self._enqueue("unwanted")
        self.batch(6, _LARGE)
        self.note(received([self.queue.cancel(f"{self.name}-unwanted")]))

    def _enqueue(self, suffix: str, **options: object) -> None:
        made = self.queue.enqueue("mail", {"for": suffix}, job_id=f"{self.name}-{suffix}", **options)  # type: ignore[arg-type]
        self.note(received([made.job]))

    def batch(self, count: int, payload_bytes: int) -> None:
        jobs = [
            {"kind": "mail", "payload": "x" * payload_bytes, "job_id": f"{self.name}-batch-{place}"}
            for place in range(count)
        ]
        self.note(json.dumps({"batch": [job["job_id"] for job in jobs]}))
        self.note(received(made.job for made in self.queue.enqueue_many(jobs)))

    def work(self) -> None:
        claims = self.queue.claim_many(limit=6, lease=3600)
        self.note(received(claim.job for claim in claims))
        first, second, third, *others = claims
        self._finish(first)
        self.note(received([self.queue.settle(second, holdfast.Failed("broken", permanent=True))]))
        self.note(received([self.queue.settle(third, holdfast.Failed("again", retry_after=0))]))
        answer = self.queue.settle_and_claim([(claim, holdfast.Done("ok")) for claim in others], limit=2, lease=3600)
        self.note(received(settled.job for settled in answer.settlements if settled.job))
        self.note(received(claim.job for claim in answer.claims))
        for claim in answer.claims:
            self._finish(claim)

    def _finish(self, claim: holdfast.Claim) -> None:
        follow_ups = [f"{claim.job.id}-{claim.epoch}-then-{place}" for place in range(2)]
        self.note(json.dumps({"follow_ups": {claim.job.id: follow_ups}}))
        done = holdfast.Done(
            {"ok": True},
            follow_ups=[{"kind": "then", "job_id": job_id, "delay": 3600} for job_id in follow_ups],
            artifacts=[holdfast.Artifact("report", b"y" * 5_000)],
        )
        self.note(received([self.queue.settle(claim, done)]))

    def threads(self) -> None:
        """Let several threads enqueue at the same time, so that they share a commit."""
        threads = [threading.Thread(target=self._enqueue, args=(f"thread-{place}",)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
