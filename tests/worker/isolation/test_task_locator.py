"""Another process finds a task by importing its module; if it cannot, the worker reports it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Misconfigured, Queue, Worker
from tests.worker.isolation.processes import isolated
from tests.worker.workers import running_worker

SOURCE = Path(holdfast.__file__).parents[1]
HEAD = """
import os
import threading
import holdfast
from holdfast import Worker

queue = holdfast.connect("jobs.db")
"""
TAIL = """
def main():
    worker = Worker(queue, concurrency=2)
    running = threading.Thread(target=worker.run)
    running.start()
    made = [queue.enqueue(kind, {}) for kind in queue.tasks.kinds()]
    for each in made:
        job = queue.wait(each.id, timeout=60)
        print(job.kind, job.result if job.failure is None else job.failure.message)
    worker.stop()
    running.join()
"""
GUARD = """
if __name__ == "__main__":
    main()
"""


def _run(folder: Path, *command: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        place = folder / f"{name.replace('__', '/')}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(textwrap.dedent(text), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class TestAProgramsOwnModule:
    TASK = """
@queue.task(isolate="process")
def where() -> str:
    return __name__
"""

    def test_tasks_of_a_script_are_found(self, tmp_path: Path) -> None:
        ran = _run(tmp_path, "script.py", script=HEAD + self.TASK + TAIL + GUARD)

        assert ran.stdout == "script.where __mp_main__\n", ran.stderr

    def test_tasks_of_a_module_that_is_run_are_found(self, tmp_path: Path) -> None:
        (tmp_path / "package").mkdir()
        (tmp_path / "package/__init__.py").touch()
        ran = _run(tmp_path, "-m", "package.program", package__program=HEAD + self.TASK + TAIL + GUARD)

        assert ran.stdout == "package.program.where __mp_main__\n", ran.stderr

    def test_a_script_without_a_guard_is_told_to_have_one(self, tmp_path: Path) -> None:
        ran = _run(tmp_path, "script.py", script=HEAD + self.TASK + "\nWorker(queue).run()\n")

        assert ran.returncode == 1
        assert "Misconfigured: task 'script.where' cannot run isolated" in ran.stderr
        assert "if __name__ == '__main__':" in ran.stderr

    def test_a_task_from_standard_input_is_refused(self, tmp_path: Path) -> None:
        ran = _run(tmp_path, "-c", HEAD + self.TASK.replace("task(", "task('where', ") + "\nWorker(queue).run()\n")

        assert ran.returncode == 1
        assert "it is declared in an interactive session" in ran.stderr

    def test_it_is_not_imported_again_for_a_suspect_that_never_asked_for_it(self, tmp_path: Path) -> None:
        # Without a guard, each process that imports the program would enqueue the job again.
        text = """
@queue.task("plain")
def plain() -> int:
    return os.getpid()

made = queue.enqueue("plain", {})
queue.claim(kinds=["plain"], lease=0.01)
worker = Worker(queue)
running = threading.Thread(target=worker.run)
running.start()
job = queue.wait(made.id, timeout=60)
print(job.state, job.attempt, job.result == os.getpid(), len(queue.jobs().jobs))
worker.stop()
running.join()
"""
        ran = _run(tmp_path, "script.py", script=HEAD + text)

        assert ran.stdout == "done 2 True 1\n", ran.stderr
        assert "which is imported again only for tasks with isolate='process'" in ran.stderr

    @pytest.mark.slow("it starts three interpreters")
    def test_a_worker_stopped_while_it_is_imported_ends(self, tmp_path: Path) -> None:
        slow = """
if __name__ == "__mp_main__":
    import time
    open("importing", "w").close()
    time.sleep(600)
"""
        main = """
if __name__ == "__main__":
    import time
    worker = Worker(queue, grace=0.1)
    running = threading.Thread(target=worker.run)
    running.start()
    while not os.path.exists("importing"):
        time.sleep(0.01)
    worker.stop()
    running.join()
    print("ended")
