"""`holdfast completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast.cli.complaints import Complaint
from holdfast.cli.shared import Command, pass_terminal
from holdfast.cli.terminal import Terminal

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOLDFAST_COMPLETE"


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
        raise Complaint(f"this release of click cannot complete in {shell}")
    made = found(click.get_current_context().find_root().command, {}, "holdfast", VARIABLE)
    # The script alone: click's own method for bash starts a bash to ask for its version.
    script = ShellComplete.source(made)
    terminal.tell({"shell": shell, "script": script}, script)
