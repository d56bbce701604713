"""What the code knows the docs know too: errors, limits, words, events, commands, each as it really is."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

import click
import pytest

import holdfast
from holdfast.cli.root import COMMANDS, root
from holdfast.domain import errors, failure, limits
from holdfast.domain.event import EventName
from holdfast.domain.job import STATES
from tests.house.sources import DOCS, table_rows

ERRORS: list[type[holdfast.HoldfastError]] = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.HoldfastError)
]
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}
EMPTY = click.Context(root, info_name="holdfast")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_is_exported_and_documented_with_its_code(error: type[holdfast.HoldfastError]) -> None:
    assert getattr(holdfast, error.__name__) is error
    assert error.__name__ in holdfast.__all__
    assert error.__name__ in (errors.__doc__ or "")
    code, advice = table_rows(DOCS / "errors.md")[error.__name__]
    assert code == f"`{error.code}`"
    assert advice


def test_no_two_errors_share_a_code() -> None:
    assert len({error.code for error in ERRORS}) == len(ERRORS)


def test_the_page_of_errors_names_none_that_does_not_exist() -> None:
    assert table_rows(DOCS / "errors.md").keys() == {error.__name__ for error in ERRORS}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_documented_with_its_true_value(name: str) -> None:
    value, meaning = table_rows(DOCS / "limits.md")[name]

    assert value == f"{LIMITS[name]:,}"
    assert meaning


def test_the_page_of_limits_names_none_that_does_not_exist() -> None:
    assert table_rows(DOCS / "limits.md").keys() == LIMITS.keys()


@pytest.mark.parametrize("word", holdfast.JobOptions.__annotations__)
def test_a_word_of_enqueue_is_documented(word: str) -> None:
    assert all(table_rows(DOCS / "concepts.md")[word])


@pytest.mark.parametrize(
    "word", sorted(holdfast.TaskOptions.__annotations__.keys() - holdfast.JobOptions.__annotations__.keys())
)
def test_a_word_of_a_task_is_documented(word: str) -> None:
    assert all(table_rows(DOCS / "tasks.md")[word])


@pytest.mark.parametrize("name", sorted(name for name in vars(holdfast.Context) if name[0] != "_"))
def test_what_a_context_offers_a_handler_is_documented(name: str) -> None:
    text = (DOCS / "tasks.md").read_text(encoding="utf-8")
    for_the_worker = {"take_progress", "return_progress", "ask_to_stop"}

    assert name in for_the_worker or re.search(rf"(`|context\.){name}\b", text)


@pytest.mark.parametrize("word", holdfast.ClaimOptions.__annotations__)
def test_a_word_of_a_claim_is_documented(word: str) -> None:
    assert all(table_rows(DOCS / "claiming.md")[word])


def test_the_page_of_claiming_names_no_word_that_does_not_exist() -> None:
    assert table_rows(DOCS / "claiming.md").keys() == holdfast.ClaimOptions.__annotations__.keys()


def test_every_state_is_documented() -> None:
    assert table_rows(DOCS / "lifecycle.md").keys() >= set(STATES)


def test_every_reason_that_holdfast_gives_is_documented() -> None:
    reasons = {value for name, value in vars(failure).items() if name.isupper()}

    assert reasons
    assert table_rows(DOCS / "lifecycle.md").keys() >= reasons


def test_every_event_is_documented() -> None:
    text = (DOCS / "events.md").read_text(encoding="utf-8")

    assert [name for name in get_args(EventName) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", sorted(n for n, v in vars(holdfast.Queue).items() if callable(v) and n[0] != "_"))
def test_a_method_of_the_queue_is_named_somewhere_in_the_docs(name: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))

    assert re.search(rf"(`|queue\.){name}\b", text)


def test_every_public_name_is_there_and_has_a_docstring() -> None:
    for name in holdfast.__all__:
        value: Any = getattr(holdfast, name)
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


@pytest.mark.parametrize(("path", "command"), CLI, ids=[path for path, _ in CLI])
def test_a_command_is_documented_with_its_options(path: str, command: click.Command) -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    section = re.search(rf"^### `{path}`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)

    assert section, f"docs/cli.md has no section ### `{path}`"
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    own = [option for option in options if option not in {"--url", "--schema", "--json", "--help"}]
    assert [option for option in own if f"`{option}" not in section[1]] == []
