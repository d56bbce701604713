"""Parts common to all commands: the options --url, --schema and --json, help with examples, the terminal."""

import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from holdfast import InvalidInput
from holdfast.cli import params, terminal

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# Arguments of the library whose option has another name in the command line.
_PARAMETERS = {"lanes": "lane", "kinds": "kind", "capabilities": "capability", "worker": "name"}
# The names of other arguments in the text of a problem.
_MENTIONED = re.compile(r"(?<=combined with )\w+|(?<=given, or )\w+|\w+_\w+")

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _terminal(context: click.Context) -> terminal.Terminal:
    return context.find_root().ensure_object(terminal.Terminal)


def _set_url(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _terminal(context).given_url = value


def _set_schema(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _terminal(context).given_schema = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        _terminal(context).json = True


def _common_options(*, opens_store: bool = True) -> list[click.Parameter]:
    """Return the common options; a command that does not open the store of --url accepts it, but does not list it."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            is_eager=True,
            callback=_set_url,
            hidden=not opens_store,
            help="A SQLite file, postgresql://…, or http://… of a server. Default: $HOLDFAST_URL, else holdfast.db.",
        ),
        click.Option(
            ["--schema"],
            metavar="NAME",
            expose_value=False,
            is_eager=True,
            callback=_set_schema,
            hidden=not opens_store,
            help="The schema of a PostgreSQL database. Default: $HOLDFAST_SCHEMA, else holdfast.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_set_json,
            help="Print JSON.",
        ),
    ]


class Command(click.Command):
    """A command with the common options and an unwrapped epilog."""

    def __init__(self, *args: Any, opens_store: bool = True, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)
        self.opens_store = opens_store
        """Whether it uses the store of --url and --schema."""
        self.params.extend(_common_options(opens_store=opens_store))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error about an argument of the library names the option that set it."""
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise _with_option(error, self.params) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the epilog unwrapped: examples can be copied."""
        write_epilog(self.epilog, formatter)


class Group(click.Group):
    """A group whose commands have the common options, as it has itself."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {**CONTEXT, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)
        self.params.extend(_common_options())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* name, or raise with similar names."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            path = ctx.command_path
            close = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=3, cutoff=0.6)
            candidates = self.elsewhere(ctx, name) or [f"{path} {one}" for one in close]
            hint = f"; did you mean {' or '.join(f'{one!r}' for one in candidates)}?" if candidates else ""
            if not candidates and ctx.parent is not None:
                hint = f"; {path!r} has {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def elsewhere(self, ctx: click.Context, name: str) -> list[str]:  # noqa: ARG002
        """Return the commands of other groups with this name."""
        return []

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands in source order."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if there are no arguments."""
        return super().parse_args(ctx, args or ["--help"])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the epilog unwrapped: examples can be copied."""
        write_epilog(self.epilog, formatter)


def _with_option(error: InvalidInput, parameters: list[click.Parameter]) -> InvalidInput:
    """Return *error* with the names of options, such as `--run-at`, in place of the library's arguments."""
    options = {one.name: one for one in parameters if isinstance(one, click.Option)}
    argument = re.split(r"[\[.]", error.field)[0]
    option = options.get(argument) or options.get(_PARAMETERS.get(argument, argument))
    if option is None:
        return error
    problem = _MENTIONED.sub(
        lambda found: options[found[0]].opts[0] if found[0] in options else found[0], error.problem
    )
    if option.type is params.DURATION and "out of range" in problem:
        problem += " seconds"
    return InvalidInput(option.opts[0], problem)


def write_epilog(epilog: str | None, formatter: click.HelpFormatter) -> None:
    """Write *epilog* line by line after a blank line."""
    if epilog:
        formatter.write_paragraph()
        for line in inspect.cleandoc(epilog).splitlines():
            formatter.write(f"{line}\n")


def destructive(command: F) -> F:
    """Add `--dry-run` and `--yes` to a command whose effect cannot be undone."""
    yes = click.option("--yes", is_flag=True, help="Do not ask. Required without a terminal.")
    dry_run = click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
    return dry_run(yes(command))


def pass_terminal(command: Callable[Concatenate[terminal.Terminal, P], T]) -> Callable[P, T]:
    """Pass the terminal of this run to *command* as its first argument."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return command(_terminal(click.get_current_context()), *args, **kwargs)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    # Decorators below this one have already added their options to the wrapped function.
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return run
