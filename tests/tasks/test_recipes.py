"""The recipes of the docs, run by many threads at once on both engines: no step is lost and none happens twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.project.sources import DOCS
from tests.project.test_docs_examples import _blocks
from tests.support.postgres_server import fresh_database

BOOKS, PAGES = 25, 4


class Recipe:
    """The part of a page between two of its lines, as a program on a queue of one engine."""

    def __init__(self, queue: holdfast.Queue, engine: str) -> None:
        self.queue = queue
        self._engine = engine

    def run(self, page: str, *, marker: str, until: str) -> dict[str, Any]:
        """Run the block of *page* that contains *marker* up to the line that starts with *until*."""
        [text] = [block.text for block in _blocks(DOCS / page) if marker in block.text]
        text = text[: text.index(until)]
        text = "\n".join(line for line in text.splitlines() if not line.startswith("queue = "))
        if self._engine == "postgres":
            text = text.replace("?", "%s")
        names: dict[str, Any] = {"queue": self.queue, "Context": holdfast.Context, "__name__": "recipe"}
        exec(compile(text, page, "exec", dont_inherit=True), names)
        return names

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run a worker with eight threads for a block."""
        worker = holdfast.Worker(self.queue, concurrency=8)
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            yield
        finally:
            worker.stop()
            running.join()


@pytest.fixture(params=["sqlite", "postgres"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recipe]:
    if request.param == "sqlite":
        with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
            yield Recipe(queue, request.param)
        return
    with fresh_database() as url, holdfast.connect(url) as queue:
        yield Recipe(queue, request.param)


def wait_until(queue: holdfast.Queue, counts: dict[str, int]) -> None:
    """Wait until the queue has *counts* jobs in each state, and no others."""
    deadline = time.monotonic() + 60
    while queue.counts() != counts and time.monotonic() < deadline:
        time.sleep(0.02)
    assert queue.counts() == counts


def test_pages_that_settle_together_publish_each_book_exactly_once(recipe: Recipe) -> None:
    names = recipe.run("pipelines.md", marker="book.scan", until="scan.enqueue(")
    titles = [f"book {number}" for number in range(BOOKS)]

    with recipe.worker():
        recipe.queue.enqueue_many([names["scan"].new(title, PAGES) for title in titles])
        wait_until(recipe.queue, {"done": BOOKS * (1 + PAGES + 1)})

    published = recipe.queue.jobs(kind="book.publish", limit=1_000)
    assert Counter(job.payload["title"] for job in published) == Counter(titles)


def test_credits_that_settle_together_are_each_counted_exactly_once(recipe: Recipe) -> None:
    names = recipe.run("exactly-once.md", marker="account.credit", until="worker = ")

    with recipe.worker():
        recipe.queue.enqueue_many([names["credit"].new("ada", 1) for _ in range(BOOKS * PAGES)])
        # Each credit enqueues one mail, of a kind that this worker does not take.
        wait_until(recipe.queue, {"done": BOOKS * PAGES, "ready": BOOKS * PAGES})

    with recipe.queue.transaction() as transaction:
        assert transaction.execute("select cents from account") == [(BOOKS * PAGES,)]
