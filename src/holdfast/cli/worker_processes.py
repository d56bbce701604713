"""`holdfast worker --processes N`: supervise the child processes and show one screen for all of them."""

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.cli import errors, formatting, worker_report
from holdfast.cli.terminal import Terminal
from holdfast.client import ids
from holdfast.types import WorkerStatus
from holdfast.worker.status import FailedAttempt, RunningJob
from holdfast.worker.supervisor import WorkerProcesses

# Set for children only: "records" if they report their status to the supervisor's screen, "lines" if they print.
CHILD_VARIABLE: Final = "HOLDFAST_WORKER_CHILD"


def run_processes(terminal: Terminal, about: worker_report.About, options: Mapping[str, Any]) -> int:
    """Run the command in `about.processes` child processes with these options; return the exit code."""
    name = options["name"] or ids.worker_name()
    screen = ProcessesScreen(terminal, name) if terminal.draws else None
    workers = WorkerProcesses(
        lambda number: worker_command(about.target, child_options(number, name, options), as_json=terminal.json),
        about.processes,
        environment={**os.environ, CHILD_VARIABLE: "records" if screen else "lines"},
        grace_seconds=about.grace_seconds,
        # A restart does not fix the command line or the module.
        fatal_exit_codes=frozenset({errors.MISUSED}),
        output=screen.handle_line if screen else None,
    )
    if screen is None:
        return workers.run()
    with worker_report.on_screen(terminal, about, lambda: screen.status(stopping=workers.stopping)):
        return workers.run()


def child_options(number: int, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one child, with a separate name and metrics port."""
    port = options.get("metrics_port")
    # 0 is any free port.
    return {**options, "name": f"{name}-{number}", "metrics_port": port + number - 1 if port else port}


def worker_command(target: str, options: Mapping[str, Any], *, as_json: bool) -> list[str]:
    """Return the command line of one worker with these options."""
    command = [sys.executable, "-m", "holdfast.cli", "worker", target, *(["--json"] if as_json else [])]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            command += [option] if value else []
        elif isinstance(value, Sequence) and not isinstance(value, str):
            command += [part for each in value for part in (option, str(each))]
        elif value is not None:
            command += [option, str(value)]
    return command


class ProcessesScreen:
    """The last statuses of the children, combined into one."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name
        self._lock = threading.Lock()
        self._newest: dict[int, WorkerStatus] = {}
        self._past: Counter[str] = Counter()
        """Counts of the children that have exited."""
        self._past_switches = 0
        self._past_load_seconds = 0.0

    def handle_line(self, number: int, line: str | None) -> None:
        """Handle a child's output line: a status record, or text to print. None means that the child exited."""
        if line is None:
            with self._lock:
                gone = self._newest.pop(number, None)
                self._past.update(gone.ended if gone else {})
                self._past_switches += gone.switches if gone else 0
                self._past_load_seconds += gone.load_seconds if gone else 0
        elif line.startswith(worker_report.RECORD):
            with self._lock:
                self._newest[number] = _status(json.loads(line[1:]))
        else:
            self._terminal.line(formatting.clean(line, keep="\t"))

    def status(self, *, stopping: bool) -> WorkerStatus:
        """Return the combined status."""
        with self._lock:
            newest = list(self._newest.values())
            ended = Counter(self._past)
        for status in newest:
            ended.update(status.ended)
        running = sorted((job for status in newest for job in status.running), key=lambda job: -(job.seconds or 0))
        return WorkerStatus(
            self._name,
            tuple(running),
            dict(ended),
            stopping=stopping,
            draining=bool(newest) and all(status.draining for status in newest),
            abandoned=sum(status.abandoned for status in newest),
            loaded=tuple(sorted({affinity for status in newest for affinity in status.loaded})),
            loading=tuple(sorted({affinity for status in newest for affinity in status.loading})),
            switches=self._past_switches + sum(status.switches for status in newest),
            failures=tuple(failure for status in newest for failure in status.failures),
            load_seconds=self._past_load_seconds + sum(status.load_seconds for status in newest),
        )


def _status(record: dict[str, Any]) -> WorkerStatus:
    running = tuple(RunningJob(**job) for job in record.pop("running"))
    loaded, loading = tuple(record.pop("loaded", ())), tuple(record.pop("loading", ()))
    failures = tuple(_failed(failure) for failure in record.pop("failures", ()))
    return WorkerStatus(running=running, loaded=loaded, loading=loading, failures=failures, **record)


def _failed(record: dict[str, Any]) -> FailedAttempt:
    next_attempt_at = record.pop("next_attempt_at")
    return FailedAttempt(
        next_attempt_at=None if next_attempt_at is None else datetime.fromisoformat(next_attempt_at), **record
    )
