"""The same calls on two stores, of which one has no plain forms, and histories of calls to compare them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Self

from hypothesis import strategies as st

from holdfast import Claim, Deferred, Done, Failed, NewJob, Outcome, Queue
from holdfast.domain.claims import fence_of, row_fence
from holdfast.domain.job import job_of, row_of
from holdfast.errors import Conflict, LeaseLost
from holdfast.types import SessionClaim
from tests.support.clock import ManualClock


class Pair(ABC):
    """The same calls on two stores, of which the second has no plain forms."""

    def __init__(self) -> None:
        self._clocks = ManualClock(), ManualClock()
        self.queues = [self.open(index, clock) for index, clock in enumerate(self._clocks)]
        self._claims: tuple[list[Claim], list[Claim]] = ([], [])
        self._turns: tuple[list[SessionClaim], list[SessionClaim]] = ([], [])
        self._turn_count = self._fused_count = 0
        for queue in self.queues:
            queue.migrate()

    @abstractmethod
    def open(self, index: int, clock: ManualClock) -> Queue:
        """Return a queue on an empty store."""

    @abstractmethod
    def without_plain_forms(self) -> AbstractContextManager[None]:
        """Return a context in which the engine has no plain forms."""

    @abstractmethod
    def rename_token(self, index: int, token: str, renamed: str) -> None:
        """Change the lease token of running jobs in the store."""

    @abstractmethod
    def contents_of(self, index: int) -> dict[str, list[Any]]:
        """Return all rows of a store, with numbers of jobs in place of ids."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        self.close(failed=error_type is not None)

    def close(self, *, failed: bool) -> None:
        """Close both queues; if the comparison has *failed*, their stores serve no other."""
        for queue in self.queues:
            queue.close()

    def _both(self) -> Iterator[tuple[int, Queue]]:
        yield 0, self.queues[0]
        with self.without_plain_forms():
            yield 1, self.queues[1]

    def enqueue(self, kind: str, options: dict[str, Any]) -> None:
        for _, queue in self._both():
            queue.enqueue(kind, {"text": "x" * options.get("size", 1)}, **_options(options))

    def enqueue_many(self, jobs: list[tuple[str, dict[str, Any]]]) -> None:
        for _, queue in self._both():
            enqueued = queue.enqueue_many(
                [NewJob(kind, {"text": "x" * options.get("size", 1)}, **_options(options)) for kind, options in jobs]
            )
            assert [one.job for one in enqueued if one.created] == [
                queue.get(one.id) for one in enqueued if one.created
            ]

    def claim(self, limit: int, options: dict[str, Any]) -> None:
        token = f"token-{len(self._claims[0])}"
        for index, queue in self._both():
            try:
                claims = queue.claim_many(limit=limit, worker="w", incarnation="i", **options)
            except Conflict:  # the chosen token is in use by another claim
                continue
            assert [claim.job for claim in claims] == [queue.get(claim.job.id) for claim in claims]
            assert [fence_of(claim) for claim in claims] == [row_fence(row_of(claim.job)) for claim in claims]
            if "lease_token" in options:
                self._claims[index].extend(claim for claim in claims if not claim.repeated)
                continue
            # Tokens are random, and the only difference.
            self.rename_token(index, _token(claims), token)
            self._claims[index].extend(_with_token(claim, token) for claim in claims)

    def claim_unread(self, limit: int) -> None:
        """Claim jobs and read nothing of them, as a worker does: reading makes rows, which are settled otherwise."""
        for index, queue in self._both():
            claims = queue.claim_many(limit=limit, worker="w", incarnation="i", lease_token="unread")
            self._claims[index].extend(claims)

    def settle(self, count: int, outcome: Outcome) -> None:
        for index, queue in self._both():
            chosen, self._claims[index][:] = self._claims[index][:count], self._claims[index][count:]
            pairs = [
                (claim, Done({"place": place}) if outcome == DIFFERENT else outcome)
                for place, claim in enumerate(chosen)
            ]
            for settlement in queue.settle_many(pairs):
                assert settlement.job is None or settlement.job == queue.get(settlement.job.id)

    def settle_and_claim(self, count: int, outcome: Outcome) -> None:
        """Settle the oldest claims and claim a job in one call, which has the same token in both stores."""
        self._fused_count += 1
        for index, queue in self._both():
            chosen, self._claims[index][:] = self._claims[index][:count], self._claims[index][count:]
            both = queue.settle_and_claim(
                [(claim, outcome) for claim in chosen],
                limit=1,
                worker="w",
                incarnation="i",
                lease_token=f"fused-{self._fused_count}",
            )
            assert [one.claim for one in both.settlements] == chosen
            for one in both.settlements:
                # The same call may claim a job that has failed.
                assert one.job is None or not one.job.finished or one.job == queue.get(one.job.id)
            self._claims[index].extend(both.claims)

    def change(self, change: str) -> None:
        """Change the job of the newest claim while it runs."""
        for index, queue in self._both():
            if not self._claims[index]:
                continue
            claim = self._claims[index][-1]
            with suppress(LeaseLost, Conflict):
                match change:
                    case "priority":
                        queue.reprioritize(claim.job.id, 5)
                    case "phase":
                        queue.progress(claim, phase="half")
                    case "percent":
                        queue.progress(claim, percent=50)
                    case "cancel":
                        queue.cancel(claim.job.id)
                    case "settle":
                        queue.settle(claim, Done())

    def enqueue_entry(self, kind: str, session: str, options: dict[str, Any]) -> None:
        for _, queue in self._both():
            queue.enqueue(kind, {"text": "x"}, session=session, **options)

    def claim_turn(self, options: dict[str, Any]) -> None:
        """Claim a turn; the claims have the same tokens in both stores."""
        self._turn_count += 1
        for index, queue in self._both():
            turn = queue.sessions.claim_next(
                worker="w", incarnation="i", lease_token=f"turn-{self._turn_count}", lease=30, **options
            )
            if turn is not None:
                assert list(turn.entries) == [queue.get(job.id) for job in turn.entries]
                session = queue.sessions.get(turn.session, tenant=turn.tenant)
                named = "\n".join((turn.tenant, turn.session, turn.entries[0].id, str(session.fencing_token)))
                assert turn.claim_id == f"claim-{hashlib.sha256(named.encode()).hexdigest()[:32]}"
                assert turn.fencing_token == session.fencing_token
                self._turns[index].append(turn)
        plain, full = self._turns
        assert list(map(_turn_parts, plain)) == list(map(_turn_parts, full))

    def settle_turn(self, place: int, outcome: Outcome) -> None:
        """Settle one of the turns; a repeated settlement, or one after the lease has expired, is refused by both."""
        answers: list[object] = []
        for index, queue in self._both():
            if not self._turns[index]:
                continue
            turn = self._turns[index][place % len(self._turns[index])]
            try:
                settled = queue.sessions.settle(turn, outcome)
            except LeaseLost:
                answers.append("lost")
            else:
                answers.append([row_of(job)[2:9] for job in settled])
                assert settled == [queue.get(job.id) for job in settled]
        assert answers[:1] == answers[1:]

    def set_lane(self, options: dict[str, Any]) -> None:
        for _, queue in self._both():
            queue.lanes.set("default", **options)

    def set_limit(self, options: dict[str, Any]) -> None:
        for _, queue in self._both():
            with suppress(Conflict):  # another limit of this sort concerns the same kind
                queue.limits.set(**{"name": "limit", "kinds": ["send"], **options})

    def advance(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.advance(seconds)

    def heartbeat(self, count: int, lease: float) -> None:
        for index, queue in self._both():
            answers = queue.heartbeat_many(self._claims[index][:count], lease=lease)
            assert len(answers) == len(self._claims[index][:count])

    def contents(self) -> list[dict[str, list[Any]]]:
        return [self.contents_of(index) for index in range(2)]

    def compare(self, history: list[tuple[Any, ...]]) -> None:
        """Run a history on both stores and compare them after each step."""
        for step, *arguments in history:
            getattr(self, step)(*arguments)
            plain, full = self.contents()
            assert plain == full, step


def _options(options: dict[str, Any]) -> dict[str, Any]:
    kept = {"dedupe_key": "kept", "dedupe_for": 20} if "kept" in options else {}
    return {name: value for name, value in options.items() if name not in {"size", "kept"}} | kept


def _turn_parts(turn: SessionClaim) -> tuple[Any, ...]:
    entries = [(job.number, job.epoch, job.attempt) for job in turn.entries]
    return turn.session, turn.tenant, turn.entry_type, turn.fencing_token, turn.lease_ms, turn.generation, entries


def _token(claims: Sequence[Claim]) -> str:
    return claims[0].lease_token if claims else ""


def _with_token(claim: Claim, token: str) -> Claim:
    return Claim(job_of(row_of(claim.job)._replace(lease_token=token)), claim.lease_ms)


DIFFERENT = Done("a result of its own for each")
FOLLOWED = Done(follow_ups=[NewJob("send"), NewJob("extract", dedupe_key="k1")])
kinds = st.sampled_from(["extract", "send"])
new_options = st.fixed_dictionaries(
    {},
    optional={
        "size": st.sampled_from([1, 1_500]),
        "tenant": st.sampled_from(["a", "b", "c"]),
        "priority": st.sampled_from([-1, 0, 2]),
        "delay": st.sampled_from([0, 5]),
        "deadline": st.sampled_from([3, 60]),
        "tags": st.just({"order": "42"}),
        "headers": st.just({"trace": "1"}),
        "max_attempts": st.sampled_from([1, 3]),
        "events": st.just("all"),
        "affinity": st.just("model"),
        "dedupe_key": st.sampled_from(["k1", "k2"]),
        "kept": st.just(True),
    },
)
claim_options = st.fixed_dictionaries(
    {},
    optional={
        "kinds": st.sampled_from([["send"], ["extract", "send"]]),
        "acknowledged": st.sampled_from([0, 1]),
        "lease_token": st.sampled_from(["first", "second"]),
    },
)
outcomes = st.sampled_from(
    [Done({"ok": True}), Done(), DIFFERENT, DIFFERENT, FOLLOWED, Failed("no", retry_after=0), Deferred(after=1)]
)
plain_options = st.fixed_dictionaries({"tenant": st.sampled_from(["a", "b", "c"])})
enqueues = st.tuples(st.just("enqueue"), kinds, st.one_of(plain_options, new_options))
claims = st.tuples(st.just("claim"), st.sampled_from([1, 1, 1, 2]), st.one_of(st.just({}), claim_options))
# Most histories have limits by key, which are reached in some of them.
limits = st.tuples(
    st.just("set_limit"),
    st.sampled_from(
        [
            {"concurrency": 3},
            {"key": "tenant", "concurrency": 30},
            {"key": "tag:order", "concurrency": 1},
            {"key": "tenant", "rate": 5, "per": 60},
            {"key": "tenant", "rate": 1_000, "per": 1, "concurrency": 8},
            {"kinds": ["send", "extract"], "key": "tenant", "concurrency": 7, "rate": 7, "per": 1},
            {"name": "rate", "key": "tenant", "rate": 20, "per": 60},
            {"name": "rate", "kinds": ["extract", "send"], "rate": 100, "per": 1},
            {"name": "number", "kinds": ["extract", "send"], "key": "tenant", "concurrency": 2},
        ]
    ),
)
steps = st.one_of(
    enqueues,
    claims,
    claims,
    limits,
    st.tuples(st.just("settle"), st.sampled_from([1, 1, 2, 10]), outcomes),
    st.tuples(st.just("settle_and_claim"), st.sampled_from([0, 1, 1, 1, 2]), st.one_of(st.just(Done()), outcomes)),
    st.tuples(st.just("heartbeat"), st.sampled_from([1, 2, 10]), st.sampled_from([5, 60])),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 6, 31, 31])),
)
histories = st.tuples(
    st.lists(limits, max_size=2),
    st.lists(enqueues, min_size=6, max_size=10),
    st.lists(steps, min_size=15, max_size=25),
).map(lambda parts: [*parts[0], *parts[1], *parts[2]])

