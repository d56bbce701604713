"""The demo runs as a process, with and without a terminal."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

import holdfast
from holdfast.cli.demo.checks import Receipt, Record, collect, examine
from holdfast.cli.demo.picture import can_draw
from holdfast.cli.demo.processes import Refusal
from holdfast.cli.demo.story import Victim
from tests.support import command_line
from tests.support.command_line import Command

pytestmark = pytest.mark.slow("the demo starts workers and kills them")

COMMAND = [sys.executable, "-m", "holdfast.cli", "demo", "--fast"]
PATIENCE_SECONDS = 150

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for temporary files, which is checked for remaining files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def environment(folder: Path) -> dict[str, str]:
    return command_line.environment(TMPDIR=str(folder), TERM="xterm-256color", COLUMNS="80", LINES="24")


class DemoRun(NamedTuple):
    """The output of one run without a terminal, and the file it kept."""

    stdout: str
    stderr: str
    exit_code: int
    kept: Path


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    folder = tmp_path_factory.mktemp("demo")
    kept = folder / "kept.db"
    ran = run(folder, "--keep", str(kept))
    return DemoRun(ran.stdout, ran.stderr, ran.returncode, kept)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return command_line.run("demo", "--fast", *options, cwd=folder, env=environment(folder))


class TestPlain:
    def test_every_check_holds_and_the_exit_code_is_0(self, demo_run: DemoRun) -> None:
        assert demo_run.exit_code == 0, demo_run.stdout + demo_run.stderr
        assert demo_run.stderr == ""
        assert "WRONG" not in demo_run.stdout

    def test_the_lines_report_the_kill_and_the_takeover_in_order(self, demo_run: DemoRun) -> None:
        worker, job, epoch = victim(demo_run, "killed with SIGKILL")
        rest = demo_run.stdout.partition("killed with SIGKILL holding")[2]
        expired = rest.index(f"lease of {worker} on {job} expired")
        taken = re.search(rf"{job} taken over by (worker \d) at epoch {epoch + 1}", rest)
        assert taken is not None
        assert expired < taken.start()
        assert taken[1] != worker
        assert re.search(rf"{job} finished by worker \d", rest[taken.end() :])

    def test_the_resumed_worker_is_refused_after_another_has_finished_its_job(self, demo_run: DemoRun) -> None:
        worker, job, epoch = victim(demo_run, "frozen with SIGSTOP")
        rest = demo_run.stdout.partition("frozen with SIGSTOP holding")[2]
        finished = rest.index(f"{job} finished by ")
        revived = rest.index(f"{worker} resumed with SIGCONT")
        refused = rest.index(f"{worker} tried to settle {job} at epoch {epoch}: refused, lease_lost")
        assert finished < revived < refused

    def test_the_numbers_of_the_summary_agree(self, demo_run: DemoRun) -> None:
        [line] = re.findall(r"^acknowledged \d.*$", demo_run.stdout, re.MULTILINE)
        numbers = {name.strip(): int(value) for name, value in re.findall(r"([a-z ]+) (\d+)", line)}
        assert numbers["acknowledged"] == numbers["finished"] == numbers["settled once"]
        assert numbers["expired"] >= 2
        assert numbers["refusals"] >= 1
        assert numbers["retries"] >= 1

    def test_the_kept_file_agrees_with_the_output(self, demo_run: DemoRun) -> None:
        worker, job_id, epoch = victim(demo_run, "frozen with SIGSTOP")
        with holdfast.connect(str(demo_run.kept)) as queue:
            job, attempts, counts = queue.get(job_id), queue.attempts(job_id), queue.counts()
        stale = attempts[epoch - 1]
        assert (stale.worker, stale.outcome) == (worker, "expired")
        assert (job.state, job.epoch) == ("done", attempts[-1].epoch)
        assert (
            f"finished {sum(counts.values())} ({counts['done']} done, {counts['failed']} failed)" in demo_run.stdout
        )

    def test_nothing_but_the_kept_file_is_left_behind(self, demo_run: DemoRun) -> None:
        beside = {f"kept.db{ending}" for ending in ("", "-wal", "-shm", "-holdfast")}
        assert {path.name for path in demo_run.kept.parent.iterdir()} <= beside

    def test_a_file_that_exists_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious.db"
        precious.write_text("not yours")
        ran = run(tmp_path, "--keep", str(precious))
        assert ran.returncode == 2
        assert "exists" in ran.stderr
        assert precious.read_text() == "not yours"

    def test_json_is_one_document_with_every_check(self, folder: Path) -> None:
        ran = run(folder, "--json")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        answer = json.loads(ran.stdout)
        assert answer["acknowledged"] == answer["finished"]
        assert [check["claim"] for check in answer["checks"] if not check["holds"]] == []
        assert list(folder.iterdir()) == []

    def test_every_command_it_suggests_works_on_the_kept_file(self, demo_run: DemoRun) -> None:
        suggested = re.findall(rf" (--url {re.escape(str(demo_run.kept))} .*)$", demo_run.stdout, re.MULTILINE)
        assert len(suggested) >= 3
        for arguments in suggested:
            ran = command_line.run(*shlex.split(arguments), cwd=demo_run.kept.parent, env=command_line.environment())
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout


class TestChecks:
    """The checks at the end detect a modified record."""

    @pytest.fixture
    def record(self, demo_run: DemoRun) -> Record:
        killed, frozen = (victim(demo_run, word) for word in ("killed with SIGKILL", "frozen with SIGSTOP"))
        refusal = Refusal(frozen.worker, "settle_refused", frozen.job_id, frozen.epoch, "lease_lost", "")
        with holdfast.connect(str(demo_run.kept)) as queue:
            acknowledged = [job.id for job in queue.jobs(limit=1000)]
            return collect(queue, acknowledged=acknowledged, refusals=[refusal], killed=killed, frozen=frozen)

    def test_an_unchanged_record_passes(self, record: Record) -> None:
        assert wrong(record) == []

    def test_a_lost_job_is_found(self, record: Record) -> None:
        counts = {**record.counts, "done": record.counts["done"] - 1}
        assert wrong(record._replace(counts=counts)) == ["nothing lost"]

    def test_a_job_that_ended_twice_is_found(self, record: Record) -> None:
        again = next(event for event in record.events if event.name == "done")
        assert wrong(record._replace(events=[*record.events, again])) == ["settled once"]

    def test_an_effect_of_a_refused_settle_is_found(self, record: Record) -> None:
        assert record.frozen is not None
        stale = Receipt(record.frozen.job_id, record.frozen.epoch, record.frozen.worker)
        assert wrong(record._replace(receipts=[*record.receipts, stale])) == ["effects once", "stale refused"]

    def test_a_missing_effect_is_found(self, record: Record) -> None:
        assert wrong(record._replace(receipts=record.receipts[1:])) == ["effects once"]

    def test_a_stale_settle_that_was_not_refused_is_found(self, record: Record) -> None:
        assert wrong(record._replace(refusals=[])) == ["stale refused"]

    def test_a_killed_worker_that_finished_its_own_job_is_found(self, record: Record) -> None:
        assert record.killed is not None
        alone = record.attempts[record.killed.job_id][-1]
        assert wrong(record._replace(killed=record.killed._replace(epoch=alone.epoch))) == ["killed, taken over"]


def wrong(record: Record) -> list[str]:
    return [check.claim for check in examine(record) if not check.holds]


def victim(demo_run: DemoRun, struck: str) -> Victim:
    found = re.search(rf"(worker \d) {struck} holding (\S+) \(epoch (\d+)", demo_run.stdout)
    assert found is not None
    return Victim(found[1], found[2], int(found[3]))


class TestTerminal:
    def test_it_draws_on_the_alternate_screen_and_restores_the_terminal(self, folder: Path) -> None:
        drawn, exit_code = run_in_terminal(folder)
        assert exit_code == 0, drawn
        assert drawn.index(ENTER_SCREEN) < drawn.index("worker processes") < drawn.rindex(LEAVE_SCREEN)
        assert "does not know it yet" in drawn
        assert drawn.rindex(SHOW_CURSOR) > drawn.rindex(HIDE_CURSOR)
        assert drawn.index("What to try next") > drawn.rindex(LEAVE_SCREEN)
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize(
        ("width", "height", "kind", "drawable"),
        [
            (80, 24, "xterm", True),
            (60, 24, "xterm", False),
            (80, 15, "xterm", False),
            (80, 24, "dumb", False),
        ],
    )
    def test_a_terminal_that_is_too_small_gets_lines(
        self, width: int, height: int, kind: str, drawable: bool
    ) -> None:
        console = Console(width=width, height=height, force_terminal=True, _environ={"TERM": kind})
        assert can_draw(console) is drawable


class TestWeb:
    def test_the_browser_shows_the_killed_worker_and_who_took_its_job_over(self, folder: Path) -> None:
        unbuffered = {**environment(folder), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen([*COMMAND, "--web"], env=unbuffered, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                address = find(running.stdout, r"Open (\S+)/ in a browser")[1]
                worker, job_id = find(running.stdout, r"(worker \d) killed with SIGKILL holding (\S+) ").groups()
                page = find(running.stdout, rf"watch {job_id}: (\S+)")[1]
                heir = find(running.stdout, rf"{job_id} finished by (worker \d)")[1]
                attempts = re.findall(r'class="state (\w+)".*?(worker \d)', read(page).partition("Attempt</th>")[2])
                assert (attempts[-1], attempts[0]) == (("expired", worker), ("done", heir))
                assert f"{address}/ stays until" in find(running.stdout, r".*stays until Ctrl-C")[0]
                assert len(re.findall(r'class="state active"', read(f"{address}/workers"))) >= 3
                running.send_signal(signal.SIGINT)
                assert running.wait(PATIENCE_SECONDS) == 0
            finally:
                running.kill()
        assert list(folder.iterdir()) == []

    def test_it_is_refused_with_json(self, folder: Path) -> None:
        ran = run(folder, "--web", "--json")
        assert ran.returncode == 2
        assert "leave out --json" in ran.stderr + ran.stdout


def find(lines: Iterable[str], pattern: str) -> re.Match[str]:
    """Return the match of the next line that matches."""
    found = (re.search(pattern, line) for line in lines)
    return next(match for match in found if match is not None)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


class TestInterrupted:
    """The workers of the demo end with it."""

    def test_an_interrupt_leaves_no_process_and_no_file(self, folder: Path) -> None:
        with demo_with_frozen_worker(folder) as (running, workers):
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_SECONDS) == 130
            assert_gone(workers)
        assert list(folder.iterdir()) == []

    def test_a_killed_parent_leaves_no_process_not_even_a_frozen_one(self, folder: Path) -> None:
        with demo_with_frozen_worker(folder) as (running, workers):
            running.kill()
            assert_gone(workers)


def run_in_terminal(folder: Path) -> tuple[str, int]:
    """Run the demo in a pseudo-terminal and return its output and exit code."""
    ours, theirs = pty.openpty()
    with Command("demo", "--fast", env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        drawn = b"".join(read_all(ours))
    os.close(ours)
    return drawn.decode(), process.returncode


def read_all(terminal: int) -> Iterator[bytes]:
    while select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError as error:
            # Linux raises it when the other end of a pseudo-terminal is closed.
            if error.errno == errno.EIO:
                return
            raise
        if not chunk:
            return
        yield chunk


@contextmanager
def demo_with_frozen_worker(folder: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """Run the demo until a worker is frozen; yield its process and the ids of the workers."""
    unbuffered = {**environment(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(COMMAND, env=unbuffered, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert any("frozen with SIGSTOP" in line for line in running.stdout)
            workers = children_of(running.pid)
            assert len(workers) == 3
            yield running, workers
        finally:
            running.kill()


def children_of(pid: int) -> set[int]:
    return {child for child, (parent, state) in processes().items() if parent == pid and state != "Z"}


def assert_gone(pids: set[int]) -> None:
    wait_until(lambda: not any(processes().get(pid, (0, "Z"))[1] != "Z" for pid in pids))


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of every process. State Z is a process that has exited."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        return {int(pid): (int(parent), state[0]) for pid, parent, state in rows}
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The program's name is in parentheses and may contain any character.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            found[int(path.parent.name)] = (int(parent), state)
    return found


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)
