"""The supervisor of several processes, with small programs as children."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli.terminal import Terminal
from holdfast.cli.worker_processes import ProcessesScreen, worker_command
from holdfast.cli.worker_report import RECORD
from holdfast.worker.status import RunningJob, WorkerStatus
from holdfast.worker.supervisor import Output, WorkerProcesses, pause_before_start

pytestmark = pytest.mark.slow("each test starts a worker of several processes")

PRINTS = "import os, signal, sys; print({text}, flush=True); "
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WAITS = "sys.stdin.read()"


class OutputListener:
    """Collects the output of children, and sends SIGTERM to this process after enough lines."""

    def __init__(self, enough: int) -> None:
        self.lines: list[tuple[int, str]] = []
        self._enough = enough

    def __call__(self, number: int, line: str | None) -> None:
        if line is not None:
            self.lines.append((number, line))
            if len(self.lines) == self._enough:
                os.kill(os.getpid(), signal.SIGTERM)


def processes(program: str, listener: Output, *, size: int = 1, fatal_exit_code: int = 2) -> WorkerProcesses:
    return WorkerProcesses(
        lambda number: [sys.executable, "-c", program, str(number)],
        size,
        environment=os.environ,
        grace_seconds=0,
        fatal_exit_codes=frozenset({fatal_exit_code}),
        output=listener,
        ending_seconds=0.2 if STUBBORN in program else 60,
    )


def test_it_runs_the_given_number_of_children_and_exits_with_0(tmp_path: Path) -> None:
    listener = OutputListener(enough=3)

    code = processes(PRINTS.format(text="sys.argv[1]") + WAITS, listener, size=3).run()

    assert sorted(listener.lines) == [(1, "1"), (2, "2"), (3, "3")]
    assert code == 0


def test_children_are_not_in_the_process_group_of_the_terminal() -> None:
    listener = OutputListener(enough=2)

    processes(PRINTS.format(text="os.getpgrp()") + WAITS, listener, size=2).run()

    groups = {int(line) for _, line in listener.lines}
    assert len(groups) == 2
    assert os.getpgrp() not in groups


def test_a_signal_that_another_thread_receives_stops_the_children() -> None:
    lines: list[str | None] = []

    def listener(_number: int, line: str | None) -> None:
        lines.append(line)
        if line is not None:
            # As if it had arrived while the process was stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    assert processes(PRINTS.format(text="1") + WAITS, listener).run() == 0
    assert lines == ["1", None]


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_that_exits_is_replaced(end: str) -> None:
    listener = OutputListener(enough=3)

    processes(PRINTS.format(text="os.getpid()") + end, listener).run()

    assert [number for number, _ in listener.lines] == [1, 1, 1]
    assert len({line for _, line in listener.lines}) == 3


def test_a_child_with_a_fatal_exit_code_ends_all_processes_with_that_code() -> None:
    listener = OutputListener(enough=99)

    code = processes(
        PRINTS.format(text="1") + "sys.argv[1] == '2' and sys.exit(7); " + WAITS, listener, size=2, fatal_exit_code=7
    ).run()

    assert code == 7


def test_a_child_that_ignores_the_signal_is_killed_and_the_exit_code_is_1() -> None:
    listener = OutputListener(enough=1)

    code = processes(
        STUBBORN.join(["import signal; ", PRINTS.format(text="os.getpid()")]) + "signal.pause()", listener
    ).run()

    [(_, process)] = listener.lines
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)
    assert code == 1


def test_the_exit_code_is_1_if_a_child_fails_while_stopping() -> None:
    listener = OutputListener(enough=1)
    fails = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "

    code = processes("import signal, sys; " + fails + PRINTS.format(text="1") + "signal.pause()", listener).run()

    assert code == 1


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    processes(PRINTS.format(text="1") + WAITS, OutputListener(enough=1)).run()

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_children_that_exit_quickly_are_restarted_with_increasing_delays() -> None:
    pauses = [pause_before_start(quick_ends) for quick_ends in range(12)]

    assert pauses[:5] == [0, 0, 0.5, 1, 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_before_start(1_000_000) == 30


def test_the_command_line_of_a_child_contains_every_given_option() -> None:
    options = {
        "lane": ("a", "b c"),
        "tenant": None,
        "exclusive": True,
        "lease": 2.5,
        "log_level": "info",
        "kind": (),
    }

    assert worker_command("app:queue", options, as_json=True)[1:] == [
        *["-m", "holdfast.cli", "worker", "app:queue", "--json"],
        *["--lane", "a", "--lane", "b c", "--exclusive", "--lease", "2.5", "--log-level", "info"],
    ]


def test_a_flag_that_is_not_given_is_left_out() -> None:
    assert "--exclusive" not in worker_command("app:queue", {"exclusive": False}, as_json=False)


# --- one screen for all ---------------------------------------------------------------------------------------------


def record(worker: str, *running: RunningJob, **ended: int) -> str:
    jobs = [asdict(job) for job in running]
    return RECORD + json.dumps({"worker": worker, "running": jobs, "ended": ended, "stopping": False})


def screen() -> tuple[ProcessesScreen, StringIO]:
    terminal, written = Terminal(), StringIO()
    terminal.out = Console(file=written, width=80)
    return ProcessesScreen(terminal, "w"), written


def test_children_are_shown_as_one_worker() -> None:
    combined, written = screen()
    short, long = RunningJob("j1", "a", 1, 0.5), RunningJob("j2", "b", 2, 5.0)

    combined.handle_line(1, record("w-1", short, done=3))
    combined.handle_line(2, record("w-2", long, done=1, failed=2))

    status = combined.status(stopping=True)
    assert (status.worker, status.running, status.stopping) == ("w", (long, short), True)
    assert status.ended == {"done": 4, "failed": 2}
    assert written.getvalue() == ""


def test_counts_of_an_exited_child_remain_and_its_running_jobs_do_not() -> None:
    combined, _ = screen()

    combined.handle_line(1, record("w-1", RunningJob("j1", "a", 1, None), done=3))
    combined.handle_line(1, None)
    combined.handle_line(1, record("w-1", done=2))

    status = combined.status(stopping=False)
    assert (Counter(status.ended), status.running) == (Counter(done=5), ())


def test_switches_of_children_are_summed_and_loaded_affinities_are_merged() -> None:
    combined, _ = screen()

    combined.handle_line(
        1,
        RECORD
        + json.dumps(
            asdict(
                WorkerStatus(
                    "w-1", (), {}, stopping=False, abandoned=1, loaded=("b", "a"), switches=3, load_seconds=2
                )
            )
        ),
    )
    combined.handle_line(
        2,
        RECORD
        + json.dumps(asdict(WorkerStatus("w-2", (), {}, stopping=False, loaded=("b",), switches=4, load_seconds=1))),
    )
    combined.handle_line(1, None)
    combined.handle_line(
        1,
        RECORD
        + json.dumps(asdict(WorkerStatus("w-1", (), {}, stopping=False, abandoned=2, loaded=("c",), switches=1))),
    )

    status = combined.status(stopping=False)
    assert (status.abandoned, status.loaded, status.switches, status.load_seconds) == (2, ("b", "c"), 8, 3)


def test_other_lines_of_a_child_are_printed_and_cannot_control_the_terminal() -> None:
    combined, written = screen()

    combined.handle_line(1, "hello \x1b[2J")

    assert written.getvalue() == "hello \N{REPLACEMENT CHARACTER}[2J\n"
