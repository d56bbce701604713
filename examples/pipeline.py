"""A pipeline by follow-ups: documents are extracted, their pages embedded and indexed, then each is published once.

Each step enqueues the next in the commit that settles it. The page that is indexed last enqueues the publishing:
every page decreases a counter in its own transaction. With drain="listed" the worker prefers the steps named first,
so that it finishes documents before it starts more.
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
        # One statement that counts and locks: pages which end together are counted one after the other.
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

    # The last step is named first, so that it is preferred.
    kinds = ["document.publish", "page.index", "page.embed", "document.extract"]
    worker = Worker(queue, kinds=kinds, drain=drain, concurrency=1)
    running = threading.Thread(target=worker.run)
    running.start()
    while worker.status().ended.get("done", 0) < DOCUMENTS * (2 + 2 * PAGES):
        running.join(0.01)
    worker.stop()
    running.join()


def waited() -> int:
    """Return how many pages waited at most between two steps, by the order in which these were done."""
    begun: Counter[str] = Counter()
    most = 0
    for step in done:
        begun[step] += 1
        to_embed = begun["extract"] * PAGES - begun["embed"]
        most = max(most, to_embed + begun["embed"] - begun["index"])
    return most


def main() -> None:
    drains: list[Literal["oldest", "listed"]] = ["oldest", "listed"]
    for drain in drains:
        done.clear()
        published.clear()
        with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
            run(queue, drain)
        first = done.index("index") + 1
        print(f"{drain}: step {first} of {len(done)} indexes the first page; at most {waited()} pages wait half done")
        print(f"{drain}: published {sorted(published)}")


if __name__ == "__main__":
    main()
