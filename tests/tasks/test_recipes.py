"""The recipes of the docs, run by many threads at once on both engines: no step is lost and none happens twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

import holdfast
import holdfast.testing
from tests.chaos.processes import PATIENCE_SECONDS
from tests.project.sources import DOCS
from tests.project.test_docs_examples import _blocks
from tests.support.postgres_schemas import migrated_schema
from tests.support.postgres_server import database_url

BOOKS, PAGES = 10, 4
THREADS = 8
# The page on transactions stores orders from here on.
INSERTS = 'with queue.transaction() as tx:\n    tx.execute("insert'

T = TypeVar("T")


class Recipe:
    """Code of a page, as a program on a queue of one engine."""

    def __init__(self, queue: holdfast.Queue, engine: str) -> None:
        self.queue = queue
        self.engine = engine

    def code(self, page: str, *, marker: str, start: str = "", until: str | None = None) -> str:
        """Return the block of *page* that contains *marker*, from *start* to *until*, without opening a queue."""
        [text] = [block.text for block in _blocks(DOCS / page) if marker in block.text]
        text = text[text.index(start) : None if until is None else text.index(until)]
        return "\n".join(line for line in text.splitlines() if not line.startswith("queue = "))

    def execute(self, code: str) -> dict[str, Any]:
        """Execute *code* and return the names that it has defined."""
        names: dict[str, Any] = {"queue": self.queue, **vars(holdfast.testing), "__name__": "recipe"}
        names |= {name: getattr(holdfast, name) for name in ("Context", "Done", "LeaseLost")} | {"holdfast": holdfast}
        exec(compile(code, "recipe", "exec", dont_inherit=True), names)
        return names

    def run(self, page: str, *, marker: str, until: str | None = None) -> dict[str, Any]:
        """Execute the block of *page* that contains *marker*, up to *until*, and return the names it has defined."""
        return self.execute(self.code(page, marker=marker, until=until))

    def worker(self, **options: Any) -> AbstractContextManager[holdfast.Worker]:
        """Run a worker with eight threads for a block."""
        return holdfast.Worker(self.queue, concurrency=THREADS, **options).running()


def at_once(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Make the calls in threads that start together, and return their results."""
    all_calls = list(calls)
    start = threading.Barrier(len(all_calls))

    def called(call: Callable[[], T]) -> T:
        start.wait(PATIENCE_SECONDS)
        return call()

    with ThreadPoolExecutor(len(all_calls)) as threads:
        return list(threads.map(called, all_calls))


