"""The root command `holdfast`: imports each command when it is used, and converts errors to exit codes."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast import HoldfastError, version
from holdfast.cli import errors, options
from holdfast.cli.terminal import Terminal

# Why standard output takes no more, besides a closed pipe.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOLDFAST_COMPLETE"
# The script calls compdef, which exists only after compinit has run.
_ZSH_PREAMBLE = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"


@click.command(
    cls=options.Command,
    opens_store=False,
    epilog="""
    Add the line for your shell to its start-up file:
      bash  ~/.bashrc                    eval "$(holdfast completion bash)"
      zsh   ~/.zshrc                     eval "$(holdfast completion zsh)"
      fish  ~/.config/fish/config.fish   holdfast completion fish | source

    Examples:
      holdfast completion bash
      holdfast completion fish | source
    """,
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@options.pass_terminal
def completion(terminal: Terminal, shell: str) -> None:
    """Print the completion script of a shell."""
    completer = get_completion_class(shell)
    if completer is None:
        raise errors.CommandError(f"this release of click cannot complete in {shell}")
    instance = completer(click.get_current_context().find_root().command, {}, "holdfast", VARIABLE)
    # Click's method for bash runs bash to check its version; the base method only formats the script.
    script = ShellComplete.source(instance)
    if shell == "zsh":
        script = f"{_ZSH_PREAMBLE}\n{script}"
    elif shell == "fish":
        # Click's script ends a description at its first comma.
        script = script.replace('string split ","', 'string split -m 1 ","')
    terminal.report({"shell": shell, "script": script}, script)


# Modules are imported on use, which keeps the start of each command fast.
COMMANDS = {
    "demo": "holdfast.cli.demo.command:demo",
    "worker": "holdfast.cli.worker:worker",
    "workers": "holdfast.cli.workers:workers",
    "serve": "holdfast.cli.serve:serve",
    "gateway": "holdfast.cli.gateway:gateway",
    "enqueue": "holdfast.cli.enqueue:enqueue",
    "jobs": "holdfast.cli.jobs:jobs",
    "failures": "holdfast.cli.failures:failures",
    "lanes": "holdfast.cli.lanes:lanes",
    "kinds": "holdfast.cli.kinds:kinds",
    "events": "holdfast.cli.events:events",
    "top": "holdfast.cli.top:top",
    "stats": "holdfast.cli.stats:stats",
    "prune": "holdfast.cli.prune:prune",
    "webhooks": "holdfast.cli.webhooks:webhooks",
    "groups": "holdfast.cli.groups:groups",
    "schedules": "holdfast.cli.schedules:schedules",
    "limits": "holdfast.cli.limits:limits",
    "token": "holdfast.cli.access:token",
    "audit": "holdfast.cli.access:audit",
    "bench": "holdfast.cli.bench:bench",
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
  0    success
  1    refused by the store (no such job, wrong state); or a negative result
       (doctor found a problem, the job of 'jobs wait' is not done, a process
       of 'worker --processes' failed)
  2    wrong usage, input or configuration; also a queue that does not exist
  3    the store is unavailable: try again
  4    'jobs wait' or 'groups wait' timed out
  130  interrupted
  141  the reader of the output closed the pipe
"""


class Root(options.Group):
    """The root group."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # signature of click
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands of groups with this name, such as `jobs list` for `list`."""
        groups = [(group, self.get_command(ctx, group)) for group in COMMANDS]
        return [
            f"{ctx.command_path} {group} {name}"
            for group, command in groups
            if isinstance(command, click.Group) and name in command.list_commands(ctx)
        ]

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line and exit with a documented code."""
        arguments = sys.argv[1:] if args is None else list(args)
        extra["standalone_mode"] = False
        try:
            result = super().main(arguments, *rest, **extra)
        except (HoldfastError, errors.CommandError, click.ClickException) as error:
            # Parsing may fail before it reaches --json, so search the arguments.
            sys.exit(errors.report_error(error, as_json="--json" in arguments))
        except click.Abort:
            sys.exit(errors.INTERRUPTED)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            _drop_output()
            sys.exit(errors.report_error(_unwritten(error), as_json="--json" in arguments))
        sys.exit(result if isinstance(result, int) else errors.OK)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader closed the pipe, as `head` does.
            _drop_output()
            return errors.BROKEN_PIPE


def _unwritten(error: OSError) -> errors.CommandError:
    return errors.CommandError(
        f"the output cannot be written: {error.strerror}",
        hint="what the command has done stays done",
        code="output_failed",
    )


def _drop_output() -> None:
    """Drop buffered output, which must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command(cls=Root, epilog=EPILOG)
@click.version_option(version.__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """Holdfast: a durable work queue with fenced leases, on SQLite or PostgreSQL."""
