"""The command line as a process: entry point, streams, signals, and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from tests.support import command_line

pytestmark = pytest.mark.slow("each test starts the command line as a process")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return command_line.environment(**{"HOLDFAST_URL": str(folder / "jobs.db"), **more})


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return command_line.run(*arguments, cwd=folder, env=environment(folder, **more))


@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli"])
def test_both_modules_run_the_command_line(tmp_path: Path, module: str) -> None:
    command, given = [sys.executable, "-m", module, "--version"], environment(tmp_path)

    ran = subprocess.run(command, env=given, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"holdfast {holdfast.__version__}\n", "")


def test_jobs_are_shared_between_processes(tmp_path: Path) -> None:
    enqueued = json.loads(run(tmp_path, "enqueue", "a", '{"n": 1}', "--json").stdout)
    listed = json.loads(run(tmp_path, "jobs", "list", "--json").stdout)

    assert [job["id"] for job in listed["jobs"]] == [enqueued["job"]["id"]]


def test_without_a_url_the_queue_is_a_file_in_this_folder(tmp_path: Path) -> None:
    ran = run(tmp_path, "enqueue", "a", HOLDFAST_URL="")

    assert ran.returncode == 0
    assert (tmp_path / "holdfast.db").exists()


def test_errors_go_to_standard_error_with_the_documented_code(tmp_path: Path) -> None:
    missing = run(tmp_path, "stats")
    run(tmp_path, "migrate")
    refused = run(tmp_path, "jobs", "show", "nobody")

    assert (missing.returncode, missing.stdout) == (2, "")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: no job 'nobody'\nhint: ")


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_optional_packages_one_line_names_the_install_command(tmp_path: Path, package: str) -> None:
    hidden = f"import sys; sys.modules[{package!r}] = None; from holdfast.cli.entry import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", hidden], env=environment(tmp_path), capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "pip install '.[cli]'" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (["worker", "app:queue"], signal.SIGTERM, 0),
        (["worker", "app:queue"], signal.SIGINT, 0),
        (["--json", "--url", "jobs.db", "serve"], signal.SIGTERM, 0),
        (["jobs", "list"], signal.SIGINT, 130),
        (["enqueue", "worker"], signal.SIGTERM, -signal.SIGTERM),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_signal_in_the_first_moments_ends_the_command_as_later(
    tmp_path: Path, arguments: list[str], number: signal.Signals, code: int
) -> None:
    # The import of a package of the command line does not end.
    (tmp_path / "rich.py").write_text("import os, time\nos.write(1, b'importing\\n')\ntime.sleep(300)\n")
    given = environment(tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{command_line.SOURCE}")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        env=given,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as starting:
        try:
            assert starting.stdout is not None
            assert starting.stdout.readline() == "importing\n"
            starting.send_signal(number)
            output, errors = starting.communicate(timeout=command_line.PATIENCE_SECONDS)
        finally:
            starting.kill()

    assert (starting.returncode, output, errors) == (code, "", "")


def test_output_to_a_pipe_has_no_styles_and_is_not_truncated(tmp_path: Path) -> None:
    kind = "a.kind." + "with.a.long.name." * 10
    run(tmp_path, "enqueue", kind)

    listed = run(tmp_path, "jobs", "list").stdout

    assert kind in listed
    assert "\x1b" not in listed


@pytest.mark.parametrize(
    "command", [["jobs", "list", "--json", "--limit", "500"], ["jobs", "list"], ["enqueue", "a"]]
)
def test_a_closed_pipe_ends_the_command_without_an_error_message(tmp_path: Path, command: list[str]) -> None:
    lines = "".join('{"kind": "a"}\n' for _ in range(500))
    given = environment(tmp_path)
    command_line.run("enqueue", "--many", "-", stdin=lines, env=given, cwd=tmp_path)
    reader, writer = os.pipe()
    os.close(reader)

    ran = command_line.run(*command, env=given, stdout=writer, cwd=tmp_path)
    os.close(writer)

    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.parametrize(
    ("command", "code"), [(["jobs", "shwo"], 2), (["jobs", "shwo", "--json"], 2), (["jobs", "show", "missing"], 1)]
)
def test_an_error_keeps_its_exit_code_if_the_reader_has_closed_the_pipe(
    tmp_path: Path, command: list[str], code: int
) -> None:
    given = environment(tmp_path)
    command_line.run("enqueue", "a", env=given, cwd=tmp_path)
    reader, writer = os.pipe()
    os.close(reader)

    with command_line.Command(
        *command, cwd=tmp_path, env=given, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    ) as ran:
        os.close(writer)
        assert ran.wait(command_line.PATIENCE_SECONDS) == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["enqueue", "a"], ["--json", "stats"], ["--help"]])
def test_a_full_disk_of_the_output_is_reported_in_one_line(tmp_path: Path, command: list[str]) -> None:
    run(tmp_path, "enqueue", "a")
    with Path("/dev/full").open("w") as full:
        ran = command_line.run(*command, env=environment(tmp_path), stdout=full.fileno(), cwd=tmp_path)

    assert ran.returncode == 2
    assert "the output cannot be written: No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_closed_standard_streams_do_not_stop_a_command(tmp_path: Path) -> None:
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-m", "holdfast", "enqueue", "a"]

    ran = subprocess.run(closed, env=environment(tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, check=False)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert '"ready": 1' in run(tmp_path, "--json", "stats").stdout


def test_a_width_of_zero_is_no_width(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a")

    assert "ready" in run(tmp_path, "jobs", "list", COLUMNS="0").stdout


def test_an_ascii_terminal_gets_substitutes(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "k\N{LATIN SMALL LETTER U WITH DIAERESIS}")

    ran = run(tmp_path, "stats", "--by", "kind", PYTHONIOENCODING="ascii")

    assert ran.returncode == 0
    assert "k?" in ran.stdout
    assert "#" in ran.stdout


def test_follow_exits_with_130_when_interrupted(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a", "--events", "all")
    follower = command_line.Command(
        "events",
        "--follow",
        "--json",
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    )
    assert follower.stdout is not None
    with follower:
        first = json.loads(follower.stdout.readline())
        run(tmp_path, "enqueue", "b", "--events", "all")
        second = json.loads(follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        try:
            code = follower.wait(timeout=30)
        finally:
            follower.kill()

    assert [(event["name"], event["kind"]) for event in (first, second)] == [("enqueued", "a"), ("enqueued", "b")]
    assert code == 130


class OnTerminal:
    """The command line on a pseudo-terminal."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self._screen, inner = pty.openpty()
        self._process = command_line.Command(
            *arguments,
            env=environment(folder, **{"TERM": "xterm", "COLUMNS": "100", **more}),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=folder,
            leader=True,
        )
        os.close(inner)
        self.seen = ""

    def read_until(self, expected: str) -> None:
        while expected not in self.seen and (part := self._part()):
            self.seen += part

    def type(self, answer: str) -> None:
        os.write(self._screen, answer.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until the process ends: Python's `input` misses a signal that arrives while it begins."""
        while self._process.poll() is None:
            self.type("\x03")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.2)

    def finish(self) -> int:
        while part := self._part():
            self.seen += part
        os.close(self._screen)
        return self._process.wait()

    def _part(self) -> str:
        ready, _, _ = select.select([self._screen], [], [], 60)
        assert ready, f"nothing more came after {self.seen!r}"
        try:
            return os.read(self._screen, 4096).decode()
        except OSError:  # on Linux: the other end was closed
            return ""


