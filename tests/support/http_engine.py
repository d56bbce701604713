"""The conformance suite over HTTP: its harness, and the only list of what it leaves out, with the reasons."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import holdfast
from holdfast.client.queue_state import state_of
from holdfast.domain import limits
from holdfast.storage.store import Store
from tests.support.stores import Harness, harnesses, migrated_file

CLOCK = "moves the clock of the store, or relies on one that stands still"
JOINS = "opens or joins a transaction"
REPORT = "reads the report of the store"
FAULTS = "injects faults into the store of this process"
PATCHES = "changes what is not a limit of the store, such as how often a process looks"
ROWS = "compares or reads columns that are not public, such as the lease token of a job"
CODEC = "checks an encoded payload by the schema of its kind, but the server never sees the payload"
TASKS = "declares tasks, which the server does not know"
ACTOR = "names the actor of an action, which over HTTP is the token of the caller"

# Every test with the fixture `clock` is left out as well. Limits that a test changes are changed in the server too;
# what no client does is done in the store beside the server (`store_of`).
EXCLUDED_FILES: dict[str, str] = {
    "test_abandoned_claims": FAULTS,
    "test_crash_points": FAULTS,
    "test_output_state_machine": CLOCK,
    "test_rollup_writes": PATCHES,
    "test_sessions_state_machine": CLOCK,
    "test_state_machine": CLOCK,
    "test_transactions": JOINS,
}
EXCLUDED_TESTS: dict[str, str] = {
    "test_acknowledge::test_the_given_number_of_claims_of_a_batch_is_acknowledged": ROWS,
    "test_artifacts::test_artifacts_of_a_rolled_back_settlement_are_not_stored": JOINS,
    "test_async_api::test_a_call_cancelled_before_a_thread_started_it_blocks_no_other": JOINS,
    "test_async_api::test_a_cancelled_task_rolls_its_transaction_back": JOINS,
    "test_async_api::test_a_commit_stores_everything_and_a_rollback_nothing": JOINS,
    "test_async_api::test_a_refusal_inside_stores_nothing_and_the_transaction_continues": JOINS,
    "test_async_api::test_a_settle_rolled_back_leaves_the_job_running_and_settleable": JOINS,
    # Both clients are served by one process, which keeps one count.
    "test_bounded_lanes::test_what_was_counted_is_used_for_a_tenth_of_a_second": CLOCK,
    "test_cancel::test_a_cancel_that_is_rolled_back_has_no_effect": JOINS,
    "test_claim_content::test_columns_that_are_not_public_are_returned_as_well": ROWS,
    "test_codec::test_the_schema_of_a_kind_is_checked_before_encoding": CODEC,
    "test_codec::test_transactions_decode_them_too": JOINS,
    "test_dedupe_for::test_a_call_that_is_rolled_back_keeps_no_key": JOINS,
    "test_dependencies::test_a_rolled_back_enqueue_leaves_nothing": JOINS,
    "test_groups::test_a_block_within_a_transaction_commits_with_it": JOINS,
    "test_groups::test_a_member_that_ends_in_a_long_transaction_is_counted_after_its_commit": JOINS,
    "test_events::test_a_rolled_back_change_is_not_recorded": JOINS,
    "test_events::test_changes_committed_together_are_recorded_together": JOINS,
    "test_fairness::test_a_job_that_runs_while_its_lane_changes_returns_to_the_new_order": CLOCK,
    "test_input_artifacts::test_a_rolled_back_enqueue_stores_none": JOINS,
    "test_kinds::test_it_is_checked_in_the_transaction_of_the_caller": JOINS,
    # It changes the id of a claim, but not its number; over HTTP the id, epoch and token are the whole proof.
    "test_lease::test_a_claim_of_one_job_gives_no_access_to_another": ROWS,
    "test_limits::test_parked_jobs_that_nothing_looks_at_are_found_and_offered_room": REPORT,
    "test_middleware::test_the_transaction_of_an_async_queue_runs_within_it_as_well": JOINS,
    "test_output::test_text_of_a_rolled_back_transaction_is_not_stored": JOINS,
    # The server waits for output, not the client.
    "test_output::test_a_notification_and_not_a_poll_brings_each_chunk_and_the_end": PATCHES,
    "test_priority::test_a_change_that_is_rolled_back_has_no_effect": JOINS,
    "test_remote_leases::test_it_settles_within_a_transaction": JOINS,
    "test_requeue::test_a_requeue_that_is_rolled_back_has_no_effect": JOINS,
    "test_schedules::test_a_program_may_set_a_payload_for_its_own_newer_task": TASKS,
    "test_sessions_claim::test_the_entries_belong_to_the_worker_and_the_lease_of_the_turn": CLOCK,
    # A client sends the id of an entry, so that the request can be sent again.
    "test_sessions_message_ids::test_an_id_is_derived_if_none_is_given": ROWS,
    "test_sessions_settle::test_an_entry_enqueued_in_a_transaction_is_visible_after_the_commit": JOINS,
    "test_sessions_settle::test_or_not_at_all": JOINS,
    "test_sessions_settle::test_state_and_settlement_commit_together": JOINS,
    "test_settle::test_follow_ups_rolled_back_with_the_callers_transaction_leave_nothing": JOINS,
    "test_tags::test_a_rolled_back_enqueue_leaves_nothing": JOINS,
    "test_tokens::test_changes_of_tokens_are_recorded_with_the_actor": ACTOR,
    "test_unserved::test_the_report_names_unserved_jobs": REPORT,
    "test_uploads::test_a_rolled_back_link_can_be_made_again": JOINS,
    # Over HTTP the reader of a replaced artifact gets the error at once, not only after the old bytes were deleted.
    "test_uploads::test_an_artifact_that_is_replaced_while_it_is_read_stays_the_same_or_ends_with_an_error": ROWS,
    "test_uploads::test_the_bytes_of_a_replaced_artifact_are_deleted": ROWS,
    "test_webhooks::test_410_disables_with_reason_audit_entry_notice_and_finding": REPORT,
    "test_webhooks::test_doctor_says_that_no_process_sends": REPORT,
    "test_webhooks::test_every_change_is_recorded_with_the_actor": ACTOR,
}


def runs(test: pytest.Item) -> bool:
    """Return whether a test belongs to the conformance suite."""
    return test.path.parent.name == "conformance"


def reason(test: pytest.Item) -> str | None:
    """Return why a test of the suite cannot run over HTTP; None if it can."""
    name = getattr(test, "originalname", test.name)
    if "clock" in getattr(test, "fixturenames", ()):
        return CLOCK
    return EXCLUDED_FILES.get(test.path.stem) or EXCLUDED_TESTS.get(f"{test.path.stem}::{name}")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that cannot run over HTTP, and those without a store."""
    for item in items:
        if runs(item):
            # Tests leave clients open, also in event loops that have ended.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
    left_out = [item for item in items if runs(item) and (reason(item) or "harness" not in _fixtures(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


class ServerProcess:
    """The server of this test process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.http_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.kill)
        self.url = f"http://127.0.0.1:{int(self._answer())}"
        self._serves = False

    def serve(self, path: Path) -> None:
        """Serve a file."""
        self._tell(str(path))
        assert self._answer() == "serving"
        self._serves = True

    def close(self) -> None:
        """Close the file; changed limits are as before."""
        self._serves = False
        self._tell("")
        assert self._answer() == "closed"

    def change_limits(self, changed: dict[str, int]) -> None:
        """Change limits of the server, besides which all are as before."""
        if self._serves:
            self._tell(json.dumps(changed))
            assert self._answer() == "changed"

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@functools.cache
def server_process() -> ServerProcess:
    """Return the server, started once."""
    return ServerProcess()


class SharedPatches:
    """A `MonkeyPatch` that changes limits in the server too."""

    def __init__(self) -> None:
        self._here = pytest.MonkeyPatch()
        self._limits: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)

    def setattr(self, target: Any, *given: Any, **options: Any) -> None:
        """Change an attribute in this process, and a limit also in the server."""
        self._here.setattr(target, *given, **options)
        path = f"{target.__name__}.{given[0]}" if target is limits else str(target)
        module, _, name = path.rpartition(".")
        if module == limits.__name__:
            self._limits[name] = given[-1]
            server_process().change_limits(self._limits)

    def undo(self) -> None:
        """Undo all changes."""
        self._here.undo()
        if self._limits:
            self._limits = {}
            server_process().change_limits({})


class HttpHarness(Harness):
    """A new store behind the server, and as many HTTP clients as a test needs."""

    def __init__(self, folder: Path) -> None:
        super().__init__("sqlite-file", folder)
        path = folder / "jobs.db"
        path.write_bytes(migrated_file())
        self._server = server_process()
        self._server.serve(path)
        self._beside: holdfast.Queue | None = None

    def open(self) -> holdfast.Queue:
        """Return another client."""
        # Every test process imports this module, but only those that run tests over HTTP need an HTTP client.
        from holdfast.remote.store import HttpStore

        queue = holdfast.connect(self._server.url)
        store = state_of(queue).store
        assert isinstance(store, HttpStore)
        # What a test calls the statements of a queue are its requests.
        store._http()._client.event_hooks = {"request": [lambda request: self.faults.seen.append(request.url.path)]}
        harnesses[queue] = self
        self._opened.append(queue)
        return queue

    def open_async(self) -> holdfast.AsyncQueue:
        """Return an async client."""
        return holdfast.connect_async(self._server.url)

    def store_of(self, queue: holdfast.Queue) -> Store:
        """Return the store behind the server, opened in this process."""
        self._beside = self._beside or holdfast.connect(self._path)
        return state_of(self._beside).store

    def close(self, *, trusted: bool = True) -> None:
        """Close the clients, and the store of the server."""
        self._close_clients()
        if self._beside is not None:
            self._beside.close()
        self._server.close()

    def _store(self) -> NoReturn:
        raise AssertionError("a test over HTTP opens no store")
