"""What every command shares: where the queue is and how to answer, help with examples, the terminal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from holdfast.cli.terminal import Terminal

P = ParamSpec("P")
T = TypeVar("T")

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _terminal(context: click.Context) -> Terminal:
    return context.find_root().ensure_object(Terminal)


def _take_url(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _terminal(context).given_url = value


def _take_schema(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _terminal(context).given_schema = value


def _take_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        _terminal(context).json = True


def _common() -> list[click.Parameter]:
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            is_eager=True,
            callback=_take_url,
            help="The queue: the path of a SQLite file, or postgresql://…. Default: $HOLDFAST_URL, else holdfast.db.",
        ),
        click.Option(
            ["--schema"],
            metavar="NAME",
            expose_value=False,
            is_eager=True,
            callback=_take_schema,
            help="The schema of a PostgreSQL database. Default: $HOLDFAST_SCHEMA, else holdfast.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_take_json,
            help="Answer in JSON, for programs.",
        ),
    ]


class Command(click.Command):
    """A command with the common options; its epilog is shown as it is written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)
        self.params.extend(_common())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples unwrapped, so that they can be copied."""
        write_epilog(self.epilog, formatter)


class Group(click.Group):
    """A group with the common options; its commands have them too."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)
        self.params.extend(_common())

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands in the order in which they are written."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show help where nothing at all is asked for."""
        return super().parse_args(ctx, args or ["--help"])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples unwrapped, so that they can be copied."""
        write_epilog(self.epilog, formatter)


def write_epilog(epilog: str | None, formatter: click.HelpFormatter) -> None:
    """Write *epilog* line by line after a blank line."""
    if epilog:
        formatter.write_paragraph()
        for line in inspect.cleandoc(epilog).splitlines():
            formatter.write(f"{line}\n")


def pass_terminal(command: Callable[Concatenate[Terminal, P], T]) -> Callable[P, T]:
    """Give *command* the terminal of this run as its first argument."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return command(_terminal(click.get_current_context()), *args, **kwargs)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    # Options written below this decorator have already been noted on the function it wraps.
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return run
