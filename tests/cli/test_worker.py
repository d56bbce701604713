"""`holdfast worker`: start, stop, kill, and output."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import worker as worker_module
from holdfast.worker import garbage
from tests.chaos.threads import in_background, registered, wait_until
from tests.cli.worker_process import APP, on_terminal, running, write_app
from tests.support.command_line import PATIENCE_SECONDS, environment, run

pytestmark = pytest.mark.slow("each test starts a worker as a process")

COLLECTOR = """
import gc

@queue.task("collector")
def collector() -> list[int]:
    return [gc.get_threshold()[0], gc.get_freeze_count()]
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[holdfast.Queue]:
    write_app(tmp_path)
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def start_error(folder: Path, *arguments: str) -> str:
    """Return the error output of a worker that cannot start."""
    ran = run("worker", *arguments, cwd=folder, env=environment())
    assert (ran.returncode, ran.stdout) == (2, "")
    return ran.stderr


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


# --- one process ----------------------------------------------------------------------------------------------------


def test_it_runs_the_tasks_of_the_queue_and_exits_with_0_when_stopped(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("add", {"one": 2, "other": 3})

    with running(tmp_path, "--json", "--name", "w1", "--concurrency", "3") as worker:
        started = worker.document(event="started")
        done = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.document(event="stopped")
        code = worker.finish()

    assert (done.result, done.worker) == (5, "w1")
    assert (started["worker"], started["process"], started["target"], started["concurrency"]) == (
        "w1",
        worker.process.pid,
        "app:queue",
        3,
    )
    assert (stopped["ended"], stopped["running"], stopped["stopping"]) == ({"done": 1}, 0, True)
    assert code == 0


def test_its_garbage_collector_runs_rarely_and_skips_what_exists_at_the_start(
    tmp_path: Path, queue: holdfast.Queue
) -> None:
    write_app(tmp_path, APP + COLLECTOR)
    enqueued = queue.enqueue("collector")

    with running(tmp_path, "--json"):
        threshold, frozen = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS).result

    assert threshold == 10_000
    assert frozen > 1_000


def test_the_garbage_collector_is_set_back_and_stays_disabled() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(0, 10, 10)
        with garbage.rare_collections():
            assert gc.get_threshold()[0] == 0
            assert gc.get_freeze_count() > 0
        gc.set_threshold(*before)
        with garbage.rare_collections():
            assert gc.get_threshold()[0] == 10_000
        assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
    finally:
        gc.set_threshold(*before)


def test_a_process_that_is_requested_to_stop_finishes_its_jobs_and_exits_with_0(
    tmp_path: Path, queue: holdfast.Queue
) -> None:
    with running(tmp_path, "--json", "--name", "w1") as worker:
        registered(queue)
        queue.admin.stop_worker("w1")
        stopped = worker.document(event="stopped")
        code = worker.finish()

    assert (stopped["stopping"], stopped["worker"], code) == (True, "w1", 0)
    assert queue.admin.workers() == []


