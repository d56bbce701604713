"""A pipeline of follow-ups: extract documents, embed and index their pages, then publish each document once.

Each step enqueues the next in the commit that settles it. Every indexed page decrements a counter in its own
transaction, and the last page enqueues the publishing. With drain="listed" the worker prefers the steps listed first,
so it finishes documents before it starts more.
"""

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Literal

import holdfast
from holdfast import Context, Tasks, Worker

DOCUMENTS, PAGES = 8, 3

tasks = Tasks()
done: list[str] = []
published: list[int] = []


@tasks.task("document.extract")
def extract(context: Context, document: int) -> None:
    for page in range(PAGES):
        context.follow_up(embed.new(document, page))
    with context.transaction() as transaction:
        transaction.execute("insert into document (number, pages_left) values (?, ?)", (document, PAGES))
    done.append("extract")


@tasks.task("page.embed")
def embed(context: Context, document: int, page: int) -> None:
    context.follow_up(index.new(document, page, vector=[0.1, 0.2]))
    done.append("embed")


@tasks.task("page.index")
def index(context: Context, document: int, page: int, vector: list[float]) -> str:
    with context.transaction() as transaction:
        # The statement locks the row: pages that end at the same time are counted one after the other.
        [(left,)] = transaction.execute(
            "update document set pages_left = pages_left - 1 where number = ? returning pages_left", (document,)
        )
        if left == 0:
            context.follow_up(publish.new(document))
    done.append("index")
    return f"page {page} of document {document} in {len(vector)} dimensions"


@tasks.task("document.publish")
def publish(document: int) -> None:
    published.append(document)


def run(queue: holdfast.Queue, drain: Literal["oldest", "listed"]) -> None:
    queue.include(tasks, again=True)
    with queue.transaction() as transaction:
        transaction.execute("create table document (number integer primary key, pages_left integer not null)")
    queue.enqueue_many([extract.new(document) for document in range(DOCUMENTS)])

    # The worker prefers kinds that are listed first.
    kinds = ["document.publish", "page.index", "page.embed", "document.extract"]
    worker = Worker(queue, kinds=kinds, drain=drain, concurrency=1)
    running = threading.Thread(target=worker.run)
    running.start()
    while worker.status().ended.get("done", 0) < DOCUMENTS * (2 + 2 * PAGES):
        running.join(0.01)
    worker.stop()
    running.join()


def most_pages_waiting() -> int:
    """Return the maximum number of pages that waited between two steps."""
    finished: Counter[str] = Counter()
    most = 0
    for step in done:
        finished[step] += 1
        to_embed = finished["extract"] * PAGES - finished["embed"]
        most = max(most, to_embed + finished["embed"] - finished["index"])
    return most


def main() -> None:
    drains: list[Literal["oldest", "listed"]] = ["oldest", "listed"]
    for drain in drains:
        done.clear()
        published.clear()
        with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
            run(queue, drain)
        first = done.index("index") + 1
        waiting = most_pages_waiting()
        print(f"{drain}: step {first} of {len(done)} indexes the first page; at most {waiting} pages wait half done")
        print(f"{drain}: published {sorted(published)}")


if __name__ == "__main__":
    main()