def test_output_on_a_terminal_is_styled_unless_disabled(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a")

    coloured, plain = OnTerminal(tmp_path, "stats"), OnTerminal(tmp_path, "stats", NO_COLOR="1")

    assert (coloured.finish(), plain.finish()) == (0, 0)
    assert "\x1b[36mready" in coloured.seen
    assert "\x1b[36m" not in plain.seen


def test_errors_on_a_terminal_are_styled_unless_disabled(tmp_path: Path) -> None:
    coloured, plain = OnTerminal(tmp_path, "stats"), OnTerminal(tmp_path, "stats", NO_COLOR="1")

    assert (coloured.finish(), plain.finish()) == (2, 2)
    assert "\x1b[1;31merror:" in coloured.seen
    assert "31m" not in plain.seen


def test_errors_and_questions_are_wrapped_at_spaces_on_a_terminal(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a", "--id", "one")
    run(tmp_path, "lanes", "set", "default", "--state", "draining", "--yes")

    refused = OnTerminal(tmp_path, "enqueue", "a", NO_COLOR="1", COLUMNS="40")
    asked = OnTerminal(tmp_path, "kinds", "retire", "a", NO_COLOR="1", COLUMNS="40")
    asked.read_until("[y/N]")
    asked.type("n\n")

    assert (refused.finish(), asked.finish()) == (1, 1)
    output = re.sub("\x1b\\[[0-9;]*m|\r", "", refused.seen).rstrip()
    message, _, hint = output.partition("hint:")
    assert [line.rstrip() for line in message.splitlines()] == [
        "error: lane 'default' is draining and",
        "accepts no new jobs; set it active to",
        "enqueue again",
    ]
    # A command is not wrapped: it can be copied.
    assert hint == " holdfast lanes set default --state active"
    assert "Retire kind a, and permanently\r\nretire 1 waiting job? [y/N]" in asked.seen


def test_a_hint_in_words_is_wrapped_at_spaces_on_a_terminal(tmp_path: Path) -> None:
    refused = OnTerminal(tmp_path, "stats", NO_COLOR="1", COLUMNS="40")

    assert refused.finish() == 2
    output = re.sub("\x1b\\[[0-9;]*m|\r", "", refused.seen).rstrip()
    assert [line.rstrip() for line in output.partition("hint: ")[2].splitlines()] == [
        "set --url or HOLDFAST_URL;",
        "'holdfast enqueue' and 'holdfast",
        "migrate' create a queue",
    ]


def test_prune_on_a_terminal_asks_and_deletes_nothing_after_no(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a", "--id", "one")
    run(tmp_path, "jobs", "cancel", "one")

    asked = OnTerminal(tmp_path, "prune", "--older-than", "0")
    asked.read_until("[y/N]")
    asked.type("n\n")

    assert asked.finish() == 1
    assert "Delete 1 job and 1 event from" in asked.seen
    assert "nothing was changed" in asked.seen
    assert json.loads(run(tmp_path, "stats", "--json").stdout)["total"] == 1


def test_prune_on_a_terminal_asks_nothing_if_there_is_nothing_to_delete(tmp_path: Path) -> None:
    run(tmp_path, "enqueue", "a")

    pruned = OnTerminal(tmp_path, "prune", "--older-than", "1d")

    assert pruned.finish() == 0
    assert "deleted 0 jobs and 0 events" in pruned.seen


@pytest.mark.parametrize("arguments", [[], ["--yes"]])
def test_prune_on_a_terminal_deletes_after_yes(tmp_path: Path, arguments: list[str]) -> None:
    run(tmp_path, "enqueue", "a", "--id", "one")
    run(tmp_path, "jobs", "cancel", "one")

    asked = OnTerminal(tmp_path, "prune", "--older-than", "0", *arguments)
    if not arguments:
        asked.read_until("[y/N]")
        asked.type("y\n")

    assert asked.finish() == 0
    assert "deleted 1 job and 1 event" in asked.seen


def test_after_ctrl_c_at_a_question_the_shell_continues_on_a_new_line(tmp_path: Path) -> None:
    run(tmp_path, "migrate")

    asked = OnTerminal(tmp_path, "kinds", "retire", "a")
    asked.read_until("[y/N]: ")
    asked.interrupt()

    assert asked.finish() == 130
    assert re.search(r"\[y/N\]: (\^C)+\r\n$", asked.seen), asked.seen


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "cancel", "--kind", "a"],
        ["jobs", "requeue", "--state", "cancelled"],
        ["kinds", "retire", "a"],
        ["lanes", "set", "default", "--state", "draining"],
    ],
    ids=" ".join,
)
def test_commands_that_change_many_jobs_ask_on_a_terminal(tmp_path: Path, arguments: list[str]) -> None:
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        queue.enqueue("a", job_id="one")
        queue.cancel(queue.enqueue("a", job_id="two").id)
        before = queue.counts()
        asked = OnTerminal(tmp_path, *arguments)
        asked.read_until("[y/N]")
        asked.type("n\n")

        assert asked.finish() == 1
        assert "1 " in asked.seen
        assert queue.counts() == before
        assert [kind.retired for kind in queue.kinds.list()] == [False]
        assert [lane.state for lane in queue.lanes.list()] == ["active"]