def test_it_processes_sessions_and_jobs(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = [queue.enqueue("chat.message", text, session="chat-42", join=True) for text in ("one", "two")]
    other = queue.enqueue("add", {"one": 2, "other": 3})

    with running(tmp_path, "--json") as worker:
        done = [queue.wait(one.id, timeout=PATIENCE_SECONDS) for one in (*enqueued, other)]
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.document(event="stopped")
        worker.finish()

    assert [job.result for job in done] == [["one", "two"], ["one", "two"], 5]
    assert stopped["ended"] == {"done": 2}


def test_without_a_terminal_it_writes_plain_lines(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("add", {"one": 2, "other": "three"})

    with running(tmp_path, "--name", "w1") as worker:
        started = worker.prints("worker w1 (process ")
        assert queue.wait(enqueued.id, timeout=PATIENCE_SECONDS).state == "failed"
        worker.process.send_signal(signal.SIGINT)
        worker.prints("0 done, 0 retried, 1 failed")
        code = worker.finish()

    assert code == 0
    assert not any("\x1b" in line for line in worker.lines)
    output = f"takes add, hold, talk, chat.message from lane default of {tmp_path / 'jobs.db'}, 8 at once"
    assert started == f"worker w1 (process {worker.process.pid}) {output}"


def test_its_options_select_the_jobs_it_takes(tmp_path: Path, queue: holdfast.Queue) -> None:
    arguments: Any = {"tenant": "acme", "lane": "mail", "requires": ["gpu"]}
    taken = queue.enqueue("add", {"one": 1, "other": 1}, **arguments)
    others = [queue.enqueue("hold", **arguments)]
    for word, value in {"tenant": "globex", "lane": "default", "requires": ["tpu"]}.items():
        others.append(queue.enqueue("add", {"one": 1, "other": 1}, **{**arguments, word: value}))

    chosen = ["--tenant", "acme", "--lane", "mail", "--kind", "add", "--capability", "gpu", "--affinity", "m1"]
    with running(tmp_path, "--json", "--name", "w1", "--drain", "listed", *chosen) as worker:
        assert queue.wait(taken.id, timeout=PATIENCE_SECONDS).result == 2
        output = registered(queue)
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.document(event="stopped")

    assert stopped["ended"] == {"done": 1}
    assert [queue.get(enqueued.id).state for enqueued in others] == ["ready"] * 4
    assert (output.worker, output.lanes, output.kinds, output.capabilities, output.loaded) == (
        "w1",
        ("mail",),
        ("add",),
        ("gpu",),
        ("m1",),
    )


def test_it_loads_the_affinities_of_jobs_and_reports_them(tmp_path: Path, queue: holdfast.Queue) -> None:
    hooks = (
        "from app import say\n\n\nclass Models:\n    @staticmethod\n    def load(name):\n        say(loads=name)\n"
    )
    (tmp_path / "models.py").write_text(f"{hooks}\n\nasync def unload(name):\n    say(unloads=name)\n")
    for model in ("A", "B", "A", "B"):
        queue.enqueue("add", {"one": 1, "other": 1}, affinity=model)

    arguments = ["--load", "models:Models.load", "--unload", "models:unload", "--capacity", "1", "--max-hold", "1h"]
    with running(tmp_path, "--json", "--concurrency", "1", *arguments) as worker:
        worker.document(loads="A")
        worker.document(unloads="A")
        worker.document(loads="B")
        wait_until(lambda: queue.counts() == {"done": 4})
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.document(event="stopped")

    assert (stopped["loaded"], stopped["switches"], stopped["abandoned"]) == (["B"], 1, 0)


def test_a_worker_with_too_many_stuck_handlers_exits_with_3(tmp_path: Path, queue: holdfast.Queue) -> None:
    write_app(tmp_path, APP.replace('"hold", max_attempts=3', '"hold", timeout=0.1, max_attempts=1'))
    for _ in range(2):
        queue.enqueue("hold", max_attempts=1)

    with running(tmp_path, "--concurrency", "1", "--grace", "0") as worker:
        worker.prints("abandoned, 1 of at most 1")
        worker.prints("error: 2 handlers ignore the request to stop, of kind hold")
        worker.prints("hint: restart the worker")
        assert worker.finish() == 3


def test_on_a_signal_it_waits_for_a_running_handler(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("hold")

    with running(tmp_path, "--log-level", "info") as worker:
        worker.document(handler="hold")
        later = queue.enqueue("add", {"one": 1, "other": 1})
        queue.wait(later.id, timeout=PATIENCE_SECONDS)
        worker.process.send_signal(signal.SIGTERM)
        worker.prints("claims no more jobs and waits for running handlers")
        left = queue.enqueue("add", {"one": 1, "other": 1})
        (tmp_path / "go").touch()
        code = worker.finish()

    held = queue.get(enqueued.id)
    assert (held.state, held.result, held.attempt) == ("done", "held", 1)
    assert queue.get(left.id).state == "ready"
    assert code == 0


def test_on_a_second_signal_it_releases_running_jobs_without_using_an_attempt(
    tmp_path: Path, queue: holdfast.Queue
) -> None:
    enqueued = queue.enqueue("hold")

    with running(tmp_path, "--log-level", "info", "--grace", "1h") as worker:
        worker.document(handler="hold")
        worker.process.send_signal(signal.SIGTERM)
        worker.prints("claims no more jobs and waits for running handlers")
        worker.process.send_signal(signal.SIGTERM)
        code = worker.finish()

    released = queue.get(enqueued.id)
    assert (released.state, released.attempt, released.releases) == ("ready", 0, 1)
    assert code == 0


@pytest.mark.parametrize(
    "isolate", [[], ["--isolate"], ["--processes", "2"]], ids=["thread", "isolated", "processes"]
)
def test_if_its_terminal_is_closed_it_stops_as_on_sigterm(
    tmp_path: Path, queue: holdfast.Queue, isolate: list[str]
) -> None:
    enqueued = queue.enqueue("hold", max_attempts=3)
    # The tests themselves may run under nohup, and a worker inherits that.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with on_terminal(tmp_path, "--grace", "0.1s", "--kill-after", "0.1s", *isolate) as shown:
            shown.read_until('"handler": "hold"')
            shown.hang_up()
            shown.process.wait(PATIENCE_SECONDS)  # with any code: it cannot write its last line
    finally:
        signal.signal(signal.SIGHUP, before)

    released = queue.get(enqueued.id)
    assert (released.state, released.attempt, released.releases) == ("ready", 0, 1)


@pytest.mark.parametrize("more", [[], ["--processes", "2"]], ids=["one process", "processes"])
def test_a_terminal_that_cannot_draw_gets_lines(tmp_path: Path, queue: holdfast.Queue, more: list[str]) -> None:
    queue.enqueue("hold", max_attempts=3)
    with on_terminal(tmp_path, "--grace", "1h", *more, kind="dumb") as shown:
        shown.read_until('"handler": "hold"')
        shown.type("\x03")
        shown.read_until("stopping: waits up to 1h for 1 job; Ctrl-C again releases it at once")
        shown.type("\x03")
        assert shown.finish() == 0

    assert "\x1b" not in shown.seen


@pytest.mark.parametrize("more", [[], ["--isolate"], ["--processes", "2"]], ids=["thread", "isolated", "processes"])
def test_a_handler_that_prints_may_finish_after_the_terminal_was_closed(
    tmp_path: Path, queue: holdfast.Queue, more: list[str]
) -> None:
    enqueued, said = queue.enqueue("talk", max_attempts=3), tmp_path / "said"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with on_terminal(tmp_path, "--grace", "1h", *more) as shown:
            shown.read_until('"handler": "talk"')
            shown.hang_up()
            enough = said.stat().st_size + 50
            wait_until(lambda: said.stat().st_size > enough or queue.get(enqueued.id).state != "running")
            (tmp_path / "go").touch()
            shown.process.wait(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGHUP, before)

    finished = queue.get(enqueued.id)
    assert (finished.state, finished.attempt, finished.failure) == ("done", 1, None)


def test_under_nohup_it_goes_on_if_its_terminal_is_closed(tmp_path: Path, queue: holdfast.Queue) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "worker", "app:queue", "--json"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with worker:
        try:
            wait_until(lambda: len(queue.admin.workers()) == 1)
            worker.send_signal(signal.SIGHUP)
            enqueued = queue.enqueue("add", {"one": 1, "other": 2})
            assert queue.wait(enqueued.id, timeout=PATIENCE_SECONDS).result == 3
        finally:
            worker.kill()


def test_after_its_grace_period_it_releases_running_jobs(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("hold")

    with running(tmp_path, "--json", "--grace", "0") as worker:
        worker.document(handler="hold")
        worker.process.send_signal(signal.SIGTERM)
        stopped = worker.document(event="stopped")
        code = worker.finish()

    released = queue.get(enqueued.id)
    assert (released.state, released.attempt) == ("ready", 0)
    assert stopped["ended"] == {"released": 1}
    assert code == 0


def test_logs_are_json_lines_with_the_json_option(tmp_path: Path, queue: holdfast.Queue) -> None:
    queue.enqueue("hold")

    with running(tmp_path, "--json", "--log-level", "info", "--name", "w1") as worker:
        worker.document(handler="hold")
        worker.process.send_signal(signal.SIGTERM)
        logged = worker.document(logger="holdfast.worker", level="info")
        (tmp_path / "go").touch()
        worker.finish()

    assert logged.keys() == {"at", "level", "logger", "message"}
    assert [line for line in worker.lines if not isinstance(json.loads(line), dict)] == []


# --- a terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--processes", "2"]])
def test_on_a_terminal_it_draws_running_jobs_and_leaves_one_line(
    tmp_path: Path, queue: holdfast.Queue, arguments: list[str]
) -> None:
    enqueued = queue.enqueue("hold", job_id="held-by-test")

    with on_terminal(tmp_path, "--name", "w1", *arguments) as shown:
        shown.read_until("held-by-test")
        (tmp_path / "go").touch()
        queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        shown.read_until("\x1b[32m1")
        shown.type("\x03")
        shown.read_until("w1 stopped after")
        code = shown.finish()

    assert "RUNNING" in shown.seen
    assert ": 1 done, 0 retried, 0 failed" in shown.seen
    assert code == 0


# --- several processes ----------------------------------------------------------------------------------------------


def test_a_job_whose_process_is_killed_is_finished_by_another(tmp_path: Path, queue: holdfast.Queue) -> None:
    enqueued = queue.enqueue("hold")

    with running(tmp_path, "--json", "--processes", "2", "--name", "w", "--lease", "5s") as worker:
        first = worker.document(handler="hold", attempt=1)["process"]
        os.kill(first, signal.SIGKILL)
        second = worker.document(handler="hold", attempt=2)["process"]
        (tmp_path / "go").touch()
        done = queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        worker.process.send_signal(signal.SIGTERM)
        code = worker.finish()

    assert (done.state, done.result) == ("done", "held")
    assert [attempt.outcome for attempt in queue.attempts(enqueued.id)] == ["expired", "done"]
    assert first != second
    assert is_gone(second)
    assert any("killed by signal 9" in line for line in worker.lines)
    assert code == 0


def test_a_process_that_was_killed_is_started_again_under_its_name(tmp_path: Path, queue: holdfast.Queue) -> None:
    queue.migrate()

    with running(tmp_path, "--json", "--processes", "2", "--name", "w") as worker:
        started = [worker.document(event="started") for _ in range(2)]
        killed = started[0]
        os.kill(killed["process"], signal.SIGKILL)
        again = worker.document(event="started")
        worker.process.send_signal(signal.SIGTERM)
        code = worker.finish()

    assert {one["worker"] for one in started} == {"w-1", "w-2"}
    assert again["worker"] == killed["worker"]
    assert again["process"] != killed["process"]
    assert code == 0


def test_every_process_waits_for_its_handlers_and_a_second_signal_releases_them(
    tmp_path: Path, queue: holdfast.Queue
) -> None:
    enqueued = [queue.enqueue("hold") for _ in range(2)]

    arguments = ["--processes", "2", "--concurrency", "1", "--log-level", "info", "--grace", "1h"]
    with running(tmp_path, *arguments) as worker:
        for _ in range(2):
            worker.document(handler="hold")
        worker.process.send_signal(signal.SIGINT)
        for _ in range(2):
            worker.prints("claims no more jobs and waits for running handlers")
        worker.process.send_signal(signal.SIGINT)
        code = worker.finish()

    assert [(job.state, job.attempt) for job in (queue.get(one.id) for one in enqueued)] == [("ready", 0)] * 2
    assert code == 0


def test_no_process_outlives_a_supervisor_that_was_killed(tmp_path: Path, queue: holdfast.Queue) -> None:
    with running(tmp_path, "--json", "--processes", "2", "--grace", "0") as worker:
        children = [worker.document(event="started")["process"] for _ in range(2)]
        enqueued = queue.enqueue("hold")
        worker.document(handler="hold")
        worker.process.kill()
        worker.read_to_the_end()

    assert worker.process.pid not in children
    released = queue.get(enqueued.id)
    assert (released.state, released.attempt) == ("ready", 0)


@pytest.mark.parametrize("arguments", [[], ["--processes", "3"]])
def test_a_queue_without_tasks_is_reported_once(tmp_path: Path, arguments: list[str]) -> None:
    write_app(tmp_path, "import holdfast\nqueue = holdfast.connect('jobs.db')\n")

    output = start_error(tmp_path, "app:queue", *arguments)

    assert output.startswith("error: 'app:queue' has no tasks\nhint: declare some with @queue.task")
    assert output.count("error:") == 1


# --- errors at start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "problem", "hint"),
    [
        ("app", "'app' does not name a queue", "write MODULE:QUEUE"),
        ("app.py", "'app.py' does not name a queue", "write app:queue"),
        ("shop/app.py:jobs", "'shop/app.py:jobs' does not name a queue", "write shop.app:jobs"),
        ("absent:queue", "there is no module 'absent'", "PYTHONPATH"),
        ("app.absent:queue", "there is no module 'app.absent'", "PYTHONPATH"),
        ("app:absent", "module 'app' has no 'absent'", "there is app:queue"),
        ("app:add", "'app:add' is not a queue but a Task", "there is app:queue"),
        ("os:sep", "'os:sep' is not a queue but a str", "holdfast.connect"),
        ("broken:queue", "importing 'broken' failed: ValueError: not today", "import broken"),
        ("needy:queue", "importing 'needy' failed: ModuleNotFoundError: No module named 'nowhere'", "import needy"),
    ],
)
def test_a_target_that_is_no_queue_is_refused_with_a_hint(
    tmp_path: Path, target: str, problem: str, hint: str
) -> None:
    write_app(tmp_path)
    (tmp_path / "broken.py").write_text("raise ValueError('not today')\n")
    (tmp_path / "needy.py").write_text("import nowhere\n")

    output = start_error(tmp_path, target)

    first, second = output.splitlines()
    assert first.startswith(f"error: {problem}")
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--url", "jobs.db"], "a worker does not accept --url"),
        (["--schema", "jobs"], "a worker does not accept --schema"),
        (["--kind", "absent"], "kind 'absent': no task of this kind is declared; declared kinds: 'add', "),
        (["--kind", "ad"], "kind 'ad': no task of this kind is declared; did you mean 'add'?"),
        (["--drain", "listed"], "error: --drain: 'listed' requires a list of kinds"),
        (["--exclusive"], "error: --exclusive requires --name"),
        (["--concurrency", "0"], "--concurrency"),
        (["--processes", "0"], "--processes"),
        (["--lease", "soon"], "'soon' is not a duration"),
        (["--lease", "0"], "error: --lease: is out of range; it must be from 0.01 to 86400 seconds"),
        (["--lane", " "], "error: --lane: must not be empty"),
        (["--name", " "], "error: --name: must not be empty"),
        (["--name", ""], "error: --name: must not be empty"),
        (["--load", "load"], "--load 'load' does not name a function"),
        (["--load", "absent:load"], "there is no module 'absent'"),
        (["--unload", "app:absent"], "--unload: module 'app' has no function 'absent'"),
        (["--capacity", "65"], "--capacity"),
        (["--max-hold", "long"], "'long' is not a duration"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, arguments: list[str], problem: str) -> None:
    write_app(tmp_path)

    assert problem in start_error(tmp_path, "app:queue", *arguments)


def test_an_in_memory_queue_is_refused_with_several_processes(tmp_path: Path) -> None:
    write_app(tmp_path, APP.replace("jobs.db", ":memory:"))

    assert "processes cannot share an in-memory queue" in start_error(tmp_path, "app:queue", "--processes", "2")


def test_the_command_does_not_wait_for_a_store_that_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_CLOSING_SECONDS", 0.01)
    queue = holdfast.connect(str(tmp_path / "jobs.db"))
    opened, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with queue.transaction():
            opened.set()
            go_on.wait(PATIENCE_SECONDS)

    holder = in_background(hold)
    assert opened.wait(PATIENCE_SECONDS)
    worker_module.close_store(queue)
    [closing] = [thread for thread in threading.enumerate() if thread.name == "holdfast-close"]
    assert closing.daemon
    go_on.set()
    holder.result(PATIENCE_SECONDS)
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
