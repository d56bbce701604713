"""The event log with transactions that become visible in a different order than they began or wrote in.

Two naive readers run besides `Queue.events`; each loses an event, which shows that the ordering is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

import holdfast
from holdfast import Done
from holdfast.client.queue_state import state_of
from holdfast.domain import strict_json
from holdfast.operations import webhooks
from holdfast.storage.runners import SyncRunner
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.job_states import all_events, claimed
from tests.support.postgres_server import Connection, Server, database_url, server_url

BY_NUMBER = "select event, job_ids[1] from {}.event where event > %s order by event"
BY_NUMBER_BELOW_THE_OLDEST_OPEN = """
    select event, job_ids[1] from {}.event
     where event > %s and xid < pg_snapshot_xmin(pg_current_snapshot()) order by event"""


class NaiveReader:
    """Reads the log by the event number alone."""

    def __init__(self, url: str, schema: str, query: str) -> None:
        self._url = url
        self._query = sql.SQL(query).format(sql.Identifier(schema))
        self._cursor = 0
        self.seen: list[str] = []

    def read(self) -> None:
        with psycopg.connect(self._url) as connection:
            for number, job_id in connection.execute(self._query, [self._cursor]):
                self._cursor = number
                self.seen.append(job_id)


class CarefulReader:
    """Reads the log as a program does."""

    def __init__(self, queue: holdfast.Queue) -> None:
        self._queue = queue
        self._cursor: str | None = None
        self.seen: list[str] = []

    def read(self) -> None:
        page = self._queue.events(after=self._cursor)
        self._cursor = page.cursor
        self.seen += [event.job_id for event in page]


@pytest.fixture
def url(server: Server) -> str:
    """A server of the module: an open transaction anywhere on a server delays the visibility of its log."""
    return server.url


@pytest.fixture
def queue(url: str, schema: str) -> Iterator[holdfast.Queue]:
    made = holdfast.connect(url, schema=schema)
    made.lanes.set("default", events="all")
    # Both kinds exist before the transactions begin, so that neither locks the routing table.
    made.enqueue("mail", job_id="first")
    yield made
    made.close()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Connection, Connection]]:
    """Two transactions of other clients; the older one got its transaction id first."""
    with psycopg.connect(url) as older, psycopg.connect(url) as younger:
        for connection in (older, younger):
            connection.execute("select pg_current_xact_id()")
        yield older, younger


def test_a_reader_by_number_loses_what_commits_late_and_the_queue_does_not(
    queue: holdfast.Queue, url: str, schema: str, pair: tuple[Connection, Connection]
) -> None:
    older, younger = pair
    naive, careful = NaiveReader(url, schema, BY_NUMBER), CarefulReader(queue)
    queue.within(older).enqueue("mail", job_id="late")
    queue.within(younger).enqueue("mail", job_id="early")
    younger.commit()
    naive.read()
    careful.read()
    older.commit()
    naive.read()
    careful.read()
    assert naive.seen == ["first", "early"]
    assert careful.seen == ["first", "late", "early"]


def test_a_reader_by_number_below_the_oldest_open_transaction_loses_one_too_and_the_queue_does_not(
    queue: holdfast.Queue, url: str, schema: str, pair: tuple[Connection, Connection]
) -> None:
    older, younger = pair
    naive, careful = NaiveReader(url, schema, BY_NUMBER_BELOW_THE_OLDEST_OPEN), CarefulReader(queue)
    queue.within(younger).enqueue("mail", job_id="lower number, younger transaction")
    queue.within(older).enqueue("mail", job_id="higher number, older transaction")
    older.commit()
    naive.read()
    careful.read()
    younger.commit()
    naive.read()
    careful.read()
    assert naive.seen == ["first", "higher number, older transaction"]
    assert careful.seen == ["first", "higher number, older transaction", "lower number, younger transaction"]


def test_events_of_overlapping_transactions_are_ordered_by_their_numbers(
    queue: holdfast.Queue, pair: tuple[Connection, Connection]
) -> None:
    """The older transaction sees rows of the younger one, and still precedes it in the log."""
    older, younger = pair
    queue.within(younger).enqueue("mail", job_id="overlapping")
    younger.commit()
    queue.within(older).cancel("overlapping")
    older.commit()
    events = [event for event in all_events(queue) if event.job_id == "overlapping"]
    assert [event.name for event in events] == ["cancelled", "enqueued"]
    assert [event.name for event in sorted(events, key=lambda event: event.number)] == ["enqueued", "cancelled"]


def test_what_was_rolled_back_is_never_read_and_holds_nothing_back(
    queue: holdfast.Queue, pair: tuple[Connection, Connection]
) -> None:
    older, younger = pair
    careful = CarefulReader(queue)
    queue.within(older).enqueue("mail", job_id="undone")
    queue.within(younger).enqueue("mail", job_id="done")
    younger.commit()
    older.rollback()
    careful.read()
    careful.read()
    assert careful.seen == ["first", "done"]


def test_many_pages_repeat_nothing_and_miss_nothing(
    queue: holdfast.Queue, pair: tuple[Connection, Connection]
) -> None:
    older, younger = pair
    for number in range(10):
        queue.within((older, younger)[number % 2]).enqueue("mail", job_id=f"job-{number}")
    younger.commit()
    older.commit()
    seen = [event.job_id for event in all_events(queue, limit=3)]
    even, odd = ([f"job-{number}" for number in range(start, 10, 2)] for start in (0, 1))
    assert seen == ["first", *even, *odd]


@pytest.mark.parametrize("place", ["the same database", "another database"])
def test_a_foreign_transaction_left_open_does_not_stall_waiting(queue: holdfast.Queue, place: str) -> None:
    job_id = queue.enqueue("mail").id
    elsewhere = database_url() if place == "the same database" else server_url()
    with psycopg.connect(elsewhere) as foreign:
        foreign.execute("select pg_current_xact_id()")
        for claim in queue.claim_many():
            queue.settle(claim, Done())
        assert queue.wait(job_id, timeout=PATIENCE_SECONDS).state == "done"
        assert not foreign.closed
    # After it has ended, the log is complete.
    assert [event.name for event in all_events(queue) if event.job_id == job_id] == ["enqueued", "claimed", "done"]


def test_a_foreign_transaction_that_only_reads_holds_nothing_back(queue: holdfast.Queue, url: str) -> None:
    careful = CarefulReader(queue)
    with psycopg.connect(url) as foreign:
        foreign.execute("set transaction isolation level repeatable read")
        foreign.execute("select 1")
        queue.enqueue("mail", job_id="second")
        claimed(queue)
        careful.read()
        assert "second" in careful.seen


def test_webhooks_wait_for_an_open_transaction_lose_nothing_and_doctor_says_so(
    queue: holdfast.Queue, pair: tuple[Connection, Connection]
) -> None:
    older, younger = pair
    runner = SyncRunner(state_of(queue).store)

    def dispatch() -> list[str]:
        found = runner.read(webhooks.collect, "a", None, 100).found
        assert found is not None
        assert runner.write(webhooks.dispatch, "a", found) is not None
        return [strict_json.decode(new.payload_json)["body"] for new in found.deliveries]

    younger.rollback()
    older.rollback()
    queue.webhooks.add("https://example.org/", types=["job.enqueued"])
    older.execute("select pg_current_xact_id()")
    queue.enqueue("mail", job_id="later")
    queue.within(older).enqueue("mail", job_id="sooner")

    assert dispatch() == []
    [finding] = [one for one in queue.admin.report().findings if one.name == "webhooks"]
    assert "open on the server" in finding.detail
    older.commit()
    assert [strict_json.decode(body)["data"]["job_id"] for body in dispatch()] == ["sooner", "later"]
