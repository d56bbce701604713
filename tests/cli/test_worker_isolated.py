"""`holdfast worker` with isolated handlers: options, processes, and signals to all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.chaos.threads import wait_until
from tests.cli.test_worker import start_error
from tests.cli.worker_process import APP, on_terminal, running, write_app
from tests.support.command_line import PATIENCE_SECONDS
from tests.worker.isolation.processes import is_gone, isolated

pytestmark = pytest.mark.slow("each test starts a worker and isolated processes")

MORE = '''

@queue.task("where")
def where() -> list[int]:
    """Tell where it runs and with which limit of memory its process was started."""
    import resource

    return [os.getpid(), resource.getrlimit(resource.RLIMIT_DATA)[0]]


@queue.task("crash", max_attempts=1)
def crash() -> None:
    os.abort()


@queue.task("speak")
def speak(context: Context) -> None:
    print("a line of the handler")
    context.logger.error("a record of the handler")
'''


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[holdfast.Queue]:
    write_app(tmp_path, APP + MORE)
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def test_every_handler_is_isolated_with_the_option(tmp_path: Path, queue: holdfast.Queue) -> None:
    crash = queue.enqueue("crash", {}, max_attempts=1)
    where = queue.enqueue("where", {})

    with running(tmp_path, "--json", "--isolate", "--memory-limit", "512M", "--recycle-after", "7") as worker:
        found = queue.wait(where.id, timeout=PATIENCE_SECONDS)
        failure = queue.wait(crash.id, timeout=PATIENCE_SECONDS).failure
        left = isolated(worker.process.pid)
        worker.process.send_signal(signal.SIGTERM)
        code = worker.finish()

    assert failure is not None
    assert failure.reason == "process_died"
    assert found.result[0] != worker.process.pid
    assert found.result[1] == 512 << 20
    assert code == 0
    assert left
    assert all(map(is_gone, left))


def test_each_of_several_processes_has_isolated_processes(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("crash", {}, max_attempts=1)
    with running(tmp_path, "--json", "--isolate", "--processes", "2", "--kill-after", "1s") as worker:
        failure = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS).failure
        wait_until(lambda: len(isolated(worker.process.pid)) >= 2)
        left = isolated(worker.process.pid)
        worker.process.kill()
        wait_until(lambda: all(map(is_gone, left)))

    assert failure is not None
    assert failure.reason == "process_died"


def test_output_and_logs_of_an_isolated_handler_are_printed(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("speak", {})
    with running(tmp_path, "--json", "--isolate") as worker:
        queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        worker.process.send_signal(signal.SIGTERM)
        worker.finish()

    assert "a line of the handler" in worker.lines
    (record,) = [line for line in worker.lines if "a record of the handler" in line]
    assert f'"job_id": "{enqueued.id}"' in record


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_waits_for_handlers(tmp_path: Path, queue: holdfast.Queue, number: int) -> None:
    enqueued = queue.enqueue("hold", {})
    with running(tmp_path, "--json", "--isolate") as worker:
        worker.document(handler="hold")
        for process in (worker.process.pid, *isolated(worker.process.pid)):
            os.kill(process, number)
        wait_until(lambda: any(found.state == "stopping" for found in queue.admin.workers()))
        (tmp_path / "go").touch()
        job = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        assert worker.finish() == 0

    assert (job.state, job.result, job.attempt) == ("done", "held", 1)


def test_an_interrupt_from_the_terminal_reaches_only_the_worker(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("hold", {})
    with on_terminal(tmp_path, "--isolate") as worker:
        worker.read_until('"handler": "hold"')
        worker.type("\x03")
        wait_until(lambda: any(found.state == "stopping" for found in queue.admin.workers()))
        (tmp_path / "go").touch()
        job = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        worker.finish()

    assert (job.state, job.attempt) == ("done", 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--memory-limit", "lots"], "'lots' is not a size; write 512M or 2G, or a number of bytes"),
        (["--memory-limit", "1M"], "--memory-limit: is out of range"),
        (["--recycle-after", "0"], "--recycle-after"),
        (["--kill-after", "soon"], "'soon' is not a duration"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, queue: holdfast.Queue, arguments: list[str], problem: str) -> None:
    assert problem in start_error(tmp_path, "app:queue", *arguments)


def test_a_task_that_cannot_be_isolated_is_named(tmp_path: Path) -> None:
    write_app(tmp_path, "import holdfast\nqueue = holdfast.connect('jobs.db')\nqueue.task('one')(lambda: None)\n")

    assert "task 'one' cannot run isolated" in start_error(tmp_path, "app:queue", "--isolate")
