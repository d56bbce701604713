"""Three tasks and a worker: one task succeeds, one is retried, one is deferred."""

import asyncio
import tempfile
import threading
from pathlib import Path

import holdfast
from holdfast import Backoff, Context, Defer, Tasks, Worker

tasks = Tasks()


@tasks.task("greet")
async def greet(name: str) -> str:
    await asyncio.sleep(0)  # async handlers share the worker's event loop
    return f"Hello, {name}!"


@tasks.task("page.fetch", max_attempts=3, backoff=Backoff(base=0))
def fetch(context: Context, url: str) -> str:
    if context.attempt == 1:
        raise ConnectionError("no route to host")  # sync handlers run in threads; errors are retried
    return f"{url} at attempt {context.attempt}"


@tasks.task("shop.open")
def open_shop(context: Context) -> str:
    if not context.job.deferrals:
        raise Defer(after=0.01)  # too early: reschedule the job without using up an attempt
    return f"open at attempt {context.attempt}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
        queue.include(tasks)
        jobs = [greet.enqueue("Ada"), fetch.enqueue("https://example.org"), open_shop.enqueue()]

        worker = Worker(queue, concurrency=4)
        running = threading.Thread(target=worker.run)
        running.start()
        for job in jobs:
            print(queue.wait(job.id, timeout=30).result)
        worker.stop()
        running.join()

        for outcome, count in sorted(worker.status().ended.items()):
            print(f"{outcome}: {count}")


if __name__ == "__main__":
    main()
