"""The supervisor of several processes, on children that are small programs of the tests' own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.terminal import Terminal
from holdfast.cli.worker_crew import ProcessesScreen, worker_command
from holdfast.cli.worker_report import RECORD
from holdfast.worker.status import RunningJob, WorkerStatus
from holdfast.worker.supervisor import WorkerProcesses, pause_before_start

pytestmark = pytest.mark.slow("each test starts a worker of several processes")

SAYS = "import os, signal, sys; print({words}, flush=True); "
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WAITS = "sys.stdin.read()"


class Heard:
    """Hears what children say, and sends this process SIGTERM once enough of it was heard."""

    def __init__(self, enough: int) -> None:
        self.lines: list[tuple[int, str]] = []
        self._enough = enough

    def __call__(self, number: int, line: str | None) -> None:
        if line is not None:
            self.lines.append((number, line))
            if len(self.lines) == self._enough:
                os.kill(os.getpid(), signal.SIGTERM)


def crew(program: str, heard: Heard, *, size: int = 1, hopeless: int = 2) -> WorkerProcesses:
    return WorkerProcesses(
        lambda number: [sys.executable, "-c", program, str(number)],
        size,
        environment=os.environ,
        grace_seconds=0,
        hopeless=frozenset({hopeless}),
        output=heard,
        ending_seconds=0.2 if STUBBORN in program else 60,
    )


def test_it_runs_as_many_children_as_asked_for_and_ends_with_0(tmp_path: Path) -> None:
    heard = Heard(enough=3)

    code = crew(SAYS.format(words="sys.argv[1]") + WAITS, heard, size=3).run()

    assert sorted(heard.lines) == [(1, "1"), (2, "2"), (3, "3")]
    assert code == 0


def test_children_are_no_members_of_the_terminals_group() -> None:
    heard = Heard(enough=2)

    crew(SAYS.format(words="os.getpgrp()") + WAITS, heard, size=2).run()

    groups = {int(line) for _, line in heard.lines}
    assert len(groups) == 2
    assert os.getpgrp() not in groups


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_that_ends_is_followed_by_another_in_its_place(end: str) -> None:
    heard = Heard(enough=3)

    crew(SAYS.format(words="os.getpid()") + end, heard).run()

    assert [number for number, _ in heard.lines] == [1, 1, 1]
    assert len({line for _, line in heard.lines}) == 3


def test_a_hopeless_child_ends_the_crew_with_its_code() -> None:
    heard = Heard(enough=99)

    code = crew(
        SAYS.format(words="1") + "sys.argv[1] == '2' and sys.exit(7); " + WAITS, heard, size=2, hopeless=7
    ).run()

    assert code == 7


def test_a_child_that_does_not_heed_is_killed_and_the_exit_code_tells() -> None:
    heard = Heard(enough=1)

    code = crew(STUBBORN.join(["import signal; ", SAYS.format(words="os.getpid()")]) + "signal.pause()", heard).run()

    [(_, process)] = heard.lines
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)
    assert code == 1


def test_a_child_that_fails_while_it_ends_is_told_by_the_exit_code() -> None:
    heard = Heard(enough=1)
    fails = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "

    code = crew("import signal, sys; " + fails + SAYS.format(words="1") + "signal.pause()", heard).run()

    assert code == 1


def test_signals_mean_again_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    crew(SAYS.format(words="1") + WAITS, Heard(enough=1)).run()

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_children_that_end_quickly_again_and_again_are_followed_after_longer_and_longer_pauses() -> None:
    pauses = [pause_before_start(quick_ends) for quick_ends in range(12)]

    assert pauses[:5] == [0, 0, 0.5, 1, 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_before_start(1_000_000) == 30


def test_a_childs_command_line_carries_every_word_that_was_given() -> None:
    words = {"lane": ("a", "b c"), "tenant": None, "exclusive": True, "lease": 2.5, "log_level": "info", "kind": ()}

    assert worker_command("app:queue", words, as_json=True)[1:] == [
        *["-m", "holdfast.cli", "worker", "app:queue", "--json"],
        *["--lane", "a", "--lane", "b c", "--exclusive", "--lease", "2.5", "--log-level", "info"],
    ]


def test_a_flag_that_is_not_given_is_not_carried() -> None:
    assert "--exclusive" not in worker_command("app:queue", {"exclusive": False}, as_json=False)


# --- one screen for all ---------------------------------------------------------------------------------------------


def record(worker: str, *running: RunningJob, **ended: int) -> str:
    return RECORD + json.dumps({"worker": worker, "running": running, "ended": ended, "stopping": False})


def screen() -> tuple[ProcessesScreen, StringIO]:
    terminal, written = Terminal(), StringIO()
    terminal.out = Console(file=written, width=80)
    return ProcessesScreen(terminal, "w"), written


def test_children_are_shown_as_one_worker() -> None:
    made, written = screen()
    short, long = RunningJob("j1", "a", 1, 0.5), RunningJob("j2", "b", 2, 5.0)

    made.handle_line(1, record("w-1", short, done=3))
    made.handle_line(2, record("w-2", long, done=1, failed=2))

    status = made.status(stopping=True)
    assert (status.worker, status.running, status.stopping) == ("w", (long, short), True)
    assert status.ended == {"done": 4, "failed": 2}
    assert written.getvalue() == ""


def test_what_a_child_had_done_still_counts_when_it_is_gone_and_what_it_ran_does_not() -> None:
    made, _ = screen()

    made.handle_line(1, record("w-1", RunningJob("j1", "a", 1, None), done=3))
    made.handle_line(1, None)
    made.handle_line(1, record("w-1", done=2))

    status = made.status(stopping=False)
    assert (Counter(status.ended), status.running) == (Counter(done=5), ())


def test_switches_of_children_add_up_and_what_they_have_loaded_is_shown_together() -> None:
    made, _ = screen()

    made.handle_line(
        1,
        RECORD
        + json.dumps(
            WorkerStatus("w-1", (), {}, stopping=False, abandoned=1, loaded=("b", "a"), switches=3)._asdict()
        ),
    )
    made.handle_line(
        2, RECORD + json.dumps(WorkerStatus("w-2", (), {}, stopping=False, loaded=("b",), switches=4)._asdict())
    )
    made.handle_line(1, None)
    made.handle_line(
        1,
        RECORD
        + json.dumps(WorkerStatus("w-1", (), {}, stopping=False, abandoned=2, loaded=("c",), switches=1)._asdict()),
    )

    status = made.status(stopping=False)
    assert (status.abandoned, status.loaded, status.switches) == (2, ("b", "c"), 8)


def test_other_lines_of_a_child_are_shown_and_cannot_steer_the_terminal() -> None:
    made, written = screen()

    made.handle_line(1, "hello \x1b[2J")

    assert written.getvalue() == "hello \N{REPLACEMENT CHARACTER}[2J\n"