@pytest.fixture(params=["sqlite", "postgres"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recipe]:
    if request.param == "sqlite":
        with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
            yield Recipe(queue, request.param)
        return
    with migrated_schema() as schema:
        # The tables of the recipes are in the schema of the queue, and are dropped with its rows.
        url = f"{database_url()}?options={quote(f'-csearch_path={schema}')}"
        with holdfast.connect(url, schema=schema) as queue:
            yield Recipe(queue, request.param)


def wait_until(queue: holdfast.Queue, counts: dict[str, int]) -> None:
    """Wait until the queue has *counts* jobs in each state, and no others."""
    deadline = time.monotonic() + PATIENCE_SECONDS
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
    names = recipe.run("exactly-once.md", marker="account.credit", until="with Worker")

    with recipe.worker():
        recipe.queue.enqueue_many([names["credit"].new("ada", 1) for _ in range(BOOKS * PAGES)])
        # Each credit enqueues one mail, of a kind that this worker does not take.
        wait_until(recipe.queue, {"done": BOOKS * PAGES, "ready": BOOKS * PAGES})

    with recipe.queue.transaction() as transaction:
        assert transaction.execute("select cents from account") == [(BOOKS * PAGES,)]


def test_steps_that_hand_on_together_each_happen_exactly_once(recipe: Recipe) -> None:
    names = recipe.run("pipelines.md", marker='@queue.task("document.extract")')
    documents = [f"document {number}" for number in range(BOOKS)]

    with recipe.worker():
        recipe.queue.enqueue_many([names["extract"].new(document) for document in documents])
        wait_until(recipe.queue, {"done": BOOKS * (1 + 3 + 3)})

    indexed = recipe.queue.jobs(kind="page.index", limit=1_000)
    assert Counter(job.result for job in indexed) == Counter(
        f"{document}, page {page}" for document in documents for page in range(3)
    )


def test_orders_and_their_jobs_are_stored_and_settled_together(recipe: Recipe) -> None:
    recipe.run(
        "transactions.md",
        marker="create table if not exists",
        until=INSERTS,
    )
    paid = recipe.code(
        "transactions.md",
        marker="create table if not exists",
        start=INSERTS,
        until="print(",
    )
    refused = recipe.code("transactions.md", marker="the card was refused", until="print(")
    settled = recipe.code(
        "transactions.md",
        marker='claim = queue.claim(kinds=["invoice.send"]',
        until="with queue.transaction() as tx:\n    print(",
    )
    orders = range(1, 1 + 2 * THREADS)

    codes = [paid.replace("42", str(n)) if n % 4 else refused.replace("43", str(n)) for n in orders]
    at_once(partial(recipe.execute, code) for code in codes)
    placed = [number for number in orders if number % 4]
    assert sorted(job.payload["order"] for job in recipe.queue.jobs()) == placed

    at_once(partial(recipe.execute, settled) for _ in placed)
    assert recipe.queue.counts() == {"done": len(placed)}
    with recipe.queue.transaction() as transaction:
        stored = transaction.execute("select number, state from orders order by number")
    assert stored == [(number, "invoiced") for number in placed]


def test_payments_that_join_a_transaction_of_the_caller_are_each_stored_once(tmp_path: Path) -> None:
    # The page shows this for the file of a SQLite database.
    path = tmp_path / "shop.db"
    with holdfast.connect(str(path)) as queue:
        recipe = Recipe(queue, "sqlite")
        recipe.run(
            "transactions.md",
            marker="create table if not exists",
            until=INSERTS,
        )
        pay = recipe.execute(
            recipe.code("transactions.md", marker="async def pay(", until="async def main(").replace(
                "shop.db", str(path)
            )
        )["pay"]

        async def pay_all() -> None:
            async with holdfast.connect_async(str(path)) as awaited:
                await asyncio.gather(*(pay(awaited, number) for number in range(THREADS)))

        asyncio.run(pay_all())
        with queue.transaction() as transaction:
            stored = [number for (number,) in transaction.execute("select number from orders order by number")]
        assert stored == sorted(job.payload["order"] for job in queue.jobs()) == list(range(THREADS))


def test_a_page_keeps_what_the_newest_holder_wrote_however_late_others_write(recipe: Recipe, tmp_path: Path) -> None:
    code = recipe.code("idempotency.md", marker="excluded.epoch", until="# A first worker").replace(
        "pages.db", str(tmp_path / "pages.db")
    )
    names = recipe.execute(code)
    urls = [f"https://example.org/{number}" for number in range(THREADS)]
    recipe.queue.enqueue_many([names["fetch"].new(url) for url in urls])
    stale = recipe.queue.claim_many(limit=THREADS, worker="first", lease=0.01)

    with recipe.worker():
        late = at_once(partial(write_until_refused, names["write"], claim) for claim in stale)
        wait_until(recipe.queue, {"done": THREADS})

    assert late == [False] * THREADS
    rows = names["pages"].execute("select url, body, epoch from page order by url").fetchall()
    assert rows == [(url, "by attempt 2", 2) for url in urls]
    names["pages"].close()


def write_until_refused(write: Callable[[str, str, int], bool], claim: holdfast.Claim) -> bool:
    """Write again and again what a holder that lost its lease would write, until the newer attempt has written."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (written := write(claim.job.payload["url"], "by attempt 1", claim.epoch)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return written


def test_messages_of_many_conversations_are_each_answered_once_and_in_order(recipe: Recipe) -> None:
    answer = recipe.run("sessions.md", marker="class Message", until="for text in")["answer"]
    message = recipe.run("sessions.md", marker="class Message", until="@queue.session_task")["Message"]
    sent = {f"chat-{number}": [f"{number}.{position}" for position in range(6)] for number in range(THREADS)}

    def talk(session: str) -> None:
        for text in sent[session]:
            answer.enqueue(message(text), session=session)

    with recipe.worker():
        at_once(partial(talk, session) for session in sent)
        wait_until(recipe.queue, {"done": sum(map(len, sent.values()))})

    for session, texts in sent.items():
        jobs = sorted(recipe.queue.jobs(session=session), key=lambda job: job.number)
        turns = dict.fromkeys(job.result for job in jobs)
        assert " + ".join(turns).split(" + ") == texts
        assert all(job.payload["text"] in job.result.split(" + ") for job in jobs)


def test_a_source_that_sends_a_message_from_many_places_stores_it_once(recipe: Recipe) -> None:
    code = recipe.code("sessions.md", marker='message_id="telegram-9981"', until="print(")
    results = at_once([partial(recipe.execute, code)] * THREADS)
    assert sum(names["enqueued"].created + names["again"].created for names in results) == 1


def test_an_id_that_is_enqueued_from_many_places_makes_one_job(recipe: Recipe) -> None:
    code = recipe.code("concepts.md", marker='job_id="invoice-7"', until="print(")
    results = at_once([partial(recipe.execute, code)] * THREADS)
    assert sum(names["first"].created + names["again"].created for names in results) == 1


def test_loops_that_settle_and_claim_share_the_jobs(recipe: Recipe) -> None:
    handle = recipe.code("claiming.md", marker="def handle(", until="queue.enqueue_many(")
    loop = recipe.code("claiming.md", marker="def handle(", start="held = ", until="print(")
    recipe.queue.enqueue_many([{"kind": "text.count", "payload": "a" * length} for length in range(100)])

    at_once(partial(recipe.execute, f"{handle}\n{loop}".replace("counter-1", f"counter-{n}")) for n in range(THREADS))

    jobs = recipe.queue.jobs(limit=1_000)
    assert [job.result for job in reversed(jobs.jobs)] == [{"length": length} for length in range(100)]
    assert {job.epoch for job in jobs} == {1}


def test_no_handler_runs_without_the_model_that_its_job_names(recipe: Recipe) -> None:
    names = recipe.run("affinity.md", marker="text.generate", until="for number in range(10)")
    generate, models = names["generate"], ("llama", "mistral", "qwen")
    recipe.queue.enqueue_many(
        [generate.using(affinity=models[number % 3]).new(f"story {number}") for number in range(60)]
    )

    with recipe.worker(warm=holdfast.WarmResources(load=names["load"], unload=names["unload"], max_hold=0.01)):
        wait_until(recipe.queue, {"done": 60})

    assert {job.attempt for job in recipe.queue.jobs(limit=100)} == {1}
    assert len(names["calls"]) > 3
