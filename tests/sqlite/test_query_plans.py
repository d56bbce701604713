"""No statement scans or sorts the jobs, except a few that are listed here with the reason."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.storage.sqlite.sql import QUERIES

# Statements for users, not for workers: they read every job, and their documentation says so.
COUNTS = {name for name in QUERIES if name.startswith("counts_by_")}
ALLOWED = {
    **dict.fromkeys(COUNTS, "counts every job"),
    "jobs_count": "counts every job that an operator's filter matches",
    "events_aged": "counts events for an operator who is about to prune them",
    "holders_delete_unused": "looks for the numbers of a thousand starts of workers at once, after as many new ones",
    "incarnations_delete": "sorts the few starts of one worker",
    "session_expired": "sorts the running entries of one session, at most those of one claim",
    "ready_plain_routes": "sorts the first job of each route, of at most 32 routes",
    "ready_plain_streams": "sorts the first jobs of each fair_key and route, of at most 32 routes",
    "jobs_running_on_routes": "looks at all running jobs, once when an operator sets a limit",
    "jobs_uncounted": "looks at all running jobs, in maintenance and for doctor",
    "wake_gates": "sorts the gates of the jobs of one call",
    "backlog_affinities": "groups ready jobs, of which it reads at most 10,000",
    "lane_oldest": "sorts the first jobs of at most 1,000 tenants at 32 priorities of each route of a lane",
    "gates_waiting": "groups parked jobs, of which it reads at most 10,000",
    "parents_of_job": "sorts the jobs on which one job depends",
    "children_cancelled": "sorts the jobs that depend on the jobs of one requeue",
    "tokens_newest": "sorts the tokens, which operators create one at a time",
    "webhooks_newest": "sorts the webhooks, which operators add one at a time",
    "fair_key_trim": "sorts the rounds, of which a thousand are kept",
}
LARGE_TABLES = {
    "holdfast_job",
    "holdfast_job_row",
    "holdfast_event",
    "holdfast_attempt",
    "holdfast_artifact",
    "holdfast_output",
    "holdfast_upload",
    "holdfast_upload_chunk",
    "holdfast_session",
    "holdfast_session_row",
    "holdfast_session_message_id",
    "holdfast_kept_key",
    "holdfast_tag",
    "holdfast_wake",
}
LISTS = {"routes", "prefixes", "matches", "seqs", "ids", "affinities", "sessions", "numbers", "names", "keys"} | {
    "uploads",
    "held",
    "wakes",
}
PAIRS = {"results", "digests", "events", "indexes", "tags"}


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """A migrated file, once without statistics and once with those of a user's ANALYZE."""
    path: Path = tmp_path_factory.mktemp("plans") / "jobs.db"
    with holdfast.connect(str(path)) as queue:
        fill(queue)
    connection = sqlite3.connect(path)
    if request.param == "analyzed":
        connection.execute("analyze")
        connection.commit()
        connection.close()
        connection = sqlite3.connect(path)
    yield connection
    connection.close()


def fill(queue: holdfast.Queue) -> None:
    queue.enqueue_many(
        [
            {
                "kind": f"kind{n % 3}",
                "tenant": f"tenant{n % 7}",
                "priority": n % 2,
                "delay": n % 4,
                "dedupe_key": str(n),
            }
            for n in range(300)
        ]
    )
    queue.enqueue_many([{"kind": "once", "dedupe_key": str(n), "dedupe_for": 60 + n} for n in range(300)])
    queue.enqueue_many([{"kind": "placed", "affinity": f"model{n % 5}", "deadline": 1000} for n in range(200)])
    queue.enqueue_many(
        [
            {
                "kind": "chat",
                "session": f"session{n % 40}",
                "message_id": str(n),
                "tenant": f"tenant{n % 7}",
                "join": True,
            }
            for n in range(300)
        ]
    )
    queue.enqueue_many([{"kind": "tagged", "tags": {"order": str(n), "customer": str(n % 3)}} for n in range(300)])
    queue.enqueue("start", job_id="root", lane="trees")
    start = queue.claim(lanes=["trees"])
    assert start is not None
    queue.settle(start, holdfast.Done(follow_ups=[{"kind": "next"} for _ in range(200)]))
    while claim := queue.sessions.claim_next(tenant="tenant3"):
        queue.sessions.settle(claim, holdfast.Done())
    claims = queue.claim_many(kinds=["placed"], limit=100)
    queue.settle_many([(claim, holdfast.Done()) for claim in claims[:80]])


