"""Transactions of one statement: begin, run, commit and notify in a single message.

A caller mostly waits for round trips to the server. A plain job needs no reply before it is stored, so its whole
transaction is sent in one message. The values are literals in the text, because a message of several statements takes
no parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import Escaping
from psycopg.pq.abc import PGconn

from holdfast.domain import new_job as admissions
from holdfast.domain.clock import Now
from holdfast.domain.errors import OutcomeUnknown, StoreUnreachable
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.results import StoredJob
from holdfast.domain.routing import RoutingTable
from holdfast.storage.notifications import lane_topic
from holdfast.storage.postgres.errors import is_retryable, lost
from holdfast.storage.postgres.io import AfterCommitError, ServerIO
from holdfast.storage.postgres.transaction import LOCK_MS, PostgresSettings, notification, roll_back
from holdfast.storage.sql_queries import Rows
from holdfast.storage.store import Operation, PlainForm

# Values are part of the text, which the server parses completely before it executes anything.
_PAYLOAD_CHARS_MAX = 100_000


class UnconfirmedError(Exception):
    """The connection was lost: it is unknown whether the statement was committed. *again* finds out."""

    def __init__(self, again: Operation[Any]) -> None:
        super().__init__("the commit was not confirmed")
        self.again = again


@contextmanager
def still_unknown(unconfirmed: UnconfirmedError) -> Iterator[None]:
    """Raise `OutcomeUnknown` if the store cannot be queried for the outcome either."""
    try:
        yield
    except (StoreUnreachable, psycopg.Error) as error:
        if isinstance(error, psycopg.Error) and not lost(error):
            raise
        raise OutcomeUnknown(f"{unconfirmed}; send the same call again ({error})") from error


def plain_enqueue(new: CheckedJob, routing: RoutingTable | None, again: Operation[Any]) -> PlainForm | None:
    """Return one statement that stores the job, if it is due at once and nothing else has to be written."""
    found = None if routing is None else admissions.plain_job(new, routing)
    if routing is None or found is None:
        return None
    new, route = found
    settings = new.settings
    waits = settings.delay_ms or settings.run_at_ms is not None
    expires = settings.deadline_in_ms is not None or settings.deadline_at_ms is not None
    if waits or expires or len(new.payload_json) > _PAYLOAD_CHARS_MAX:
        return None
    fair_key = routing.lane(settings.route.lane).fair_key_of(settings.tenant)
    values = {
        "route": route.number,
        "id": new.id,
        "tenant": settings.tenant,
        "fair_key": fair_key,
        "priority": settings.priority,
        "affinity": settings.affinity,
        "payload": new.payload_json,
        "headers": settings.headers_json,
        "tags": settings.tags_json,
        "max_attempts": settings.max_attempts,
        "backoff": settings.backoff_json,
        "version": str(routing.version),
    }
    return PlainForm(
        "job_insert_plain",
        values,
        partial(_stored, new, fair_key),
        again,
        (lane_topic(settings.route.lane),),
    )


def _stored(new: CheckedJob, fair_key: str, rows: Rows) -> StoredJob | None:
    seq, now_ms = rows[0]
    if seq is None:
        return None
    return StoredJob(Job(admissions.new_job(new, seq, fair_key, Now(now_ms, now_ms))), created=True)


async def run_plain(settings: PostgresSettings, plain: PlainForm, io: ServerIO) -> Any:
    """Run a transaction of one statement; return None if it did nothing and the full operation must run."""
    text = _text(settings, plain, io.connection)
    for name in ("begin", plain.name, "commit"):
        settings.observe(name)
    try:
        rows = await io.commit(text, notification(settings, plain.topics))
    except AfterCommitError as error:
        settings.report_notification(error.__cause__)
        rows = error.rows
    except psycopg.Error as error:
        if io.connection.closed or lost(error):
            raise UnconfirmedError(plain.again) from error
        await roll_back(io)
        if is_retryable(error):
            return None
        raise
    return plain.finish(rows)


def _text(settings: PostgresSettings, plain: PlainForm, connection: Any) -> str:
    now_ms = None if settings.clock is None else settings.clock.now().wall_ms
    values = {**plain.values, "now": now_ms}
    literals = {name: literal(value, connection.pgconn) for name, value in values.items()}
    statement = settings.texts.writing[plain.name] % literals
    begin = f"begin isolation level read committed; set local lock_timeout = {LOCK_MS}"
    return f"{begin}; {statement}; commit"


def literal(value: str | int | None, connection: PGconn) -> str:
    """Return *value* as a literal of a statement."""
    if value is None:
        return "null"
    if type(value) is int:
        return str(value)
    text = str(value)
    if "'" not in text and "\\" not in text:
        return f"'{text}'"
    return bytes(Escaping(connection).escape_literal(text.encode())).decode()