# Many jobs at once: enqueued, claimed, changed while they run, settled.
bulks: st.SearchStrategy[Any] = st.tuples(
    st.just("enqueue_many"),
    st.one_of(
        st.lists(st.tuples(st.just("send"), st.just({})), min_size=12, max_size=20),
        st.lists(st.tuples(kinds, plain_options), min_size=12, max_size=25),
        st.lists(st.tuples(st.just("send"), st.one_of(plain_options, new_options)), min_size=12, max_size=20),
    ),
)
few = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([0.5, 6, 31])),
        st.tuples(st.just("heartbeat"), st.just(20), st.just(60)),
        st.tuples(st.just("change"), st.sampled_from(["priority", "phase", "percent", "cancel", "settle"])),
        enqueues,
    ),
    max_size=1,
)
rounds = st.tuples(
    bulks,
    few,
    st.tuples(st.just("claim"), st.sampled_from([5, 12, 20]), st.one_of(st.just({}), st.just({}), claim_options)),
    few,
    st.tuples(
        st.just("settle"),
        st.just(20),
        st.sampled_from([Done(), Done(), DIFFERENT, DIFFERENT, Failed("no", retry_after=0)]),
    ),
).map(lambda parts: [parts[0], *parts[1], parts[2], *parts[3], parts[4]])
bulk_histories = st.tuples(st.lists(limits, max_size=2), st.lists(rounds, min_size=3, max_size=6)).map(
    lambda parts: [*parts[0], *(step for part in parts[1] for step in part)]
)

