"""The command `holdfast` itself: finds its commands when they are asked for, and turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast import HoldfastError
from holdfast.cli.errors import CUT_OFF, INTERRUPTED, OK, CommandError, tell
from holdfast.cli.options import Command, Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.version import __version__

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOLDFAST_COMPLETE"
# A start-up file of zsh may not have started its completion system, which has the function compdef.
_ZSH_OPENING = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"


@click.command(
    cls=Command,
    epilog="""
    Put the line for your shell into its start-up file:
      bash  ~/.bashrc                    eval "$(holdfast completion bash)"
      zsh   ~/.zshrc                     eval "$(holdfast completion zsh)"
      fish  ~/.config/fish/config.fish   holdfast completion fish | source

    Examples:
      holdfast completion bash
      holdfast completion fish | source
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_terminal
def completion(terminal: Terminal, shell: str) -> None:
    """Print the script that completes commands and options in a shell."""
    found = get_completion_class(shell)
    if found is None:
        raise CommandError(f"this release of click cannot complete in {shell}")
    made = found(click.get_current_context().find_root().command, {}, "holdfast", VARIABLE)
    # The script alone: click's own method for bash starts a bash to ask for its version.
    script = ShellComplete.source(made)
    if shell == "zsh":
        script = f"{_ZSH_OPENING}\n{script}"
    terminal.tell({"shell": shell, "script": script}, script)


# A command's module is imported only when it is used, so that each starts quickly.
COMMANDS = {
    "demo": "holdfast.cli.demo.command:demo",
    "worker": "holdfast.cli.worker:worker",
    "workers": "holdfast.cli.workers:workers",
    "enqueue": "holdfast.cli.enqueue:enqueue",
    "jobs": "holdfast.cli.jobs:jobs",
    "lanes": "holdfast.cli.lanes:lanes",
    "kinds": "holdfast.cli.kinds:kinds",
    "events": "holdfast.cli.events:events",
    "stats": "holdfast.cli.stats:stats",
    "prune": "holdfast.cli.prune:prune",
    "doctor": "holdfast.cli.store:doctor",
    "migrate": "holdfast.cli.store:migrate",
    "completion": "holdfast.cli.root:completion",
}

EPILOG = """
Examples:
  holdfast demo
  holdfast worker app.jobs:queue --processes 4
  holdfast enqueue email.send '{"to": "ada@example.org"}'
  holdfast jobs list --state failed
  holdfast --url jobs.db stats --by kind --json

Exit codes:
  0    it worked
  1    refused: what the store holds forbids it (no such job, wrong state);
       or the answer is no (doctor found a problem, the awaited job is not done,
       a process of 'worker --processes' did not end in good order)
  2    wrong usage, input or configuration; also a queue that does not exist
  3    the store could not answer now: try again
  4    'jobs wait' ran out of time
  130  interrupted
  141  whoever read the output went away before its end
"""


class Root(Group):
    """The outermost group."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # as click calls it
        """Return the names of all commands, in the order in which help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return one command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands of the groups that are called *name*, as in `jobs list` for `list`."""
        groups = [(group, self.get_command(ctx, group)) for group in COMMANDS]
        return [
            f"{ctx.command_path} {group} {name}"
            for group, command in groups
            if isinstance(command, click.Group) and name in command.list_commands(ctx)
        ]

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line and exit with one of the documented codes."""
        given = sys.argv[1:] if args is None else list(args)
        extra["standalone_mode"] = False
        try:
            answer = super().main(given, *rest, **extra)
        except (HoldfastError, CommandError, click.ClickException) as error:
            # The parser may fail before it has seen --json, so the words themselves are asked.
            sys.exit(tell(error, as_json="--json" in given))
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(answer if isinstance(answer, int) else OK)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has had enough, as `head` does. What is still buffered must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CUT_OFF


@click.command(cls=Root, epilog=EPILOG)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """Holdfast: a durable work queue with fenced leases, in one SQLite file."""
