"""Every example runs on its own and prints the expected output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.sources import ROOT

SHOWN = {
    "hello.py": ["enqueued greet, it is ready", "it is done: Hello, Ada!"],
    "transactional_outbox.py": [
        "order 2 was rolled back, and its job with it",
        "jobs stored: ['invoice-1']",
        "orders: [(1, 'invoiced')]",
    ],
    "takeover.py": [
        "first holds the job at epoch 1",
        "second holds the job at epoch 2",
        "first is refused: it was claimed again, now at epoch 2",
        "first is refused: it was claimed again, now at epoch 2",
        "the result is 'by the second'",
        "attempt 1 by first: expired",
        "attempt 2 by second: done",
    ],
    "chat_agent.py": [
        "user: plan a trip to Rome",
        "user: for two people",
        "  turn 1 begins with ['plan a trip to Rome', 'for two people']",
        "user: by train, please",
        "user: /forget",
        "user: what did I ask?",
        "  turn 1 takes in ['by train, please']",
        "agent: you wrote: plan a trip to Rome; for two people; by train, please",
        "  turn 2 runs a command",
        "agent: all forgotten",
        "  turn 3 begins with ['what did I ask?']",
        "agent: you wrote: what did I ask?",
        "3 turns for 5 entries",
    ],
    "limited_calls.py": [
        "4 calls, reports: []",
        "4 calls, reports: []",
        "2 calls, reports: []",
        "0 calls, reports: ['ada', 'grace']",
        "most calls at once: {'ada': 2, 'grace': 2}",
    ],
    "token_budget.py": [
        "8 pages, 1,200 tokens used of 3,200 that were asked for",
        "most tokens at once: 1,000",
    ],
    "pipeline.py": [
        "oldest: step 33 of 56 indexes the first page; at most 24 pages wait half done",
        "oldest: published [0, 1, 2, 3, 4, 5, 6, 7]",
        "listed: step 3 of 56 indexes the first page; at most 3 pages wait half done",
        "listed: published [0, 1, 2, 3, 4, 5, 6, 7]",
    ],
    "gateway_backlog.py": [
        "30 requests for 3 models, in random order",
        "direct calls load a model for more than every third request: True",
        "the gateway loads each model once: True",
    ],
    "worker_basics.py": [
        "Hello, Ada!",
        "https://example.org at attempt 2",
        "open at attempt 1",
        "deferred: 1",
        "done: 3",
        "retried: 1",
    ],
}
LOGGED = {
    "gateway_backlog.py": r"direct   #+ \d+\ngateway  ### 3\n",
    "worker_basics.py": r"job #\d+ \(.*\) page.fetch failed \(attempt 1 of 3\): connection_error: .*; retrying .*\n",
}
"""Expected log output on standard error; other examples log nothing."""


def test_every_example_has_an_expected_output() -> None:
    # The receiver of webhooks is run by the tests of the service, the chat by those of the gateway.
    elsewhere = {"webhook_receiver.py", "gateway_chat.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*SHOWN, *elsewhere}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_its_expected_output(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert re.fullmatch(LOGGED.get(name, ""), ran.stderr)
    assert ran.stdout.splitlines() == SHOWN[name]
    assert list(tmp_path.iterdir()) == []
