"""The tutorial keeps its promise: its own module, its own commands, a worker that is killed with `kill -9`."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import holdfast
from tests.cli.worker_process import PATIENCE_SECONDS, running, write_app
from tests.house.sources import DOCS

PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
WORKS = re.search(r"^holdfast worker app:queue (?P<words>.+)$", PAGE, re.MULTILINE)


def test_the_task_of_the_tutorial_survives_kill_9(tmp_path: Path) -> None:
    module = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert module is not None
    assert WORKS is not None
    write_app(tmp_path, module[1])
    words = WORKS["words"].split()

    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        made = queue.enqueue("report.make", {"pages": 5, "seconds": 0.1})
        with running(tmp_path, *words) as worker:
            worker.says("attempt 1: page 2 of 5")
            worker.process.send_signal(signal.SIGKILL)
            worker.read_to_the_end()
        left = queue.get(made.id).state
        with running(tmp_path, *words) as worker:
            worker.says("attempt 2: page 1 of 5")
            done = queue.wait(made.id, timeout=PATIENCE_SECONDS)
            worker.process.send_signal(signal.SIGINT)
            worker.says("1 done, 0 failed")
            code = worker.finish()
        ends = [attempt.outcome for attempt in queue.attempts(made.id)]

    assert (left, done.state, done.result) == ("running", "done", {"pages": 5})
    assert ends == ["lapsed", "done"]
    assert code == 0
