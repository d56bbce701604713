"""Properties of every command: position of options, help, errors, and a missing queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.cli import errors
from holdfast.cli.root import root
from holdfast.cli.terminal import Terminal
from holdfast.errors import StoreFull
from tests.cli.conftest import Cli

ON_EXISTING = [
    ["jobs", "list"],
    ["jobs", "show", "x"],
    ["jobs", "cancel", "x"],
    ["jobs", "requeue", "x"],
    ["jobs", "requeue", "--failed", "--yes"],
    ["jobs", "cancel", "--kind", "x", "--yes"],
    ["jobs", "priority", "x", "1"],
    ["jobs", "wait", "x"],
    ["jobs", "artifact", "x", "y"],
    ["jobs", "output", "x"],
    ["lanes", "list"],
    ["lanes", "set", "x", "--state", "paused"],
    ["kinds", "list"],
    ["kinds", "retire", "x", "--yes"],
    ["kinds", "restore", "x"],
    ["events"],
    ["stats"],
    ["prune", "--older-than", "1d", "--yes"],
    ["doctor"],
]


def test_the_time_of_a_command_is_not_that_of_its_start() -> None:
    terminal = Terminal()
    later = datetime.now(UTC)

    assert terminal.now >= later, "a question may wait long for its answer"


@pytest.mark.parametrize("arguments", ON_EXISTING, ids=" ".join)
def test_a_queue_that_does_not_exist_is_named_and_not_created(cli: Cli, arguments: list[str]) -> None:
    output = cli.refusal(*arguments, code=2)

    assert f"there is no queue at {str(cli.path)!r}" in output
    assert "hint: set --url or HOLDFAST_URL" in output
    assert not cli.path.exists()


@pytest.mark.parametrize(
    "arguments", [["enqueue", "a"], ["migrate"], ["limits", "set", "a"], ["serve"]], ids=" ".join
)
def test_a_folder_that_does_not_exist_is_wrong_usage(cli: Cli, tmp_path: Path, arguments: list[str]) -> None:
    output = cli.refusal(*arguments, "--url", str(tmp_path / "missing" / "jobs.db"), code=2)

    assert output.splitlines() == [
        f"error: the folder {str(tmp_path / 'missing')!r} does not exist",
        "hint: create it, or correct --url",
    ]


@pytest.mark.parametrize("arguments", [["stats"], ["enqueue", "a"], ["migrate"]], ids=" ".join)
def test_a_queue_in_memory_is_refused_because_it_belongs_to_one_process(cli: Cli, arguments: list[str]) -> None:
    output = cli.refusal(*arguments, "--url", ":memory:", code=2)

    assert "a queue in memory exists only within the process that opens it" in output
    assert "migrate" not in output


def test_the_hint_on_a_full_disk_names_what_works_on_one() -> None:
    hint = errors.describe(StoreFull("the disk is full; nothing was stored")).hint

    assert hint.startswith("free some space on the disk of the store, then try again; ")
    assert "'holdfast prune' deletes finished jobs, but needs some space itself" in hint


def test_other_queues_in_the_folder_of_a_missing_one_are_named(cli: Cli, tmp_path: Path) -> None:
    cli.text("enqueue", "a", "--url", str(tmp_path / "other.db"))

    output = cli.refusal("stats", "--url", str(tmp_path / "missing.db"), code=2)

    assert "missing.db'; in the same folder there is other.db" in output.replace("\n", " ")


def test_a_missing_queue_in_json_has_a_code(cli: Cli) -> None:
    result = cli.run("stats", "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["code"] == "store_missing"


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_the_url_may_precede_or_follow_the_subcommand(cli: Cli, tmp_path: Path, form: str) -> None:
    other = form.format(tmp_path / "other.db")
    cli.text("enqueue", "a", "--url", other)

    assert cli.json("--url", other, "stats")["total"] == 1
    assert cli.json("jobs", "--url", other, "list")["jobs"][0]["kind"] == "a"
    assert cli.json("jobs", "list", "--url", other)["jobs"][0]["kind"] == "a"
    assert not cli.path.exists()


@pytest.mark.parametrize(
    "arguments", [["--json", "lanes", "list"], ["lanes", "--json", "list"], ["lanes", "list", "--json"]]
)
def test_json_may_precede_or_follow_the_subcommand(cli: Cli, arguments: list[str]) -> None:
    cli.queue.migrate()

    assert "lanes" in json.loads(cli.text(*arguments))


def test_a_url_of_an_unknown_scheme_is_refused(cli: Cli) -> None:
    assert "is not a supported store" in cli.refusal("stats", "--url", "redis://x", code=2)


def test_an_empty_url_is_refused_and_not_replaced_by_the_default(cli: Cli) -> None:
    assert "error: --url: must " in cli.refusal("stats", "--url", "", code=2)


def test_a_folder_is_no_queue(cli: Cli, tmp_path: Path) -> None:
    assert "is a directory; give the path of a SQLite file" in cli.refusal("stats", "--url", str(tmp_path), code=2)


def test_a_usage_error_refers_to_the_help_of_that_command(cli: Cli) -> None:
    assert "hint: see 'root jobs list --help'" in cli.refusal("jobs", "list", "--color", code=2)
    assert "hint: quote a value with spaces" in cli.refusal("enqueue", "email.send", "{to:", "ada}", code=2)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["job", "list"], "'root jobs'"),
        (["Stats"], "'root stats'"),
        (["jobs", "cancle", "x"], "'root jobs cancel'"),
        (["requeue", "x"], "'root jobs requeue'"),
        (
            ["list"],
            "'root workers list' or 'root jobs list' or 'root failures list' or 'root lanes list'"
            " or 'root kinds list' or 'root webhooks list' or 'root groups list' or 'root schedules list'"
            " or 'root limits list' or 'root token list'",
        ),
    ],
)
def test_the_error_for_a_mistyped_command_suggests_the_right_one(cli: Cli, arguments: list[str], meant: str) -> None:
    assert f"did you mean {meant}?" in cli.refusal(*arguments, code=2)


def test_the_error_for_an_unknown_command_suggests_nothing_if_none_is_similar(cli: Cli) -> None:
    assert cli.refusal("xyzzy", code=2).startswith("error: there is no command 'xyzzy'\n")


def test_the_error_for_an_unknown_command_of_a_group_names_those_of_the_group(cli: Cli) -> None:
    assert "there is no command 'pause'; 'root lanes' has list, set\n" in cli.refusal("lanes", "pause", code=2)


def test_a_usage_error_in_json_is_one_object(cli: Cli) -> None:
    result = cli.run("jobs", "list", "--colour", "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["code"] == "invalid_input"


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


@pytest.mark.parametrize("path", list(commands(root)), ids=" ".join)
def test_every_command_has_help_with_examples(cli: Cli, path: tuple[str, ...]) -> None:
    short, long = cli.text(*path, "-h"), cli.text(*path, "--help")

    assert short == long
    assert "Examples:\n" in short
    assert "\n  holdfast " in short


@pytest.mark.parametrize("path", [path for path in commands(root) if path[:1] != ("demo",)], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(cli: Cli, path: tuple[str, ...]) -> None:
    assert max(map(len, cli.text(*path, "-h", columns=80).splitlines())) <= 80


@pytest.mark.parametrize("path", [path for path in commands(root) if path[:1] != ("demo",)], ids=" ".join)
def test_every_command_lists_json_and_the_options_of_the_store_that_it_opens(cli: Cli, path: tuple[str, ...]) -> None:
    output = cli.text(*path, "-h")

    assert "  --json  " in output
    for option in ("  --url URL  ", "  --schema NAME  "):
        assert (option in output) == (path not in {("worker",), ("completion",), ("gateway", "check")})


def test_help_documents_the_exit_codes(cli: Cli) -> None:
    output = cli.text()

    for code in (errors.OK, errors.REFUSED, errors.MISUSED, errors.UNAVAILABLE, errors.TIMED_OUT):
        assert f"\n  {code}    " in output
    for code in (errors.INTERRUPTED, errors.BROKEN_PIPE):
        assert f"\n  {code}  " in output


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli.text("--version") == f"holdfast {holdfast.__version__}\n"


def leaves(branch: type[holdfast.HoldfastError]) -> Iterator[type[holdfast.HoldfastError]]:
    yield branch
    for child in branch.__subclasses__():
        yield from leaves(child)


@pytest.mark.parametrize(
    ("branch", "code"), [(holdfast.Refused, 1), (holdfast.Misconfigured, 2), (holdfast.Unavailable, 3)]
)
def test_every_error_has_the_exit_code_of_its_branch(branch: type[holdfast.HoldfastError], code: int) -> None:
    for error in leaves(branch):
        expected = 4 if error is holdfast.WaitTimeout else code
        assert errors.exit_code_of(error.__new__(error)) == expected


def test_an_error_is_always_one_line(cli: Cli) -> None:
    cli.queue.migrate()

    output = cli.refusal("jobs", "show", "x\n\x1b[2Jerror: y", code=2)

    assert "\x1b" not in output
    assert output.count("\n") == 1


def test_an_argument_that_is_missing_names_both_options(cli: Cli) -> None:
    assert "--kind: must be given, or --lane:" in cli.refusal("limits", "set", "llm", code=2)
    assert "--concurrency: must be given, or --rate" in cli.refusal("limits", "set", "llm", "--kind", "a", code=2)
    assert "--cron: must be given, or --every," in cli.refusal("schedules", "set", "a", "b", code=2)


def test_a_path_that_cannot_be_looked_up_is_an_error_without_a_traceback(cli: Cli) -> None:
    refusal = cli.refusal("--url", "a" * 300, "stats", code=3)
    assert "cannot be opened (File name too long)" in refusal