"""
        ran = _run(tmp_path, "script.py", script=HEAD + self.TASK + slow + main)

        assert (ran.stdout, ran.returncode) == ("ended\n", 0), ran.stderr


class TestATaskThatIsNotFound:
    def test_one_inside_a_function_is_refused_at_the_start(self, queue: Queue) -> None:
        @queue.task("inner", isolate="process")
        def inner() -> None: ...

        with pytest.raises(Misconfigured, match=r"'inner' .* declare it at the top level of a module"):
            Worker(queue).run()

    def test_one_under_a_condition_is_refused_at_the_start(self, tmp_path: Path) -> None:
        text = "if __name__ == '__main__':\n" + textwrap.indent(TestAProgramsOwnModule.TASK, "    ")
        ran = _run(tmp_path, "script.py", script=HEAD + text + "\n    Worker(queue).run()\n")

        assert ran.returncode == 1
        assert "does not declare task 'script.where'" in ran.stderr

    @pytest.mark.slow("it starts two interpreters")
    def test_a_module_that_fails_there_shows_its_error(self, tmp_path: Path) -> None:
        # The second import is in the other process.
        fails = "if 'again' in os.environ:\n    raise RuntimeError('not here')\nos.environ['again'] = '1'\n"
        program = "import app; from holdfast import Worker; Worker(app.queue).run()"
        ran = _run(tmp_path, "-c", program, app=HEAD + TestAProgramsOwnModule.TASK + fails)

        assert ran.returncode == 1
        assert "importing 'app' failed in the isolated process" in ran.stderr
        assert "RuntimeError: not here" in ran.stderr


class TestInvalidOptions:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"isolate": "thread"}, "isolate: is 'thread'; it must be one of None, 'process'"),
            ({"isolate": True}, "isolate: is True"),
            ({"isolate": "process", "memory_limit": 1000}, "memory_limit: is out of range"),
            ({"isolate": "process", "memory_limit": "2G"}, "memory_limit: must be an integer"),
            ({"memory_limit": 1 << 30}, "memory_limit: requires isolate='process'"),
        ],
    )
    def test_a_task_refuses_them(self, queue: Queue, options: Any, problem: str) -> None:
        with pytest.raises(holdfast.InvalidInput, match=f"^{problem}"):
            queue.task("bad", **options)(print)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"isolate": "thread"}, "isolate: is 'thread'"),
            ({"memory_limit": 0}, "memory_limit: is out of range"),
            ({"recycle_after": 0}, "recycle_after: is out of range"),
            ({"recycle_after": 1.5}, "recycle_after: must be an integer"),
            ({"kill_after": -1}, "kill_after: is out of range"),
        ],
    )
    def test_a_worker_refuses_them(self, queue: Queue, options: Any, problem: str) -> None:
        with pytest.raises(holdfast.InvalidInput, match=f"^{problem}"):
            Worker(queue, **options)


def test_a_library_function_is_found_by_the_module_that_makes_a_task_of_it(tmp_path: Path) -> None:
    task = "\nqueue.task('cwd', isolate='process')(os.getcwd)\n"
    ran = _run(tmp_path, "script.py", script=HEAD + task + TAIL + GUARD)

    assert ran.stdout == f"cwd {tmp_path}\n", ran.stderr


@pytest.mark.slow("it starts two interpreters")
def test_one_function_of_two_queues_has_the_options_of_the_right_one(tmp_path: Path) -> None:
    text = """
def fail() -> None:
    raise ValueError("no")

other = holdfast.connect("other.db")
other.task("fail", isolate="process", permanent_on=ValueError)(fail)
queue.task("fail", isolate="process")(fail)
"""
    tail = TAIL.replace("failure.message", "failure.failure_class").replace("{})", "{}, max_attempts=1)")
    ran = _run(tmp_path, "script.py", script=HEAD + text + tail + GUARD)

    assert ran.stdout == "fail transient\n", ran.stderr


def test_a_worker_of_plain_tasks_starts_no_process(queue: Queue) -> None:
    enqueued = queue.enqueue("which.plain", {})
    with running_worker(queue, kinds=["which.plain"]):
        assert queue.wait(enqueued.id, timeout=30).result == os.getpid()
        assert not isolated(os.getpid())
