"""Plain forms write what the full forms write, in one round trip, and give way to concurrent changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import Phase, given, settings

from holdfast import Claim, Done, Failed, NewJob, Queue, Refused
from holdfast.client.connect import queue_on
from holdfast.storage.plain_contract import FinishedJobs
from holdfast.storage.postgres import scan_positions
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.postgres.transaction import PostgresTransaction
from holdfast.storage.sql_transaction import SqlTransaction
from tests.support import plain_forms, postgres_schemas
from tests.support.clock import ManualClock
from tests.support.postgres_server import database_url

# All columns but those that number events and transactions: in one call, the order of jobs may differ.
TABLES = {
    "job_row": "*",
    # `again` may differ.
    "ready_job": "seq, due_at_ms, route, priority, has_open, tenant, fair_key, affinity",
    # A plain form that is refused may have numbered a gate that it did not keep.
    "open_job o left join {0}.gate g on g.gate = o.gate": "seq, due_at_ms, deadline_at_ms, predecessor, session,"
    " enqueue_seq, flow_limit, key, route, priority, epoch, suspect, state, tenant, fair_key, dedupe_key,"
    " dedupe_kind, worker, incarnation",
    "ended, unnest(seqs, event_counts) as u (seq, event_count)": "state, finished_at_ms, seq, event_count",
    "event, unnest(job_ids) as u (job_id)": "job_id, number, name, at_ms, route, tenant, tags, state, attempt, epoch,"
    " worker, due_at_ms",
    "attempt": "*",
    "fair_key": "*",
    "route": "*",
    "kept_key": "*",
    "session": "tenant, name, enqueue_seq, fence, head_seq, head_route, head_entry_type, head_fair_key",
    "tag": "*",
    "gate": "flow_limit, key, until_us, closed_until_ms, turns",
    # What is left of claims that have ended is deleted later by some forms, and two rows of one claim may name a job.
    "permit p cross join unnest(p.gates, p.seqs) as u (gate, seq) join {0}.gate g on g.gate = u.gate"
    " join {0}.job j on j.seq = u.seq and j.lease_token = p.token"
    " and j.worker = p.worker and j.gate = g.gate and j.state = 'running'": "distinct key, p.token, p.worker, j.seq",
}
# A claim of that name may have jobs that others hold now.
RENAMING = (
    "update {0}.job set lease_token = %(renamed)s where lease_token = %(token)s",
    """with renamed as (delete from {0}.lease where token = %(token)s returning *)
       insert into {0}.lease as l (token, worker, until_ms, seqs)
       select %(renamed)s, worker, until_ms, seqs from renamed
       on conflict (token, worker) do update
          set until_ms = least(l.until_ms, excluded.until_ms), seqs = l.seqs || excluded.seqs""",
    """with renamed as (delete from {0}.permit where token = %(token)s returning *)
       insert into {0}.permit (block, token, worker, gates, seqs)
       select block, %(renamed)s, worker, gates, seqs from renamed""",
)


class PairOfSchemas(plain_forms.Pair):
    """Two schemas of one database."""

    def __init__(self) -> None:
        self.schemas = postgres_schemas.take(), postgres_schemas.take()
        self._connection = psycopg.connect(database_url(), autocommit=True)
        super().__init__()

    def open(self, index: int, clock: ManualClock) -> Queue:
        url = f"{database_url()}?options={quote('-csynchronous_commit=off')}"
        return queue_on(PostgresStore(url, schema=self.schemas[index], clock=clock))

    def close(self, *, failed: bool) -> None:
        super().close(failed=failed)
        self._connection.close()
        for schema in self.schemas:
            postgres_schemas.give_back(schema, trusted=not failed)

    def without_plain_forms(self) -> AbstractContextManager[None]:
        return without_plain_forms()

    def rename_token(self, index: int, token: str, renamed: str) -> None:
        for text in RENAMING:
            self._connection.execute(text.format(self.schemas[index]).encode(), {"token": token, "renamed": renamed})

    def contents_of(self, index: int) -> dict[str, list[Any]]:
        schema = self.schemas[index]
        ids: dict[Any, int] = dict(self._connection.execute(f"select id, seq from {schema}.job".encode()).fetchall())
        found = {}
        for table, columns in TABLES.items():
            text = f"select {columns} from {schema}.{table.format(schema)}"
            rows = self._connection.execute(text.encode()).fetchall()
            found[table] = sorted((tuple(ids.get(value, value) for value in row) for row in rows), key=repr)
        return found


@contextmanager
def without_plain_forms() -> Iterator[None]:
    async def none_finished(tx: PostgresTransaction, _settlements: object) -> FinishedJobs:
        return FinishedJobs(await tx.now(), {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresTransaction, "may_be_plain", False)
        patch.setattr(PostgresTransaction, "insert_plain_jobs", SqlTransaction.insert_plain_jobs)
        patch.setattr(PostgresTransaction, "finish_held", none_finished)
        yield


def compare(history: list[tuple[Any, ...]]) -> None:
    """Run a history on both stores and compare them after each step."""
    with PairOfSchemas() as pair, pytest.MonkeyPatch.context() as patch:
        # Behind a scan position a new job may be passed over for a second.
        patch.setattr(scan_positions, "_LIFE_SECONDS", 0.0)
        pair.compare(history)


@pytest.mark.slow("random histories run on two stores")
@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plain_forms.histories)
def test_plain_and_full_forms_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


@pytest.mark.slow("random histories run on two stores")
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plain_forms.bulk_histories)
def test_plain_and_full_forms_of_many_jobs_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


@pytest.mark.slow("random histories run on two stores")
@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plain_forms.session_histories)
def test_plain_and_full_forms_of_sessions_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


def entry(kind: str, session: str, **options: Any) -> tuple[Any, ...]:
    return "enqueue_entry", kind, session, options


@pytest.mark.slow("histories run on two stores")
@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [
                *[entry("send", "s1", join=True) for _ in range(3)],
                entry("extract", "s1", join=True),
                *[entry("send", "s0", join=True, delivery=delivery) for delivery in ("checkpoint", "next_turn")],
                entry("send", "s2", join="name"),
                entry("extract", "s2", join="name"),
                *[("claim_turn", {"kinds": ["send"]}), ("claim_turn", {}), ("settle_turn", 0, Done({"ok": True}))]
                * 4,
            ],
            id="entries join by kind or by name",
        ),
        pytest.param(
            [
                *[entry("send", "s1", join=True) for _ in range(3)],
                ("claim_turn", {"limit": 2}),
                ("settle_turn", -1, Failed("no", retry_after=2)),
                ("claim_turn", {}),
                ("set_lane", {"backoff": "skip"}),
                ("claim_turn", {}),
                entry("send", "s1", join=True),
                ("advance", 3),
                ("settle_turn", -1, Done()),
                *[("claim_turn", {"limit": {"send": 2}}), ("settle_turn", -1, Done())] * 3,
            ],
            id="failed entries block the line or are skipped",
        ),
        pytest.param(
            [
                *[entry("send", "s1", tenant=tenant, deadline=60) for tenant in "abab"],
                entry("send", "s1", tenant="a", events="all"),
                ("set_lane", {"order": "strict"}),
                *[("claim_turn", {"acknowledged": False}), ("settle_turn", -1, Done())] * 2,
                ("set_lane", {"order": "fair"}),
                ("claim_turn", {}),
                ("settle_turn", -1, Done()),
                ("advance", 61),
                *[("claim_turn", {}), ("advance", 31), ("settle_turn", -1, Done()), ("claim_turn", {})] * 2,
            ],
            id="tenants take turns, and deadlines and leases end",
        ),
    ],
)
def test_plain_and_full_forms_of_turns_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


@pytest.mark.long
@pytest.mark.parametrize(
    "drawn",
    [plain_forms.histories, plain_forms.bulk_histories, plain_forms.session_histories],
    ids=["few", "many", "sessions"],
)
def test_plain_and_full_forms_write_the_same_rows_for_long_and_at_random(drawn: Any) -> None:
    @settings(max_examples=60, deadline=None)
    @given(drawn)
    def compare_drawn(history: list[tuple[Any, ...]]) -> None:
        compare(history)

    compare_drawn()


NAMED = (("a", "x"), ("b", "x"), ("c", "y"))
"""Jobs of falling priority, and their keys."""


class Watched:
    """A queue that notes its statements."""

    def __init__(self) -> None:
        self.schema = postgres_schemas.take()
        self.sent: list[str] = []
        self.clock = ManualClock()
        self.queue = queue_on(
            PostgresStore(database_url(), schema=self.schema, clock=self.clock, observe=self.sent.append)
        )
        self.queue.migrate()

    def claim(self, limit: int = 1) -> tuple[list[Claim], bool]:
        """Claim, and return whether the claim was plain."""
        self.sent.clear()
        claims = self.queue.claim_many(limit=limit, worker="w")
        return claims, self.sent == ["begin", "plain_guard", "plain_claim_gated", "commit", "committed"]

    def parked(self) -> list[str]:
        return [job.id for job in self.queue.jobs(state="parked")]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.queue.close()
    postgres_schemas.give_back(made.schema)


class TestLimits:
    @pytest.mark.parametrize("limit", [1, 8])
    def test_claims_of_jobs_whose_limits_are_not_reached_are_plain_until_one_is(
        self, watched: Watched, limit: int
    ) -> None:
        queue = watched.queue
        queue.limits.set("all", kinds=["send"], concurrency=limit + 1)
        queue.limits.set("rate", kinds=["send"], key="tenant", rate=1_000, per=1)
        queue.enqueue_many([NewJob("send", tenant=f"tenant-{number % 5}") for number in range(80)])
        claims, _ = watched.claim(limit)
        for _ in range(5):
            queue.settle_many([(claim, Done()) for claim in claims])
            claims, is_plain = watched.claim(limit)
            assert (len(claims), is_plain) == (limit, True)
        # With one more running, a whole batch has no room.
        assert len(watched.claim(limit)[0]) == 1
        assert watched.claim(limit)[0] == []
        assert queue.counts()["running"] == limit + 1

    @pytest.mark.parametrize("key", ["tenant", "affinity", "tag:model", "given", "all"])
    def test_each_source_of_keys_has_a_plain_form(self, watched: Watched, key: str) -> None:
        queue = watched.queue
        queue.limits.set("two", kinds=["send"], key=key, concurrency=2)
        same: Any = {"tenant": "a", "affinity": "b", "tags": {"model": 'x"\\é'}, "limit_key": "d"}
        queue.enqueue_many([NewJob("send", **same)] * 3)
        watched.claim()
        claims, is_plain = watched.claim()
        assert (len(claims), is_plain) == (1, True)
        assert watched.claim()[0] == []
        assert len(watched.parked()) == 1

    def test_jobs_of_several_routes_are_counted_together(self, watched: Watched) -> None:
        queue = watched.queue
        queue.limits.set("three", lanes=["default"], concurrency=3)
        queue.limits.set("rate", lanes=["default"], rate=1_000, per=1_000, burst=4)
        queue.enqueue_many([NewJob(kind) for kind in ("send", "extract", "send", "extract")])
        assert len(watched.claim()[0]) == 1
        claims, is_plain = watched.claim(2)
        assert (len(claims), is_plain) == (2, True)
        queue.settle_many([(claim, Done()) for claim in claims])
        queue.enqueue_many([NewJob(kind) for kind in ("send", "extract")])
        assert len(watched.claim(5)[0]) == 1
        assert len(watched.parked()) == 2

    def test_more_of_several_routes_than_have_room_are_not_claimed(self, watched: Watched) -> None:
        queue = watched.queue
        queue.limits.set("three", lanes=["default"], concurrency=3)
        queue.enqueue_many([NewJob("send", tenant="z"), NewJob("extract", tenant="z")])
        queue.settle_many([(claim, Done()) for claim in watched.claim(2)[0]])
        queue.enqueue_many([NewJob(kind) for kind in ("send", "extract", "send", "extract")])
        assert len(watched.claim(4)[0]) == 3

    def test_if_a_job_of_a_later_level_has_no_room_the_first_levels_are_undone(self, watched: Watched) -> None:
        queue = watched.queue
        queue.limits.set("one", kinds=["send"], key="tag:order", concurrency=1)
        queue.enqueue("other")
        watched.claim()  # the routing is known
        queue.enqueue_many(
            [NewJob("send", job_id=name, priority=-n, tags={"order": order}) for n, (name, order) in enumerate(NAMED)]
        )
        claims, is_plain = watched.claim(8)
        assert [claim.job.id for claim in claims] == ["a", "c"]
        assert [claim.job.attempt for claim in claims] == [1, 1]
        assert watched.parked() == ["b"]
        assert not is_plain
        assert "plain_claim_gated" in watched.sent

    def test_later_claims_are_then_undone_by_a_savepoint_and_settlements_stay(self, watched: Watched) -> None:
        queue = watched.queue
        queue.limits.set("one", kinds=["send"], key="tag:order", concurrency=1)
        queue.enqueue("other")
        held, _ = watched.claim()
        for turn in range(2):
            queue.enqueue_many(
                [NewJob("send", priority=-n, tags={"order": order}) for n, (_, order) in enumerate(NAMED)]
            )
            watched.sent.clear()
            held = list(queue.settle_and_claim([(claim, Done()) for claim in held], limit=8, worker="w").claims)
            # Offered jobs of the turns before come first.
            assert {claim.job.tags["order"] for claim in held} == {"x", "y"}
            assert len(held) == 2
            assert "plain_claim_gated_undoing" in watched.sent
            # The first fails as a whole.
            assert ("plain_claim_gated" in watched.sent) == (not turn)
        assert len(list(queue.jobs(state="done"))) == 3


def test_a_row_that_has_moved_is_taken_by_its_number(url: str, schema: str, queue: Queue) -> None:
    taken, kept = (queue.enqueue("mail").job.number for _ in range(2))
    with psycopg.connect(url) as hand:
        [place] = hand.execute(f"select ctid from {schema}.ready_job where seq = {kept}".encode()).fetchall()
        # As if the row of the first job had moved, and that of the second were in its place.
        hand.execute(
            f"select {schema}.take_1('worker', 'token', 1, array[{taken}], '{{}}', array['{place[0]}'::tid])".encode()
        )
        left = hand.execute(f"select seq from {schema}.ready_job".encode()).fetchall()
        hand.rollback()

    assert left == [(kept,)]


ALIKE = [NewJob("send", {"nth": nth}, tags={"order": "42"}) for nth in range(5)]


def test_jobs_of_one_call_that_differ_only_in_payload_are_stored_in_one_message(watched: Watched) -> None:
    queue = watched.queue
    queue.enqueue("send")  # the routing is known
    watched.sent.clear()
    made = queue.enqueue_many(ALIKE)

    assert watched.sent == ["begin", "jobs_insert_alike", "commit", "committed"]
    assert [one.job for one in made] == [queue.get(one.id) for one in made]
    assert [job.payload for job in queue.jobs(tags={"order": "42"})] == [{"nth": nth} for nth in (4, 3, 2, 1, 0)]
    watched.sent.clear()
    queue.enqueue_many([*ALIKE, NewJob("send", priority=1)])
    assert "jobs_insert_alike" not in watched.sent


def test_jobs_of_one_call_are_refused_if_their_kind_was_retired_elsewhere(watched: Watched) -> None:
    watched.queue.enqueue("send")
    with queue_on(PostgresStore(database_url(), schema=watched.schema)) as other:
        other.kinds.retire("send")
    with pytest.raises(Refused):
        watched.queue.enqueue_many(ALIKE)

    assert watched.sent.count("jobs_insert_alike") == 1
    assert watched.queue.counts() == {"retired": 1}
