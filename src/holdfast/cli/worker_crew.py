"""`holdfast worker --processes N`: the supervisor's side of the command, and one screen for all its children."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast import WorkerStatus
from holdfast.cli import errors, formatting, worker_report
from holdfast.cli.terminal import Terminal
from holdfast.cli.worker_report import RECORD, About
from holdfast.client import ids
from holdfast.worker.status import FailedAttempt, RunningJob
from holdfast.worker.supervisor import WorkerProcesses

# Set for children only: whether they draw nothing but tell of themselves in records, or write lines of their own.
CHILD_VARIABLE: Final = "HOLDFAST_WORKER_CHILD"


def run_crew(terminal: Terminal, about: About, words: Mapping[str, Any]) -> int:
    """Run the command as *processes* children with these words; return the exit code."""
    name = words["name"] or ids.worker_name()
    screen = CrewScreen(terminal, name) if terminal.out.is_terminal and not terminal.json else None
    crew = WorkerProcesses(
        lambda number: command_of(about.target, words_of(number, name, words), as_json=terminal.json),
        about.processes,
        environment={**os.environ, CHILD_VARIABLE: "records" if screen else "lines"},
        grace_seconds=about.grace_seconds,
        # What is wrong with the command line or the module stays wrong.
        hopeless=frozenset({errors.MISUSED}),
        output=screen.take if screen else None,
    )
    if screen is None:
        return crew.run()
    with worker_report.on_screen(terminal, about, lambda: screen.status(stopping=crew.stopping)):
        return crew.run()


def words_of(number: int, name: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of one child: a name of its own, and a port of its own for its metrics."""
    port = words.get("metrics_port")
    # 0 is any free port, for each of them.
    return {**words, "name": f"{name}-{number}", "metrics_port": port + number - 1 if port else port}


def command_of(target: str, words: Mapping[str, Any], *, as_json: bool) -> list[str]:
    """Return the command line of one worker with these words."""
    command = [sys.executable, "-m", "holdfast.cli", "worker", target, *(["--json"] if as_json else [])]
    for word, value in words.items():
        option = f"--{word.replace('_', '-')}"
        if isinstance(value, bool):
            command += [option] if value else []
        elif isinstance(value, Sequence) and not isinstance(value, str):
            command += [part for each in value for part in (option, str(each))]
        elif value is not None:
            command += [option, str(value)]
    return command


class CrewScreen:
    """What the children last said of themselves, as if they were one worker."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name
        self._lock = threading.Lock()
        self._newest: dict[int, WorkerStatus] = {}
        self._past: Counter[str] = Counter()
        """What children that are gone had done."""
        self._past_switches = 0

    def take(self, number: int, line: str | None) -> None:
        """Take in a line of a child: a record of itself, or something to be shown above the screen."""
        if line is None:
            with self._lock:
                gone = self._newest.pop(number, None)
                self._past.update(gone.ended if gone else {})
                self._past_switches += gone.switches if gone else 0
        elif line.startswith(RECORD):
            with self._lock:
                self._newest[number] = _status(json.loads(line[1:]))
        else:
            self._terminal.line(formatting.clean(line, keep="\t"))

    def status(self, *, stopping: bool) -> WorkerStatus:
        """Return the sum of what they said."""
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
            abandoned=sum(status.abandoned for status in newest),
            loaded=tuple(sorted({affinity for status in newest for affinity in status.loaded})),
            loading=tuple(sorted({affinity for status in newest for affinity in status.loading})),
            switches=self._past_switches + sum(status.switches for status in newest),
            failures=tuple(failure for status in newest for failure in status.failures),
        )


def _status(said: dict[str, Any]) -> WorkerStatus:
    running = tuple(RunningJob(*job) for job in said.pop("running"))
    loaded, loading = tuple(said.pop("loaded", ())), tuple(said.pop("loading", ()))
    failures = tuple(FailedAttempt(*failure) for failure in said.pop("failures", ()))
    return WorkerStatus(running=running, loaded=loaded, loading=loading, failures=failures, **said)
