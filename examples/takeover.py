"""Two workers and one job: the lease of the first expires, the second takes over, late writes are refused."""

import tempfile
import time
from pathlib import Path

import holdfast
from holdfast import Done, LeaseLost


def take(queue: holdfast.Queue, worker: str, lease: float) -> holdfast.Claim:
    claim = queue.claim(kinds=["render"], worker=worker, lease=lease)
    if claim is None:
        raise SystemExit(f"{worker} found nothing to do")
    print(f"{worker} holds the job at epoch {claim.epoch}")
    return claim


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
        enqueued = queue.enqueue("render", {"frame": 7})

        stale = take(queue, "first", lease=0.1)
        time.sleep(0.2)  # no heartbeat: the lease expires
        live = take(queue, "second", lease=30)

        for write in (queue.heartbeat, lambda claim: queue.settle(claim, Done("by the first"))):
            try:
                write(stale)
            except LeaseLost as error:
                print(f"first is refused: {error.why}")
        queue.settle(live, Done("by the second"))

        print(f"the result is {queue.get(enqueued.id).result!r}")
        for attempt in queue.attempts(enqueued.id):
            print(f"attempt {attempt.number} by {attempt.worker}: {attempt.outcome}")


if __name__ == "__main__":
    main()
