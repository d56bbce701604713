"""The limit of enqueues on PostgreSQL: the messages of `enqueue` and `enqueue_many`, and nothing else.

A minimal program: it sends the statements of the calls with values that are made before, and reads the replies. It
validates nothing and returns nothing; what a call takes beyond it is Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

import holdfast
from bench.candidates import BULK, Candidate, Scenario, Session, as_text, timed
from holdfast.client import ids
from holdfast.storage import notifications, runners
from holdfast.storage.postgres import binding, commits, sql
from holdfast.storage.postgres.io import Statement, SyncIO

_SCENARIOS: frozenset[Scenario] = frozenset({"single", "bulk"})
_VALUES = """select j.*, (select value from holdfast.meta where name = 'routing_version') as version
               from holdfast.job j limit 1"""


class StatementsSession(Session):
    """The messages of enqueues, on a database in which the kind is known."""

    def __init__(self, url: str) -> None:
        with holdfast.connect(url) as queue:
            queue.enqueue("mail")
        self._connection = psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row)
        self._common = self._connection.execute(_VALUES).fetchone() or {}
        self._settings = commits.PostgresSettings("holdfast", None, commits.unobserved)
        self._notifying = commits.notify_statement(self._settings, [notifications.lane_topic("default")])
        self._io = SyncIO(self._connection)
        for scenario in ("single", "bulk"):
            self.measure(scenario, BULK)

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for the messages of *count* jobs, which are made before."""
        if scenario == "single":
            made = [self._single(number) for number in range(count)]
            return timed(lambda: self._store_each(made))
        calls = [self._bulk(range(first, min(first + BULK, count))) for first in range(0, count, BULK)]
        return timed(lambda: self._store_many(calls))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _single(self, number: int) -> Sequence[Statement]:
        values = {**self._common, "id": ids.job_id(), "payload": as_text(number), "clock_ms": None}
        return [self._statement("job_insert_plain", values)]

    def _bulk(self, numbers: range) -> tuple[Statement, dict[str, Any]]:
        header = self._statement("enqueue_header", {"keys": [], "count": len(numbers)})
        made = ids.job_ids(len(numbers))
        values = {**self._common, "ids": binding.array(made), "payloads": binding.array(list(map(as_text, numbers)))}
        return header, values

    def _store_each(self, made: Sequence[Sequence[Statement]]) -> None:
        for one in made:
            self._run([one, [self._notifying]])

    def _store_many(self, calls: Sequence[tuple[Statement, dict[str, Any]]]) -> None:
        for header, values in calls:
            *_, [[_, seqs]] = runners.run_sync(self._io.run([*self._settings.begin_writing, header], prepare=True))
            insert = self._statement("job_insert_plain_many", {**values, "seqs": seqs})
            self._run([[insert, Statement(b"commit")], [self._notifying]])

    def _statement(self, name: str, values: dict[str, Any]) -> Statement:
        text, names = sql.numbered(self._settings.texts.writing[name])
        return Statement(text, [binding.encoded(values[one]) for one in names])

    def _run(self, transactions: Sequence[Sequence[Statement]]) -> None:
        runners.run_sync(self._io.run_alone(transactions, prepare=True))


def candidates() -> list[Candidate]:
    """Return the statements of Holdfast without Holdfast."""
    settings = "the messages of enqueue and enqueue_many, made before; without Holdfast's own code"
    return [Candidate("statements alone", "full", settings, _SCENARIOS, StatementsSession)]
