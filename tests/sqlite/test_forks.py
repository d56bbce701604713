"""Forks while other threads and tasks use the store: the parent and the child both go on.

Each test runs in a new interpreter, because the order in which modules are imported is the order of fork handlers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment

PATIENCE_SECONDS = 60
# Handlers run before a fork in the reverse order of their registration: this one, after the store was suspended.
_BEGINNING = """
import os, threading, time
during_fork = lambda: None
os.register_at_fork(before=lambda: during_fork())
import asyncio
import holdfast
from holdfast.client.connect import async_queue_on
from holdfast.client.queue_state import state_of

queue = holdfast.connect("jobs.db")
queue.enqueue("mail", job_id="first")
waiting = state_of(queue).store._writer._queue

def fork():
    child = os.fork()
    if child == 0:
        try:
            queue.enqueue("mail")
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(folder: Path, script: str) -> str:
    """Run *script* after the common beginning; return its output."""
    ran = subprocess.run(
        [sys.executable, "-c", _BEGINNING + script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow("starts an interpreter")
def test_a_task_that_is_queued_during_a_fork_runs_after_it(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
awaited = async_queue_on(state_of(queue).store)
calls = []

def during_fork():
    calls.append(asyncio.run_coroutine_threadsafe(awaited.enqueue("mail"), loop))
    while not waiting.queue:
        time.sleep(0.001)

print(fork(), calls[0].result(30).created, queue.counts(), flush=True)
os._exit(0)  # if it failed, a thread would keep the process
""",
    )

    assert output == "0 True {'ready': 3}\n"


@pytest.mark.slow("starts an interpreter")
def test_two_threads_fork_at_the_same_time(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
codes = []
second = threading.Thread(target=lambda: codes.append(fork()))

def during_fork():
    global during_fork
    during_fork = lambda: None
    second.start()
    # Until the second thread is about to suspend the store, if it does not wait for this fork.
    deadline = time.monotonic() + 0.3
    while not waiting.queue and time.monotonic() < deadline:
        time.sleep(0.001)

codes.append(fork())
second.join()
queue.enqueue("mail")
print(codes, queue.counts())
""",
    )

    assert output == "[0, 0] {'ready': 4}\n"


_IN_TRANSACTION = """
import subprocess, sys
waits, wakes = os.pipe()
child = None
try:
    with queue.transaction() as transaction:
        transaction.enqueue("mail", job_id="of the parent")
        child = os.fork()
        if child == 0:
            os.read(waits, 1)
            {child}
except holdfast.errors.Misconfigured as error:
    print(str(error)[:32], flush=True)
if child == 0:
    os._exit(0)
queue.enqueue("mail", job_id="after it")
{parent}
os.write(wakes, b".")
os.waitpid(child, 0)
print(sorted(job.id for job in queue.jobs().jobs))
"""


@pytest.mark.slow("starts an interpreter")
@pytest.mark.parametrize("child", ["pass", 'transaction.enqueue("mail")', 'transaction.execute("select 1")'])
def test_a_process_forked_within_a_transaction_does_not_commit_it(tmp_path: Path, child: str) -> None:
    output = run(tmp_path, _IN_TRANSACTION.format(child=child, parent=""))

    assert output == "this process was forked while a \n['after it', 'first', 'of the parent']\n"


@pytest.mark.slow("starts two interpreters")
def test_the_end_of_a_process_forked_within_a_transaction_deletes_no_log_of_others(tmp_path: Path) -> None:
    """The last connection that is closed copies the log into the file, as it knows it, and deletes it."""
    other = "import os, holdfast; holdfast.connect('jobs.db').enqueue('mail', job_id='of another'); os._exit(9)"
    parent = f"queue.close(); subprocess.run([sys.executable, '-c', {other!r}])"

    output = run(tmp_path, _IN_TRANSACTION.format(child="sys.exit()", parent=parent))

    assert output == "['after it', 'first', 'of another', 'of the parent']\n"
