"""A pipeline by follow-ups: documents are extracted, their pages embedded, then indexed.

Each step hands on to the next in the commit that settles it. With drain="listed" the worker prefers the steps named
first, so that what has begun is brought to its end before more is begun.
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


@tasks.task("document.extract")
def extract(context: Context, document: int) -> None:
    for page in range(PAGES):
        context.follow_up(embed.new(document, page))
    done.append("extract")


@tasks.task("page.embed")
def embed(context: Context, document: int, page: int) -> None:
    context.follow_up(index.new(document, page, vector=[0.1, 0.2]))
    done.append("embed")


@tasks.task("page.index")
def index(document: int, page: int, vector: list[float]) -> str:
    done.append("index")
    return f"page {page} of document {document} in {len(vector)} dimensions"


def run(queue: holdfast.Queue, drain: Literal["oldest", "listed"]) -> None:
    queue.include(tasks, again=True)
    queue.enqueue_many([extract.new(document) for document in range(DOCUMENTS)])

    # The last step is named first: whatever can be finished is.
    worker = Worker(queue, kinds=["page.index", "page.embed", "document.extract"], drain=drain, concurrency=1)
    running = threading.Thread(target=worker.run)
    running.start()
    while worker.status().ended.get("done", 0) < DOCUMENTS * (1 + 2 * PAGES):
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
        with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
            run(queue, drain)
        first = done.index("index") + 1
        print(f"{drain}: job {first} of {len(done)} indexes the first page; at most {waited()} pages wait half done")


if __name__ == "__main__":
    main()
