"""The docs describe every error, limit, option, event and command, with its true value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args

import click

import holdfast
from holdfast.cli.root import COMMANDS, root
from holdfast.domain import errors, failures, limits
from holdfast.domain.events import EventName
from holdfast.domain.job import STATES
from tests.project.sources import DOCS, assert_none, table_rows

ERRORS: list[type[holdfast.HoldfastError]] = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.HoldfastError)
]
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}
EMPTY = click.Context(root, info_name="holdfast")


def test_an_error_is_exported_and_documented_with_its_code() -> None:
    rows = table_rows(DOCS / "errors.md")

    def documented(error: type[holdfast.HoldfastError]) -> bool:
        code, advice = rows.get(error.__name__, ("", ""))
        return code == f"`{error.code}`" and bool(advice) and error.__name__ in (errors.__doc__ or "")

    exported = {name: getattr(holdfast.errors, name) for name in holdfast.errors.__all__}
    assert_none(error for error in ERRORS if exported.get(error.__name__) is not error)
    assert_none(error for error in ERRORS if not documented(error))


def test_no_two_errors_share_a_code() -> None:
    assert len({error.code for error in ERRORS}) == len(ERRORS)


def test_the_page_of_errors_names_only_existing_ones() -> None:
    assert table_rows(DOCS / "errors.md").keys() == {error.__name__ for error in ERRORS}


def test_a_limit_is_documented_with_its_true_value() -> None:
    rows = table_rows(DOCS / "limits.md")
    true = {name: f"{value:,}" for name, value in LIMITS.items()}

    assert_none((name, rows.get(name)) for name, value in true.items() if rows.get(name, [""])[0] != value)
    assert_none(name for name in LIMITS if not rows[name][1])


def test_the_page_of_limits_names_only_existing_ones() -> None:
    assert table_rows(DOCS / "limits.md").keys() == LIMITS.keys()


def _undocumented(options: Iterable[str], page: str) -> list[str]:
    """Return the options without a row in a table of *page*, or with an empty cell in it."""
    rows = table_rows(DOCS / page)
    return [option for option in options if not all(rows.get(option, [""]))]


def test_an_option_of_enqueue_is_documented() -> None:
    assert_none(_undocumented(holdfast.types.JobOptions.__annotations__, "concepts.md"))


def test_an_option_of_a_task_is_documented() -> None:
    own = holdfast.types.TaskOptions.__annotations__.keys() - holdfast.types.JobOptions.__annotations__.keys()

    assert_none(_undocumented(sorted(own), "tasks.md"))


def test_a_member_of_the_context_is_documented() -> None:
    text = (DOCS / "tasks.md").read_text(encoding="utf-8")
    for_the_worker = {"note_progress", "take_progress", "return_progress", "request_stop", "end", "completed"} | {
        "latest_progress"
    }
    offered = {name for name in vars(holdfast.Context) if name[0] != "_"} - for_the_worker

    assert_none(name for name in sorted(offered) if not re.search(rf"(`|context\.){name}\b", text))


def test_an_option_of_a_claim_is_documented() -> None:
    assert_none(_undocumented(holdfast.types.ClaimOptions.__annotations__, "claiming.md"))


def test_the_page_of_claiming_names_no_option_that_does_not_exist() -> None:
    assert table_rows(DOCS / "claiming.md").keys() == holdfast.types.ClaimOptions.__annotations__.keys()


def test_every_state_is_documented() -> None:
    assert table_rows(DOCS / "lifecycle.md").keys() >= set(STATES)


def test_every_reason_that_holdfast_gives_is_documented() -> None:
    reasons = {value for name, value in vars(failures).items() if name.isupper()}

    assert reasons
    assert table_rows(DOCS / "lifecycle.md").keys() >= reasons


def test_every_event_is_documented() -> None:
    text = (DOCS / "events.md").read_text(encoding="utf-8")

    assert_none(name for name in get_args(EventName) if f"`{name}`" not in text)


def test_a_method_of_the_queue_occurs_in_the_docs() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    queue = holdfast.connect(":memory:")
    methods = [
        f"{prefix}{name}"
        for prefix, value in {"": queue, **_namespaces(queue)}.items()
        for name in dir(value)
        if name[0] != "_" and callable(getattr(value, name))
    ]

    assert len(methods) > 50
    assert_none(name for name in methods if not re.search(rf"(`|queue\.){re.escape(name)}\b", text))


def _namespaces(queue: holdfast.Queue) -> dict[str, object]:
    return {"sessions.": queue.sessions, "lanes.": queue.lanes, "kinds.": queue.kinds, "admin.": queue.admin}


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for module in (holdfast, holdfast.errors, holdfast.types):
        for name in module.__all__:
            value: Any = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert value.__doc__, name


def _commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    names = command.list_commands(EMPTY)
    return [
        found
        for name in names
        if (sub := command.get_command(EMPTY, name)) is not None
        for found in _commands(sub, f"{path} {name}")
    ]


CLI = _commands(root, "holdfast")


def test_every_command_is_found() -> None:
    assert {path.split()[1] for path, _ in CLI} == COMMANDS.keys()


def test_a_command_is_documented_with_its_options() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    missing = []
    for path, command in CLI:
        section = re.search(rf"^### `{path}`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        own = [option for option in options if option not in {"--url", "--schema", "--json", "--help"}]
        missing += [(path, option) for option in own if section is None or f"`{option}" not in section[1]]
        missing += [(path, "its section")] if section is None else []

    assert_none(missing)
