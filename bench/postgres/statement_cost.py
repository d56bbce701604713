"""The limit of calls on PostgreSQL: the messages of enqueues and drains, and nothing else.

A minimal program: it sends the statements of `enqueue`, `enqueue_many` and `settle_and_claim`, and reads the replies.
The values of enqueues are made before. A drain decodes each payload and settles what it has claimed, in as many
threads as Holdfast. It validates nothing and returns nothing; what a call takes beyond it is Python.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg

import holdfast
from bench.candidates import BATCH, BULK, Candidate, Scenario, Session, as_text, handle, timed
from bench.postgres.holdfast_candidates import THREADS
from holdfast.client import ids
from holdfast.storage import notifications, runners
from holdfast.storage.postgres import binding, commits, sql
from holdfast.storage.postgres.io import Statement, SyncIO

_SCENARIOS: frozenset[Scenario] = frozenset({"single", "bulk", "drain"})
_VALUES = """select j.*, (select value from holdfast.meta where name = 'routing_version') as version
               from holdfast.job j limit 1"""
_NO_MARKS = {f"position_{name}": [None] for name in ("priorities", "fair_keys", "dues", "seqs")}
# Where a claim starts that knows nothing of the store.
_FROM_START = {"floor_seq": None, "floor_due": -1, "floor_backdated": None, "wall_floor": -1, "lease_floor": -1}
_SERVER_CLOCK = {"clock_ms": None, "lease_clock_ms": None}
_SEQ, _ID, _PAYLOAD, _EPOCH = map(sql.CLAIMED.index, ("seq", "id", "payload_json", "epoch"))
_CLAIM: dict[str, Any] = {
    "limit": BATCH,
    "worker": "w",
    "incarnation": "i",
    "lease_ms": 30_000,
    "acknowledged": BATCH,
}


class StatementsSession(Session):
    """The messages of enqueues, on a database in which the kind is known."""

    def __init__(self, url: str) -> None:
        with holdfast.connect(url) as queue:
            queue.enqueue("mail")
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row)
        self._common = self._connection.execute(_VALUES).fetchone() or {}
        self._settings = commits.PostgresSettings("holdfast", None, commits.unobserved)
        self._notifying = commits.notify_statement(self._settings, [notifications.lane_topic("default")])
        self._io = SyncIO(self._connection)
        for scenario in ("single", "bulk", "drain"):
            self.measure(scenario, BULK)

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for the messages of *count* jobs, which are made before."""
        if scenario == "single":
            made = [self._single(number) for number in range(count)]
            return timed(lambda: self._store_each(made))
        calls = [self._bulk(range(first, min(first + BULK, count))) for first in range(0, count, BULK)]
        if scenario == "bulk":
            return timed(lambda: self._store_each(calls))
        self._drain()
        self._store_each(calls)
        return timed(self._drain)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _single(self, number: int) -> Sequence[Statement]:
        values = {**self._common, "id": ids.job_id(), "payload": as_text(number), "clock_ms": None}
        return [self._statement("job_insert_plain", values)]

    def _bulk(self, numbers: range) -> Sequence[Statement]:
        arrays = map(binding.text_array, (ids.job_ids(len(numbers)), list(map(as_text, numbers))))
        values = {**dict(zip(("ids", "payloads"), arrays, strict=True)), "clock_ms": None}
        text, bound, _ = self._statement("jobs_insert_alike", {**self._common, **values})
        return [Statement(text, bound, [*(0 for _ in bound[:-2]), 1, 1])]

    def _store_each(self, made: Sequence[Sequence[Statement]]) -> None:
        for one in made:
            self._run([one, [self._notifying]])

    def _drain(self) -> None:
        with ThreadPoolExecutor(THREADS) as crew:
            list(crew.map(self._drain_by_one, range(THREADS)))

    def _drain_by_one(self, _number: int) -> None:
        """Settle a batch and claim the next in one message, until there is none."""
        guard = {"wall_low": -1, "lease_low": -1, "worker": "w", "chosen_token": None, "examines": False}
        guarding = self._statement("plain_guard", {**self._common, **_SERVER_CLOCK, **guard})
        claim = {**_CLAIM, "routes": [self._common["route"]], "scope": "bench:"}
        settling: list[Statement] = []
        topics: list[str] = []
        with closing(psycopg.connect(self._url, autocommit=True)) as connection:
            io = SyncIO(connection)
            while True:
                token = ids.lease_token()
                values = {**claim, "lease_token": token, **_NO_MARKS, **_FROM_START, **_SERVER_CLOCK}
                sent = [guarding, *settling, self._statement("plain_claim", values)]
                notifying = [[commits.notify_statement(self._settings, topics)]] if topics else []
                *_, rows = runners.run_sync(io.run_alone([sent, *notifying], prepare=True))
                *claimed, header = rows
                if header[_ID] == "refused" or not claimed:
                    return
                for row in claimed:
                    handle(json.loads(row[_PAYLOAD]))
                topics = [notifications.JOB_TOPIC + row[_ID] for row in claimed]
                settling = [self._settling(sorted(claimed), token)]

    def _settling(self, claimed: Sequence[Sequence[Any]], token: str) -> Statement:
        values = {
            "seqs": [row[_SEQ] for row in claimed],
            "epochs": [1],
            "tokens": [token],
            "results": ["null"],
            **{name: [] for name in ("started_seqs", "started_epochs", "started_tokens")},
        }
        return self._statement("plain_settle", {**values, **_SERVER_CLOCK})

    def _statement(self, name: str, values: dict[str, Any]) -> Statement:
        text, names = sql.numbered(self._settings.texts.writing[name])
        return Statement(text, [binding.encoded(values[one]) for one in names])

    def _run(self, transactions: Sequence[Sequence[Statement]]) -> None:
        runners.run_sync(self._io.run_alone(transactions, prepare=True))


def candidates() -> list[Candidate]:
    """Return the statements of Holdfast without Holdfast."""
    settings = "the messages of enqueue, enqueue_many and settle_and_claim; without Holdfast's own code"
    return [Candidate("statements alone", "full", settings, _SCENARIOS, StatementsSession)]
