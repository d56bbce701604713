"""A codec encodes payloads and results in the store; a queue with it reads them as if they were not encoded.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import holdfast
from holdfast import Conflict, Done, InvalidInput, Lease, Middleware, NewJob, Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.domain import limits
from holdfast.domain.job import row_of
from holdfast.errors import CodecFailed
from holdfast.tasks.definition import TaskTable
from holdfast.types import JobDraft, StoredJob
from tests.support.codecs import Scrambler
from tests.support.kinds import publish
from tests.support.sessions import say, take, take_any, take_more
from tests.support.stores import Harness

SECRET = {"card": "4111-1111"}


def with_codec(queue: Queue, codec: Any) -> Queue:
    """Return another queue on the same store, with *codec*."""
    return Queue(replace(state_of(queue), codec=codec, tasks=TaskTable()))


@pytest.fixture
def encoding(queue: Queue) -> Queue:
    return with_codec(queue, Scrambler())


def stored(queue: Queue, job_id: str) -> tuple[str, str | None]:
    """Return payload and result of a job as the store has them."""
    row = row_of(queue.get(job_id))
    return row.payload_json, row.result_json


class TestTheStoredForm:
    def test_payloads_and_results_are_unreadable_and_the_rest_is_not(self, queue: Queue, encoding: Queue) -> None:
        made = encoding.enqueue("pay", SECRET, headers={"h": "1"}, tags={"t": "2"}, dedupe_key="k")
        claim = encoding.claim()
        assert claim is not None
        encoding.settle(claim, Done(SECRET))

        for text in stored(queue, made.id):
            assert text is not None
            assert text.startswith('{"holdfast.codec":"scrambler","data":"')
            assert "card" not in text
        job = queue.get(made.id)
        assert (job.kind, job.headers, job.tags, job.dedupe_key, job.state) == (
            "pay",
            {"h": "1"},
            {"t": "2"},
            "k",
            "done",
        )

    def test_null_is_not_encoded(self, queue: Queue, encoding: Queue) -> None:
        made = encoding.enqueue("pay")
        claim = encoding.claim()
        assert claim is not None
        encoding.settle(claim, Done())

        assert stored(queue, made.id) == ("null", "null")

    def test_jobs_that_were_stored_without_it_stay_readable(self, queue: Queue, encoding: Queue) -> None:
        assert encoding.get(queue.enqueue("pay", SECRET).id).payload == SECRET

    def test_follow_ups_and_messages_are_encoded_too(self, queue: Queue, encoding: Queue) -> None:
        encoding.enqueue("pay")
        claim = encoding.claim()
        assert claim is not None
        encoding.settle(
            claim, Done(follow_ups=[NewJob("next", SECRET), NewJob("chat", session="s", messages=[1, 2])])
        )

        for kind in ("next", "chat"):
            [job] = queue.jobs(kind=kind)
            assert "holdfast.codec" in row_of(job).payload_json
        assert [job.payload for job in encoding.jobs(kind="next")] == [SECRET]
        assert take(encoding, "s").entries[0].messages == [1, 2]

    def test_a_job_that_replaces_another_is_encoded(self, queue: Queue, encoding: Queue) -> None:
        queue.enqueue("pay", 1, dedupe_key="k")
        made = encoding.enqueue("pay", SECRET, dedupe_key="k", on_duplicate="replace")

        assert "holdfast.codec" in stored(queue, made.id)[0]
        assert encoding.get(made.id).payload == SECRET


class TestReading:
    def test_every_call_that_returns_jobs_decodes_them(self, encoding: Queue) -> None:
        made = encoding.enqueue("pay", 1)
        assert made.job.payload == 1
        assert [one.job.payload for one in encoding.enqueue_many([NewJob("pay", n) for n in (2, 3, 4)])] == [2, 3, 4]
        assert encoding.get(made.id).payload == encoding.reprioritize(made.id, 9).payload == 1
        assert [job.payload for job in encoding.jobs(limit=2)] == [4, 3]
        first = encoding.claim()
        assert first is not None
        assert first.job.payload == encoding.progress(first, percent=5).payload == 1
        both = encoding.settle_and_claim([(first, Done("one"))], limit=1)
        assert both.settlements[0].job is not None
        assert both.settlements[0].job.result == made.result(timeout=5) == "one"
        assert [claim.job.payload for claim in both.claims] == [2]
        claim = both.claims[0]
        lease = Lease(claim.job.id, claim.job.epoch, claim.lease_token)
        assert encoding.settle(lease, Done("two")).result == "two"
        [third] = encoding.claim_many(limit=1)
        assert encoding.settle(third, holdfast.Failed("no", permanent=True)).payload == 3
        assert encoding.requeue(third.job.id).payload == encoding.cancel(third.job.id).payload == 3

    def test_transactions_decode_them_too(self, harness: Harness, encoding: Queue) -> None:
        made = encoding.enqueue("pay", 3)
        with encoding.transaction() as tx:
            assert tx.get(made.id).payload == 3
            assert tx.enqueue("pay", 5).job.payload == 5

        async def main() -> None:
            queue = harness.open_async()
            async with holdfast.AsyncQueue(replace(queue._state, codec=Scrambler())) as awaited:
                claim = await awaited.claim()
                assert claim is not None
                async with awaited.transaction() as tx:
                    assert (await tx.settle(claim, Done(SECRET))).result == SECRET

        asyncio.run(main())

    def test_turns_are_decoded(self, encoding: Queue) -> None:
        say(encoding, 1, 2)
        turn = take_any(encoding)
        say(encoding, 3)
        turn = turn.joined(take_more(encoding, turn))

        assert [job.payload for job in turn.entries] == [1, 2, 3]
        assert [job.result for job in encoding.sessions.settle(turn, Done("ok"))] == ["ok"] * 3
        say(encoding, 4)
        assert [job.result for job in encoding.sessions.settle(take(encoding).lease, Done("more"))] == ["more"]

    def test_an_async_queue_does_the_same(self, harness: Harness) -> None:
        queue = harness.open_async()
        encoding = holdfast.AsyncQueue(replace(state_of(queue), codec=Scrambler()))

        async def main() -> None:
            made = await encoding.enqueue("pay", SECRET)
            with pytest.raises(CodecFailed):
                (await queue.get(made.id)).payload  # noqa: B018
            claim = await encoding.claim()
            assert claim is not None
            assert claim.job.payload == SECRET
            await encoding.settle(claim, Done(SECRET))
            assert await made.result(timeout=5) == SECRET
            await encoding.enqueue("chat", SECRET, session="s")
            turn = await encoding.sessions.claim_next()
            assert turn is not None
            assert turn.entries[0].payload == SECRET
            await encoding.close()
            await queue.close()

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("codec", "problem"),
        [
            (None, "is encoded by codec 'scrambler'; pass this codec to connect"),
            (Scrambler(name="other"), "is encoded by codec 'scrambler', and the codec of this queue is 'other'"),
            (
                Scrambler(b"other"),
                "cannot be decoded by codec 'scrambler': ValueError; was it encoded with another key?",
            ),
        ],
    )
    def test_a_reader_without_the_key_gets_an_error_that_names_the_job(
        self, queue: Queue, encoding: Queue, codec: Any, problem: str
    ) -> None:
        made = encoding.enqueue("pay", SECRET, headers={"h": "1"})
        claim = encoding.claim()
        assert claim is not None
        encoding.settle(claim, Done(SECRET))
        other = with_codec(queue, codec)
        [job] = other.jobs()
        assert job.headers == {"h": "1"}

        for field in ("payload", "result"):
            with pytest.raises(CodecFailed) as caught:
                getattr(job, field)
            assert str(caught.value) == f"the {field} of job {made.id!r} {problem}"
            assert caught.value.job_id == made.id

    def test_a_value_that_only_looks_encoded_is_an_error_of_its_reader_alone(self, encoding: Queue) -> None:
        plain = with_codec(encoding, None)
        for payload in ({"holdfast.codec": "scrambler"}, {"holdfast.codec": "scrambler", "data": "?"}):
            made = plain.enqueue("pay", payload)
            with pytest.raises(CodecFailed, match="cannot be decoded"):
                encoding.get(made.id).payload  # noqa: B018


class TestRepeatedCalls:
    def test_an_enqueue_with_an_id_is_compared_before_it_is_encoded(self, queue: Queue, encoding: Queue) -> None:
        first = encoding.enqueue("pay", SECRET, job_id="one")

        assert not encoding.enqueue("pay", SECRET, job_id="one").created
        assert not queue.enqueue("pay", SECRET, job_id="one").created
        assert first.job == encoding.get("one")
        with pytest.raises(Conflict):
            encoding.enqueue("pay", {"card": "another"}, job_id="one")

    @pytest.mark.parametrize("outcome", [Done(SECRET), Done(SECRET, follow_ups=[NewJob("next", SECRET)])])
    def test_a_settlement_is_compared_before_it_is_encoded(self, encoding: Queue, outcome: Done) -> None:
        encoding.enqueue("pay")
        claim = encoding.claim()
        assert claim is not None

        assert encoding.settle(claim, outcome).result == SECRET
        assert encoding.settle(claim, outcome).result == SECRET
        with pytest.raises(holdfast.LeaseLost):
            encoding.settle(claim, Done("another"))

    def test_a_turn_is_compared_before_it_is_encoded(self, encoding: Queue) -> None:
        say(encoding, 1, 2)
        turn = take(encoding)

        for _ in range(2):
            assert [job.result for job in encoding.sessions.settle(turn, Done(SECRET))] == [SECRET] * 2


class TestValidation:
    def test_the_schema_of_a_kind_is_checked_before_encoding(self, queue: Queue, encoding: Queue) -> None:
        tasks = Tasks()

        @tasks.task("pay")
        def pay(amount: int) -> None: ...

        publish(queue, tasks)

        with pytest.raises(InvalidInput, match="amount"):
            encoding.enqueue("pay", {"amount": "much"})
        made = encoding.enqueue("pay", {"amount": 3})
        assert encoding.get(made.id).payload == {"amount": 3}

    def test_a_producer_may_encode_the_payload_itself(self, queue: Queue, encoding: Queue) -> None:
        tasks = Tasks()

        @tasks.task("pay")
        def pay(amount: int) -> None: ...

        publish(queue, tasks)
        envelope = json.loads(stored(queue, encoding.enqueue("pay", {"amount": 3}).id)[0])

        made = queue.enqueue("pay", envelope)

        assert encoding.get(made.id).payload == {"amount": 3}

    def test_middleware_sees_the_payload_before_encoding(self, queue: Queue) -> None:
        seen: list[Any] = []

        class Reading(Middleware):
            def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
                result = yield
                seen.append((jobs[0].payload, [one.job.payload for one in result]))

        reading = Queue(replace(state_of(queue), codec=Scrambler(), middleware=(Reading(),)))
        reading.enqueue("pay", SECRET)

        assert seen == [(SECRET, [SECRET])]

    def test_a_payload_that_cannot_be_encoded_is_not_stored(self, queue: Queue, encoding: Queue) -> None:
        with pytest.raises(CodecFailed, match=r"^payload: cannot be encoded by codec 'scrambler': OSError$"):
            encoding.enqueue("pay", "unencodable")
        with pytest.raises(CodecFailed, match=r"^jobs\[1\]\.payload: "):
            encoding.enqueue_many([NewJob("pay", 1), NewJob("pay", "unencodable")])
        # It fits before it is encoded, and not afterwards.
        with pytest.raises(InvalidInput, match="after encoding; the limit is 1048576") as caught:
            encoding.enqueue("pay", "x" * (limits.PAYLOAD_BYTES_MAX - 2))
        assert caught.value.field == "payload"

        assert queue.counts() == {}

    def test_a_result_that_cannot_be_encoded_refuses_only_its_own_settlement(self, encoding: Queue) -> None:
        encoding.enqueue_many([NewJob("a"), NewJob("b"), NewJob("c")])
        claims = encoding.claim_many(limit=3)
        unencodable = Done(follow_ups=[NewJob("next", "unencodable")])

        settlements = encoding.settle_many(
            [(claims[0], Done("unencodable")), (claims[1], Done(2)), (claims[2], unencodable)]
        )

        assert [one.ok for one in settlements] == [False, True, False]
        assert [str(one.error).partition(":")[0] for one in settlements if one.error] == [
            "result",
            "follow_ups[0].payload",
        ]
        assert encoding.counts() == {"running": 2, "done": 1}

    @pytest.mark.parametrize(
        ("codec", "problem"),
        [
            (Scrambler, "codec: must be an object, not a class"),
            (object(), "codec: must have a method 'encode'; object has none"),
            (Scrambler(name=""), "codec.name: "),
            (Scrambler(name=3), "codec.name: "),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_no_codec_is_refused(self, codec: Any, problem: str) -> None:
        for connect in (holdfast.connect, holdfast.connect_async):
            with pytest.raises(InvalidInput) as caught:
                connect(":memory:", codec=codec)
            assert str(caught.value).startswith(problem)

    def test_connect_takes_it(self) -> None:
        codec: holdfast.Codec = Scrambler()
        with holdfast.connect(":memory:", codec=codec) as queue:
            made = queue.enqueue("pay", SECRET)
            assert "holdfast.codec" in row_of(made.job).payload_json
            assert queue.get(made.id).payload == SECRET