def plan_of(database: sqlite3.Connection, name: str) -> list[str]:
    text = re.sub(r"--.*", "", QUERIES[name])
    if text.count("?"):
        # Numbered values may occur several times.
        numbers = {int(number) for number in re.findall(r"\?(\d+)", text)}
        values: object = [None] * (max(numbers) if numbers else text.count("?"))
    else:
        names = set(re.findall(r"(?<!:):(\w+)", text))
        values = {name: "[]" if name in LISTS else "{}" if name in PAIRS else 1 for name in names}
    return [row[3] for row in database.execute(f"explain query plan {text}", values)]  # type: ignore[arg-type]


def planned() -> list[str]:
    return sorted(name for name in QUERIES if not re.search(r"pragma|savepoint|release|rollback", QUERIES[name]))


def scans_or_sorts(name: str, line: str) -> bool:
    aliases = set(
        re.findall(r"holdfast_(?:job|event|attempt|artifact|output|session|upload)\w* (\w)\b", QUERIES[name])
    )
    scanned = re.match(r"SCAN (\w+)(?! VIRTUAL)", line)
    return "TEMP B-TREE" in line or (scanned is not None and scanned[1] in LARGE_TABLES | aliases)


def test_no_statement_scans_or_sorts_the_jobs(database: sqlite3.Connection) -> None:
    names = [name for name in planned() if name not in ALLOWED]
    found = [(name, line) for name in names for line in plan_of(database, name) if scans_or_sorts(name, line)]

    assert len(names) > 200
    assert found == []


def test_what_is_allowed_to_scan_or_sort_does(database: sqlite3.Connection) -> None:
    plans = {name: plan_of(database, name) for name in ALLOWED}
    needless = [
        name
        for name, lines in plans.items()
        if not any(line.startswith("SCAN ") or "TEMP B-TREE" in line for line in lines)
    ]

    assert needless == [], "drop these from the list"


def test_a_statement_that_scans_would_be_noticed(database: sqlite3.Connection) -> None:
    rows = database.execute("explain query plan select seq from holdfast_job where phase = 'x'").fetchall()
    assert rows[0][3].startswith("SCAN holdfast_job")


def test_heads_are_found_through_an_index_on_every_column_that_filters(database: sqlite3.Connection) -> None:
    names = [name for name in planned() if name.startswith("ready_heads")]
    assert names
    for name in names:
        [seek] = [line for line in plan_of(database, name) if "INDEX holdfast_job_" in line]
        assert "route=? AND priority=?" in seek, name


def test_a_plain_form_opens_no_index_that_few_jobs_are_in(database: sqlite3.Connection) -> None:
    claims = ("job_claim_next_plain", "job_claim_range_plain", "job_claim_list_plain")
    for name in (*claims, "job_done_plain", "job_done_range_plain", "job_done_list_plain"):
        assert opened(database, name) <= {"ready", "scheduled", "ends", "line"}, name


def test_an_index_that_is_opened_would_be_noticed(database: sqlite3.Connection) -> None:
    assert {"dedupe", "deadline", "permit"} <= opened(database, "job_claim_next")


def opened(database: sqlite3.Connection, name: str) -> set[str]:
    """Return the indexes of jobs that a statement opens for writing."""
    indexes = dict(database.execute("select rootpage, name from sqlite_schema where name like 'holdfast_job_%'"))
    values = dict.fromkeys(re.findall(r"(?<!:):(\w+)", QUERIES[name]))
    steps = database.execute(f"explain {QUERIES[name]}", values)
    pages = {step[3] for step in steps if step[1] == "OpenWrite"}
    return {found.removeprefix("holdfast_job_") for page, found in indexes.items() if page in pages}


def test_a_job_in_a_rare_index_cannot_lose_its_state_there(database: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="rare_state"):
        database.execute("update holdfast_job set state = 20 where rare_state is not null and state < 10")


def test_each_gate_is_found_by_limit_and_key(database: sqlite3.Connection) -> None:
    for name in ("gates_read", "gates_find", "gate_usage_add"):
        first, seek = plan_of(database, name)[:2]
        assert first.startswith("SCAN p"), name
        assert "flow_limit=? AND key=?" in seek, name
