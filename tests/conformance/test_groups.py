"""Groups: jobs that are stored together and counted as they end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Conflict, Done, Failed, InvalidInput, Queue
from holdfast.domain import limits
from holdfast.errors import GroupNotFound, LaneDraining, WaitTimeout
from holdfast.storage.contract import StoreTransaction
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import start
from tests.support.stores import Harness

ON_END, ON_SUCCESS, FIRST = (f"holdfast:group:g:{event}" for event in ("on_end", "on_success", "on_first_failure"))
CALLBACKS: dict[str, Any] = {
    "on_end": {"kind": "end", "payload": {"n": 1}},
    "on_success": {"kind": "success"},
    "on_first_failure": {"kind": "alarm", "lane": "ops", "priority": 5},
}


def fold(queue: Queue, times: int = 1) -> None:
    """Claim, which counts the ends of members."""
    for _ in range(times):
        queue.claim_many(kinds=["none"])


def make(queue: Queue, count: int, name: str = "g", **options: Any) -> list[str]:
    with queue.group(name, **options) as group:
        # Of different kinds, so that a test can claim one of them.
        return [group.enqueue(f"page.{number % 5}", {"n": number}) for number in range(count)]


def end(queue: Queue, job_id: str, *, done: bool = True) -> None:
    queue.settle(start(queue, queue.get(job_id)), Done(job_id) if done else Failed("no", permanent=True))


def existing(queue: Queue, *ids: str) -> list[str]:
    found = {job.id for job in queue.jobs(limit=1_000)}
    return [one for one in ids if one in found]


def fill(queue: Queue, lanes: list[str]) -> None:
    """Make a group with a member in each of these lanes."""
    with queue.group("g") as group:
        for lane in lanes:
            group.enqueue("page", lane=lane)


class TestEnds:
    def test_another_look_at_a_group_that_has_ended_changes_nothing(self, queue: Queue, clock: ManualClock) -> None:
        [job_id] = make(queue, 1)
        end(queue, job_id)
        fold(queue)
        ended = queue.groups.get("g")
        assert ended.finished
        clock.advance(60)

        async def wake(tx: StoreTransaction) -> None:
            found = await tx.group_by_name("default", "g")
            assert found is not None
            await tx.add_wake("group", found.number, (await tx.now()).wall_ms)

        queue._runner.write(wake)
        fold(queue)
        assert queue.groups.get("g") == ended

    def test_the_last_end_enqueues_the_callbacks(self, queue: Queue) -> None:
        ids = make(queue, 3, **CALLBACKS)
        for job_id in ids[:2]:
            end(queue, job_id)
            fold(queue)
        group = queue.groups.get("g")
        assert (group.state, group.members, group.done, group.unfinished) == ("running", 3, 2, 1)
        assert existing(queue, ON_END, ON_SUCCESS, FIRST) == []
        end(queue, ids[2])
        fold(queue)

        group = queue.groups.get("g")
        assert (group.state, group.done, group.unfinished, group.finished) == ("done", 3, 0, True)
        assert existing(queue, ON_END, ON_SUCCESS, FIRST) == [ON_END, ON_SUCCESS]
        called = queue.get(ON_END)
        assert (called.kind, called.payload, called.state, called.headers) == (
            "end",
            {"n": 1},
            "ready",
            {"holdfast-group": "g"},
        )
        assert group.callbacks["on_end"] == ON_END

    def test_a_failure_enqueues_its_callback_at_once_and_prevents_success(self, queue: Queue) -> None:
        ids = make(queue, 2, **CALLBACKS)
        end(queue, ids[0], done=False)
        fold(queue)
        assert existing(queue, ON_END, ON_SUCCESS, FIRST) == [FIRST]
        assert (queue.get(FIRST).lane, queue.get(FIRST).priority) == ("ops", 5)
        end(queue, ids[1])
        fold(queue)
        group = queue.groups.get("g")
        assert (group.state, group.done, group.failed) == ("failed", 1, 1)
        assert existing(queue, ON_END, ON_SUCCESS, FIRST) == [ON_END, FIRST]

    @pytest.mark.parametrize("how", ["cancelled", "retired", "late", "expired"])
    def test_every_end_counts(self, queue: Queue, clock: ManualClock, how: str) -> None:
        with queue.group("g", on_end={"kind": "end"}) as group:
            job_id = group.enqueue("page", deadline=100_000, max_attempts=1)
        if how == "cancelled":
            queue.cancel(job_id)
        elif how == "retired":
            queue.kinds.retire("page")
        else:
            if how == "expired":
                start(queue, queue.get(job_id))
            clock.advance(100_000)
        fold(queue, 3)

        assert queue.groups.get("g").state == "failed"
        assert queue.get(ON_END).state == "ready"

    def test_the_handler_of_a_callback_reads_the_results_of_the_members(self, queue: Queue) -> None:
        ids = make(queue, 3, on_success={"kind": "success"})
        for job_id in reversed(ids):
            end(queue, job_id)
        fold(queue)
        assert [job.result for job in queue.parents(ON_SUCCESS)] == ids

    def test_members_may_depend_on_each_other(self, queue: Queue) -> None:
        with queue.group("g", on_success={"kind": "success"}) as group:
            first = group.enqueue("a")
            second = group.enqueue("b", after=[first])
            third = group.enqueue("c", after=[0, second])
        for job_id in (first, second, third):
            assert existing(queue, ON_SUCCESS) == []
            end(queue, job_id)
            fold(queue)
        assert queue.get(ON_SUCCESS).state == "ready"

    def test_a_group_without_members_ends_at_once(self, queue: Queue) -> None:
        make(queue, 0, **CALLBACKS)
        fold(queue)
        assert queue.groups.get("g").state == "done"
        assert existing(queue, ON_END, ON_SUCCESS, FIRST) == [ON_END, ON_SUCCESS]

    @pytest.mark.parametrize("refusal", ["draining", "retired"])
    def test_a_refused_callback_is_stored_as_failed_and_the_group_ends(self, queue: Queue, refusal: str) -> None:
        ids = make(queue, 1, on_end={"kind": "end", "lane": "late"})
        if refusal == "draining":
            queue.lanes.set("late", state="draining")
        else:
            queue.kinds.retire("end")
        end(queue, ids[0])
        fold(queue)

        called = queue.get(ON_END)
        assert (called.state, called.failure and called.failure.reason) == ("failed", "callback_refused")
        assert called.failure is not None
        assert refusal in called.failure.message
        assert queue.groups.get("g").finished
        if refusal == "draining":
            queue.lanes.set("late", state="active")
        else:
            queue.kinds.restore("end")
        assert queue.requeue(ON_END).state == "ready"
        assert [job.id for job in queue.parents(ON_END)] == ids


class TestMembers:
    @pytest.mark.parametrize("options", [{}, {"session": "s"}, {"session": "s", "message_id": "m"}], ids=str)
    def test_the_id_that_the_block_returns_is_that_of_the_job(self, queue: Queue, options: dict[str, Any]) -> None:
        with queue.group("g") as group:
            first = group.enqueue("page", **options)
            second = group.enqueue("index", after=[first])
        assert [job.id for job in queue.parents(second)] == [first]
        assert sorted(job.id for job in queue.jobs(group="g")) == sorted([first, second])

    def test_one_that_had_ended_before_it_joined_is_counted_again_after_a_requeue(self, queue: Queue) -> None:
        first = queue.enqueue("page", dedupe_key="k", dedupe_for=600)
        end(queue, first.id, done=False)
        with queue.group("g", on_success={"kind": "success"}) as group:
            group.enqueue("page", dedupe_key="k", dedupe_for=600)
            group.enqueue("page.1", job_id="other")
        assert (queue.groups.get("g").failed, queue.groups.get("g").unfinished) == (1, 1)
        queue.requeue(first.id)
        assert queue.groups.get("g").unfinished == 2
        end(queue, "other")
        end(queue, first.id)
        fold(queue)
        assert queue.groups.get("g").state == "done"
        assert existing(queue, ON_SUCCESS) == [ON_SUCCESS]

    def test_an_entry_that_was_enqueued_before_is_the_member(self, queue: Queue) -> None:
        entry = queue.enqueue("page", session="s", message_id="m")
        with queue.group("g") as group:
            assert group.enqueue("page", session="s", message_id="m") != entry.id
        assert [job.id for job in queue.jobs(group="g")] == [entry.id]

    def test_an_exception_stores_nothing(self, queue: Queue) -> None:
        def interrupted() -> None:
            with queue.group("g") as group:
                group.enqueue("page")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            interrupted()
        assert queue.counts() == {}
        with pytest.raises(GroupNotFound):
            queue.groups.get("g")

    def test_a_refused_member_refuses_all(self, queue: Queue) -> None:
        queue.lanes.set("late", state="draining")
        with pytest.raises(LaneDraining):
            fill(queue, ["default", "late"])
        assert queue.counts() == {}
        assert queue.groups.list() == []

    def test_a_block_of_the_same_name_joins_until_the_group_is_sealed(self, queue: Queue) -> None:
        first = make(queue, 1, seal=False)
        end(queue, first[0])
        fold(queue)
        assert (queue.groups.get("g").state, queue.groups.get("g").done) == ("open", 1)
        second = make(queue, 1, on_success={"kind": "success"})
        with pytest.raises(Conflict, match="sealed"):
            make(queue, 1)
        assert (queue.groups.get("g").state, queue.groups.get("g").members) == ("running", 2)
        end(queue, second[0])
        fold(queue)
        assert queue.groups.get("g").state == "done"
        assert queue.get(ON_SUCCESS).state == "ready"
        assert [job.id for job in queue.parents(ON_SUCCESS)] == [*first, *second]

    def test_another_callback_of_an_open_group_is_a_conflict(self, queue: Queue) -> None:
        make(queue, 1, on_end={"kind": "end"}, seal=False)
        with pytest.raises(Conflict, match="on_end"):
            make(queue, 1, on_end={"kind": "other"})
        make(queue, 1, on_end={"kind": "end"})

    def test_a_duplicate_is_a_member_too(self, queue: Queue) -> None:
        waiting = queue.enqueue("page", dedupe_key="k")
        done = queue.enqueue("other", job_id="done")
        end(queue, done.id)
        with queue.group("g", on_success={"kind": "success"}) as group:
            group.enqueue("page", dedupe_key="k")
            group.enqueue("page", dedupe_key="k")
            group.enqueue("other", job_id="done")
        assert (queue.groups.get("g").members, queue.groups.get("g").done) == (2, 1)
        end(queue, waiting.id)
        fold(queue)
        assert queue.groups.get("g").state == "done"

    def test_names_belong_to_a_tenant(self, queue: Queue) -> None:
        make(queue, 1)
        make(queue, 2, tenant="acme", on_end={"kind": "end"})
        assert [job.tenant for job in queue.jobs(tenant="acme")] == ["acme", "acme"]
        assert (queue.groups.get("g").members, queue.groups.get("g", tenant="acme").members) == (1, 2)
        assert [one.tenant for one in queue.groups.list()] == ["acme", "default"]
        assert [one.tenant for one in queue.groups.list(tenant="acme")] == ["acme"]
        queue.groups.cancel("g", tenant="acme")
        fold(queue)
        assert [job.kind for job in queue.jobs(tenant="acme", state="ready")] == ["end"]
        with pytest.raises(GroupNotFound):
            queue.groups.get("g", tenant="none")


class TestOperating:
    def test_members_are_listed_in_pages_and_with_other_filters(self, queue: Queue) -> None:
        ids = make(queue, 5)
        make(queue, 2, tenant="acme")
        queue.enqueue("page.0")
        end(queue, ids[3])
        assert [job.id for job in queue.jobs(group="g", state="done")] == [ids[3]]
        assert [job.id for job in queue.jobs(group="g", kind="page.1", tags={})] == [ids[1]]
        assert len(queue.jobs(group="g", tenant="acme")) == 2
        assert list(queue.jobs(group="other")) == []
        first = queue.jobs(group="g", limit=3)
        rest = queue.jobs(group="g", limit=3, after=first.cursor)
        assert [job.id for job in (*first, *rest)] == ids[::-1]
        assert rest.cursor is None

    def test_a_caller_waits_for_a_group_without_any_worker(self, queue: Queue) -> None:
        ids = make(queue, 2)
        with pytest.raises(WaitTimeout):
            queue.groups.wait("g", timeout=0)
        for job_id in ids:
            end(queue, job_id)
        assert queue.groups.wait("g", timeout=60).state == "done"

    def test_cancel_seals_and_cancels_in_chunks(self, queue: Queue) -> None:
        ids = make(queue, 450, on_end={"kind": "end"}, seal=False)
        running = start(queue, queue.get(ids[0]))
        report = queue.groups.cancel("g")
        assert (len(report.cancelled), report.stop_requested) == (449, [ids[0]])
        queue.settle(running, Done())
        fold(queue, 4)
        group = queue.groups.get("g")
        assert (group.state, group.cancelled, group.done) == ("failed", 449, 1)
        assert queue.get(ON_END).state == "ready"
        assert queue.groups.cancel("g").cancelled == []

    def test_members_whose_kind_is_retired_count_as_ended(self, queue: Queue) -> None:
        ids = make(queue, 2, on_end={"kind": "end"})
        end(queue, ids[0])
        queue.kinds.retire(queue.get(ids[1]).kind)
        fold(queue, 2)
        group = queue.groups.get("g")
        assert (group.finished, group.done, group.unfinished) == (True, 1, 0)
        assert queue.get(ON_END).state == "ready"

    def test_a_requeued_member_is_waited_for_again_until_the_group_has_ended(self, queue: Queue) -> None:
        ids = make(queue, 2, **CALLBACKS)
        end(queue, ids[0], done=False)
        fold(queue)
        queue.requeue(ids[0])
        assert (queue.groups.get("g").failed, queue.groups.get("g").unfinished) == (0, 2)
        end(queue, ids[1])
        fold(queue)
        assert not queue.groups.get("g").finished
        end(queue, ids[0], done=False)
        fold(queue)
        assert queue.groups.get("g").state == "failed"
        queue.requeue(ids[0])
        end(queue, ids[0])
        fold(queue)
        group = queue.groups.get("g")
        assert (group.state, group.failed, group.done) == ("failed", 1, 1)

    def test_a_look_at_a_group_that_has_ended_changes_nothing(
        self, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = make(queue, 2, on_end={"kind": "end"}, seal=False)
        for job_id in ids:
            end(queue, job_id)
        queue.groups.cancel("g")  # appends a wake row of the group after those of its members
        monkeypatch.setattr(limits, "CHUNK", 1)
        fold(queue)
        ended = queue.groups.get("g")
        assert ended.finished
        clock.advance(10)
        fold(queue)
        assert queue.groups.get("g") == ended
        assert [job.id for job in queue.jobs(kind="end")] == [ON_END]

    def test_a_member_requeued_before_its_end_was_counted_is_counted_once(self, queue: Queue) -> None:
        ids = make(queue, 2)
        end(queue, ids[0], done=False)
        queue.requeue(ids[0])
        end(queue, ids[1])
        fold(queue)
        assert (queue.groups.get("g").state, queue.groups.get("g").done) == ("running", 1)
        end(queue, ids[0])
        fold(queue)
        assert queue.groups.get("g").state == "done"

    def test_retention_keeps_members_until_the_callbacks_have_ended(self, queue: Queue, clock: ManualClock) -> None:
        ids = make(queue, 2, on_success={"kind": "success"})
        end(queue, ids[0])
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 0
        end(queue, ids[1])
        fold(queue)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 0
        end(queue, ON_SUCCESS)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 3
        with pytest.raises(GroupNotFound):
            queue.groups.get("g")
        make(queue, 1, on_success={"kind": "success"})
        assert queue.groups.get("g").state == "running"

    @pytest.mark.parametrize(
        "options", [{"dedupe_key": "key", "dedupe_for": 7200}, {"session": "s", "message_id": "m"}]
    )
    def test_a_duplicate_of_a_deleted_job_counts_by_how_that_ended(
        self, queue: Queue, clock: ManualClock, options: dict[str, Any]
    ) -> None:
        deleted = queue.enqueue("page", **options)
        queue.cancel(deleted.id)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 1
        with queue.group("g", on_end={"kind": "end"}) as group:
            group.enqueue("page", **options)
            group.enqueue("page.1", job_id="new")
        end(queue, "new")
        fold(queue)
        found = queue.groups.get("g")
        assert (found.members, found.done, found.cancelled, found.finished) == (2, 1, 1, True)
        end(queue, ON_END)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 2
        assert queue.groups.list() == []

    def test_a_duplicate_of_a_deleted_job_is_one_member_however_often_it_is_added(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        deleted = queue.enqueue("page", dedupe_key="k", dedupe_for=9_000)
        end(queue, deleted.id)
        clock.advance(3600)
        assert queue.admin.prune(older_than=60).jobs == 1
        for seal in (False, True):
            with queue.group("g", seal=seal) as group:
                group.enqueue("page", dedupe_key="k", dedupe_for=9_000)
        with queue.group("other") as group:
            group.enqueue("page", dedupe_key="k", dedupe_for=9_000)
        fold(queue)
        found = queue.groups.get("g"), queue.groups.get("other")
        assert [(one.members, one.done, one.state) for one in found] == [(1, 1, "done"), (1, 1, "done")]
        clock.advance(3600)
        queue.admin.prune(older_than=60)
        assert queue.groups.list() == []

    def test_retention_keeps_a_member_that_had_ended_before(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("page", job_id="old")
        end(queue, job.id)
        clock.advance(3600)
        with queue.group("g", on_success={"kind": "success"}) as group:
            group.enqueue("page", job_id="old")
        assert queue.admin.prune(older_than=60).jobs == 0
        fold(queue)
        assert [one.id for one in queue.parents(ON_SUCCESS)] == ["old"]

    def test_a_block_within_a_transaction_commits_with_it(self, queue: Queue) -> None:
        def roll_back() -> None:
            with queue.transaction() as transaction:
                with transaction.group("g") as group:
                    group.enqueue("page")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            roll_back()
        assert queue.counts() == {}
        with queue.transaction() as transaction, transaction.group("g") as group:
            group.enqueue("page")
        assert queue.groups.get("g").members == 1


class TestRefusals:
    @pytest.mark.validation
    @pytest.mark.parametrize("other", [{"session": "s"}, {"root": "r"}, {"fingerprint": "0" * 16}])
    def test_a_list_of_members_has_no_other_index(self, queue: Queue, other: dict[str, Any]) -> None:
        with refused(queue, "group"):
            queue.jobs(group="g", **other)

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"name": "a:b"}, "name"),
            ({"name": "x" * 121}, "name"),
            ({"tenant": ""}, "tenant"),
            ({"on_end": {"payload": 1}}, "on_end.kind"),
            ({"on_end": "end"}, "on_end"),
            ({"on_end": {"kind": "end", "after": ["a"]}}, "on_end.after"),
            ({"on_success": {"kind": "end", "job_id": "x"}}, "on_success.job_id"),
            ({"on_first_failure": {"kind": "end", "priority": "x"}}, "on_first_failure.priority"),
            ({"seal": 1}, "seal"),
        ],
    )
    def test_bad_options_are_refused(self, queue: Queue, options: dict[str, Any], field: str) -> None:
        with refused(queue, field):
            queue.group(**{"name": "g", **options})

    def test_a_bad_member_is_refused_where_it_is_added(self, queue: Queue) -> None:
        with queue.group("g") as group:
            for options in ({"tenant": "other"}, {"priority": "x"}):
                with pytest.raises(InvalidInput):
                    group.enqueue("page", **options)  # type: ignore[arg-type]
            group.enqueue("page")
        with pytest.raises(Conflict, match="ended"):
            group.enqueue("page")
        assert queue.counts() == {"ready": 1}

    @pytest.mark.validation
    def test_a_block_has_at_most_10_000_members(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="10000"):
            fill(queue, ["default"] * 10_001)

    @pytest.mark.validation
    def test_members_are_refused_outside_the_block_that_would_store_them(self, queue: Queue) -> None:
        group = queue.group("g")
        with pytest.raises(Conflict, match="within 'with'"):
            group.enqueue("page")

    def test_a_block_is_not_entered_twice(self, queue: Queue) -> None:
        with queue.group("g", seal=False) as group:
            group.enqueue("page")
        with pytest.raises(Conflict, match="open another one"), group:
            raise AssertionError
        assert queue.counts() == {"ready": 1}


def test_members_that_end_together_end_their_group_once(durable_harness: Harness) -> None:
    """Two settlements whose transactions are open at the same time, where the engine has several writers."""
    one, two = durable_harness.open(), durable_harness.open()
    for number in range(10):
        name = f"g{number}"
        ids = make(one, 2, name, on_end={"kind": "end"})
        claims = [start(one, one.get(job_id)) for job_id in ids]
        threads = [
            threading.Thread(target=queue.settle_and_claim, args=([(claim, Done())],), kwargs={"kinds": ["none"]})
            for queue, claim in zip((one, two), claims, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # What one of them could not decide, because the other had locked it, is looked at again a little later.
        durable_harness.clock.advance(seconds=1)
        fold(one, 2)
        assert one.groups.wait(name, timeout=60).done == 2
    assert len(list(one.jobs(kind="end"))) == 10


def test_a_member_that_ends_in_a_long_transaction_is_counted_after_its_commit(durable_harness: Harness) -> None:
    """Another client ends the other member, and counts, while the transaction is open, if the engine can."""
    one, two = durable_harness.open(), durable_harness.open()
    ids = make(one, 2, on_end={"kind": "end"})
    claims = [start(one, one.get(job_id)) for job_id in ids]
    settle = threading.Thread(target=two.settle_and_claim, args=([(claims[1], Done())],), kwargs={"kinds": ["none"]})
    with one.transaction() as transaction:
        transaction.settle(claims[0], Done())
        settle.start()
        settle.join(0.5)
        assert not two.groups.get("g").finished
    settle.join()
    durable_harness.clock.advance(seconds=1)
    fold(one, 2)
    assert (one.groups.get("g").state, one.get(ON_END).state) == ("done", "ready")


def test_an_end_is_counted_later_if_another_transaction_has_locked_the_group(durable_harness: Harness) -> None:
    """A caller adds a member in an open transaction, while another client ends one, if the engine can."""
    one, two = durable_harness.open(), durable_harness.open()
    with one.group("g", seal=False) as group:
        first = group.enqueue("page.0")
    claim = start(one, one.get(first))
    settle = threading.Thread(target=two.settle_and_claim, args=([(claim, Done())],), kwargs={"kinds": ["none"]})
    with one.transaction() as transaction:
        with transaction.group("g", seal=False) as joined:
            joined.enqueue("page.1")
        settle.start()
        settle.join(0.5)
    settle.join()
    durable_harness.clock.advance(seconds=1)
    fold(one, 2)
    assert one.groups.get("g").done == 1