# Sessions: entries that join or do not, several tenants, retries that block a line, turns in any order.
entry_options = st.fixed_dictionaries(
    {},
    optional={
        "tenant": st.sampled_from(["a", "b"]),
        "join": st.sampled_from([True, True, "name", False]),
        "entry_type": st.just("message"),
        "delivery": st.sampled_from(["checkpoint", "next_turn"]),
        "delay": st.just(5),
        "deadline": st.sampled_from([3, 60]),
        "events": st.just("all"),
    },
)
sessions = st.sampled_from(["s1", "s1", "s2"])
joined = st.sampled_from([{"join": True}, {"join": True}, {"join": "name"}, {"entry_type": "command"}])
entries = st.tuples(
    st.just("enqueue_entry"), st.sampled_from(["send", "send", "extract"]), sessions, st.one_of(entry_options, joined)
)
turn_options = st.fixed_dictionaries(
    {},
    optional={
        "kinds": st.just(["send"]),
        "limit": st.sampled_from([1, 2, {"send": 1}]),
        "only": st.sampled_from(["message", "command"]),
        "acknowledged": st.just(False),
        "tenant": st.just("a"),
    },
)
turns = st.tuples(st.just("claim_turn"), st.sampled_from([{}, {}, {}, {"limit": 2}]) | turn_options)
session_steps = st.one_of(
    entries,
    turns,
    turns,
    st.tuples(
        st.just("settle_turn"),
        st.sampled_from([-1, -1, -2, 0]),
        st.sampled_from([Done(), Done({"ok": True}), Done(), Failed("no", retry_after=2), Deferred(after=1)]),
    ),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 3, 31])),
    st.tuples(st.just("set_lane"), st.sampled_from([{"backoff": "skip"}, {"backoff": "block"}, {"order": "strict"}])),
)
session_histories = st.tuples(
    st.lists(entries, min_size=6, max_size=12), st.lists(session_steps, min_size=15, max_size=30)
).map(lambda parts: [*parts[0], *parts[1]])