def test_bash_completes_commands_with_the_script(tmp_path: Path) -> None:
    script = run(tmp_path, "completion", "bash").stdout
    completed = run(
        tmp_path,
        _HOLDFAST_COMPLETE="bash_complete",
        COMP_WORDS="holdfast jobs re",
        COMP_CWORD="2",
    )

    assert "complete -o nosort -F _holdfast_completion holdfast" in script
    assert completed.stdout.split() == ["plain,requeue"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (Debian: apt-get install zsh)")
def test_zsh_loads_the_script_without_a_start_up_file(tmp_path: Path) -> None:
    script = run(tmp_path, "completion", "zsh").stdout
    taken = subprocess.run(
        ["zsh", "-f", "-c", f"{script}\nprint ${{_comps[holdfast]}}"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (taken.stdout, taken.stderr) == ("_holdfast_completion\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (Debian: apt-get install fish)")
def test_fish_completes_with_whole_descriptions(tmp_path: Path) -> None:
    script = run(tmp_path, "completion", "fish").stdout
    completed = subprocess.run(
        ["fish", "--no-config", "-c", f"{script}\ncomplete -C 'holdfast jobs list --stat'"],
        env={"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert completed.stdout.startswith("--state\tOnly jobs in this state: scheduled, ")


def test_a_binary_artifact_is_not_written_to_a_terminal(tmp_path: Path) -> None:
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        queue.enqueue("a", job_id="one")
        claim = queue.claim()
        assert claim is not None
        artifacts = [holdfast.Artifact("raw", b"\x1b[2J"), holdfast.Artifact("log", b"all well\n")]
        queue.settle(claim, holdfast.Done(artifacts=artifacts))

    raw, log = (
        OnTerminal(tmp_path, "jobs", "artifact", "one", "raw"),
        OnTerminal(tmp_path, "jobs", "artifact", "one", "log"),
    )

    assert (raw.finish(), log.finish()) == (2, 0)
    assert "\x1b[2J" not in raw.seen
    assert "-o FILE" in raw.seen
    assert "all well" in log.seen


def test_many_on_a_terminal_draws_progress_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"kind": "a"}\n' * 3_000)

    drawn = OnTerminal(tmp_path, "enqueue", "--many", "jobs.jsonl")

    assert drawn.finish() == 0
    assert "enqueueing" in drawn.seen
    assert "enqueued 3,000 jobs" in drawn.seen
