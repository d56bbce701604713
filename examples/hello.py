"""Enqueue a job, claim it, settle it."""

import tempfile
from pathlib import Path

import holdfast
from holdfast import Done


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
        enqueued = queue.enqueue("greet", {"name": "Ada"})
        print(f"enqueued {enqueued.job.kind}, it is {enqueued.job.state}")

        claim = queue.claim(kinds=["greet"], worker="greeter-1", lease=30)
        if claim is None:
            raise SystemExit("nothing to do")
        greeting = f"Hello, {claim.job.payload['name']}!"
        queue.settle(claim, Done({"greeting": greeting}))

        job = queue.wait(enqueued.id, timeout=5)
        print(f"it is {job.state}: {job.result['greeting']}")


if __name__ == "__main__":
    main()
