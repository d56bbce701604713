"""One database may hold several queues, each in its own schema, with any name."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from holdfast import Done, InvalidInput, JobNotFound
from holdfast.client.queue_state import state_of
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background
from tests.postgres.conftest import drop_schema
from tests.support.job_states import all_events, claimed, nonzero

# Names that have another meaning unless they are quoted.
ODD_NAMES = ["select", "user", "pg", "x" * 48]
# Names that cannot be quoted everywhere, or that are easily confused with another.
REFUSED_NAMES = [
    "",
    "x" * 49,
    "null\0byte",
    "MixedCase",
    "with space",
    "größe",
    "a.b",
    "a;--",
    "it's",
    '"',
    "100%",
    "pg_jobs",
    "information_schema",
    "%s",
    7,
]


@pytest.fixture(params=ODD_NAMES)
def odd(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    drop_schema(url, request.param)
    yield request.param
    drop_schema(url, request.param)


@pytest.fixture
def other(url: str, schema: str) -> Iterator[holdfast.Queue]:
    made = holdfast.connect(url, schema=f"{schema}_other")
    yield made
    made.close()
    drop_schema(url, f"{schema}_other")


def test_two_schemas_in_one_database_do_not_see_each_other(queue: holdfast.Queue, other: holdfast.Queue) -> None:
    queue.enqueue("mail", {"of": "one"}, job_id="same", dedupe_key="same", events="all")
    assert other.enqueue("mail", {"of": "other"}, job_id="same", dedupe_key="same", events="all").created
    queue.lanes.set("default", state="paused")
    queue.kinds.retire("letter")
    assert queue.claim() is None
    claim = claimed(other)
    assert claim.job.payload == {"of": "other"}
    other.settle(claim, Done())
    assert other.enqueue("letter").created
    assert queue.get("same").state == "ready"
    assert [event.name for event in all_events(queue)] == ["enqueued"]
    assert nonzero(queue.counts()) == {"ready": 1}


def test_a_claim_of_one_schema_is_nothing_in_another(queue: holdfast.Queue, other: holdfast.Queue) -> None:
    queue.enqueue("mail", job_id="mine")
    other.migrate()
    claim = claimed(queue)
    with pytest.raises((JobNotFound, holdfast.LeaseLost)):
        other.settle(claim, Done())
    assert queue.settle(claim, Done()).state == "done"


def test_a_name_that_needs_quotes_gets_them(url: str, odd: str) -> None:
    queue = holdfast.connect(url, schema=odd)
    assert queue.migrate()
    made = queue.enqueue("mail", events="all")
    other = holdfast.connect(url, schema=odd)
    waiting = in_background(lambda: queue.wait(made.id, timeout=PATIENCE_SECONDS))
    other.settle(claimed(other), Done())
    assert waiting.result(PATIENCE_SECONDS).state == "done"
    with queue.transaction() as transaction:
        transaction.enqueue("mail")
    queue.enqueue_many([{"kind": "mail"}] * 1200)
    assert nonzero(queue.counts()) == {"done": 1, "ready": 1201}
    assert other.migrate() == []
    queue.close()
    other.close()


def test_nothing_is_put_outside_the_schema(url: str, schema: str, queue: holdfast.Queue) -> None:
    with psycopg.connect(url) as connection:
        before = _things(connection, schema)
        queue.migrate()
        queue.enqueue("mail")
        connection.rollback()
        assert _things(connection, schema) == before


def _things(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> set[tuple[object, ...]]:
    """Return every table, index, function and type that is neither in *schema* nor in a system schema."""
    outside = """
        select nspname, relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where nspname not in (%(schema)s, 'pg_toast') and nspname not like 'pg_temp%%'
        union all
        select nspname, proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where nspname <> %(schema)s"""
    return set(connection.execute(outside, {"schema": schema}).fetchall())


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_any_other_name_is_refused_at_once(url: str, name: object) -> None:
    with pytest.raises(InvalidInput):
        holdfast.connect(url, schema=name)  # type: ignore[arg-type]  # that is the point


def test_a_store_names_its_schema_unless_it_is_the_usual_one() -> None:
    usual, other = (
        state_of(holdfast.connect("postgresql://db.internal:6432/shop", schema=name)).store
        for name in ("holdfast", "shop_jobs")
    )

    assert usual.description() == "db.internal:6432/shop"
    assert other.description() == "db.internal:6432/shop (schema shop_jobs)"
