"""Every PostgreSQL that is found runs the functions and statements of the schema; the other tests use one of them."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Done, Failed, NewJob
from tests.support.postgres_installations import Installation, installations, preferred
from tests.support.postgres_server import Server


@pytest.mark.slow("a server of its own is started")
@pytest.mark.parametrize(
    "installation", [one for one in installations() if one.major != preferred().major], ids=lambda one: one.name
)
def test_jobs_and_sessions_run_on_every_server_that_is_found(installation: Installation) -> None:
    server = Server(installation)
    server.start()
    try:
        with holdfast.connect(server.url) as queue:
            queue.migrate()
            _run_jobs(queue)
            _run_turns(queue)
            assert "problem" not in {finding.status for finding in queue.admin.report().findings}
            pruned = queue.admin.prune(older_than=0)
            assert (pruned.jobs, pruned.events) == (28, 28)
            assert queue.counts() == {}
    finally:
        server.close()


def _run_jobs(queue: holdfast.Queue) -> None:
    """Run 23 jobs in plain and in full forms."""
    for number in range(3):
        queue.enqueue("mail", {"number": number}, dedupe_key=f"key{number}", tags={"order": str(number)})
    queue.enqueue_many([NewJob("mail", tenant=f"t{number % 3}") for number in range(20)])
    failing = queue.claim()
    assert failing is not None
    queue.heartbeat(failing)
    assert queue.settle(failing, Failed("no", permanent=True)).state == "failed"
    done, pairs = 0, list[tuple[holdfast.Claim, holdfast.Outcome]]()
    while claims := queue.settle_and_claim(pairs, limit=7).claims:
        done += len(claims)
        pairs = [(claim, Done({"ok": True})) for claim in claims]
    assert done == 22
    assert queue.counts() == {"done": 22, "failed": 1}


def _run_turns(queue: holdfast.Queue) -> None:
    """Run five entries of two sessions."""
    for number in range(5):
        queue.enqueue("chat", number, session=f"s{number % 2}", join=True)
    sizes = []
    while turn := queue.sessions.claim_next():
        sizes.append(len(turn.entries))
        assert {job.state for job in queue.sessions.settle(turn, Done())} == {"done"}
    assert sorted(sizes) == [2, 3]
