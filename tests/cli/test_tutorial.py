"""The commands of the tutorial, typed into two terminals, have the effects that it describes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.project.sources import DOCS
from tests.support.command_line import SOURCE
from tests.support.shell import Shell

pytestmark = pytest.mark.slow("the lines of the tutorial are typed into two terminals")

PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
FOLDER = "holdfast-tutorial"
# Faster than on the page; the first worker is killed long before it has written its hundred pages.
PAGE_SECONDS_SLOW, PAGE_SECONDS_FAST = "0.5", "0.001"


def typed(section: str) -> list[str]:
    """Return the lines that the reader types in a section of the page."""
    [text] = re.findall(rf"^## \d+\. {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    for language, block in re.findall(r"^```(text|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        commands = [line.removeprefix("$ ") for line in block.splitlines() if language == "text" or line[0] == "$"]
        lines += [line for line in commands if not line.startswith("worker …")]
    return lines


def install(home: Path) -> None:
    """Follow the first two sections, but use Holdfast from this checkout in place of an installed one."""
    tools = home / FOLDER / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(f'PATH="{tools}:$PATH"\n', encoding="utf-8")
    (tools / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n', encoding="utf-8")
    (tools / "holdfast").chmod(0o755)
    module = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert module is not None
    (home / FOLDER / "app.py").write_text(module[1], encoding="utf-8")


def shell(home: Path) -> Shell:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(SOURCE)}
    return Shell(home, {**environment, "PAGE_SECONDS": PAGE_SECONDS_SLOW})


def test_the_lines_of_the_tutorial_typed_into_two_terminals_do_what_it_says(tmp_path: Path) -> None:
    install(tmp_path)
    with shell(tmp_path) as first, shell(tmp_path) as second:
        store_a_job(first)
        process = run_it(first, second)
        kill_it(first, second, process)
        stop_it_gently(first)
        use_all_cores(first)


def store_a_job(first: Shell) -> None:
    _, enter, _, folder = typed("Install")
    for line in (enter, folder):
        first.run(line)
        first.prompted()
    enqueue, listing = typed("Store a job")
    first.run(enqueue)
    assert first.prompted() == ["enqueued first (report.make, ready)"]
    first.run(listing)
    first.sees(r"first +ready +report.make")
    first.prompted()


def run_it(first: Shell, second: Shell) -> str:
    """Start a worker in the first terminal and look at it from the second; return the worker's process id."""
    work, *second_terminal = typed("Run it")
    first.run(work)
    process = first.sees(r"^worker .*process (\d+)")[1]
    first.sees(r"first +report.make +1 +writing +\d+ %")
    first.sees(r"^attempt 1: page 2 of 100$")
    for line in second_terminal:
        second.run(line)
        lines = second.prompted()
    assert any("active" in line and "report.make" in line for line in lines)
    return str(process)


def kill_it(first: Shell, second: Shell, process: str) -> None:
    kill, work_again, show = typed("Kill it")
    second.run(kill.replace("12345", process))
    second.prompted()
    first.sees("Killed")
    first.prompted()

    first.run(work_again.replace("PAGE_SECONDS=0.1", f"PAGE_SECONDS={PAGE_SECONDS_FAST}"))
    first.sees(r"^done 1 ")
    first.type("\x03")
    lines = first.prompted()
    # The first line describes the worker's lanes, kinds and store; it is wrapped if the path is long.
    assert lines[0].startswith("worker ")
    del lines[: lines.index("attempt 2: page 1 of 100")]
    # Every page is on its own line, in order, without parts of the screen between them.
    assert lines[:-1] == [f"attempt 2: page {page} of 100" for page in range(1, 101)]
    assert re.fullmatch(r"worker .* stopped after .*: 1 done, 0 retried, 0 failed", lines[-1])
    first.run(show)
    story = "\n".join(first.prompted())
    assert re.search(r"expired.*done", story, re.DOTALL)


def stop_it_gently(first: Shell) -> None:
    enqueue_second, work_gently = typed("Stop it gently")
    first.run(enqueue_second)
    first.prompted()
    first.run(work_gently)
    first.sees(r"^attempt 1: page 1 of 100$")
    # Typed input does not disturb the screen.
    first.type("\n")
    first.sees(r"^attempt 1: page 3 of 100$")
    first.type("\x03")
    first.sees(r"^stopping: waits up to 30s for 1 job; Ctrl-C again releases")
    first.type("\x03")
    lines = first.prompted()
    assert lines[-1].endswith("0 done, 0 retried, 0 failed, 1 released")
    assert not [line for line in lines if re.search(r"process \d+  up ", line)]


def use_all_cores(first: Shell) -> None:
    work_in_four, _ = typed("Use all cores")
    first.run(work_in_four)
    first.sees(r"process \d+ and 4 children")
    first.sees(r"^attempt 1: page 1 of 100$")
    first.type("\x03")
    first.sees(r"^stopping: waits up to 30s for 1 job")
    first.type("\x03")
    # The line that describes the worker may be wrapped.
    assert "8 at once in each of 4 processes" in " ".join(first.prompted()), first.screen.lines
