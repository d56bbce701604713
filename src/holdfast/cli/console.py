"""Rich consoles on the standard streams: styles only on terminals, and no markup in the text."""

import os
from typing import TextIO

from rich.console import Console

# Output to a file or a pipe is not truncated.
_WIDTH_UNBOUNDED = 10_000


class StreamConsole(Console):
    """A console that leaves a closed pipe to the command, which exits with its own code for it."""

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`; `rich` would exit with 1."""
        raise BrokenPipeError


def console(stream: TextIO) -> Console:
    """Return a console on *stream*. Markup, highlighting and emoji codes are off: job data may contain them."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_UNBOUNDED
    return StreamConsole(file=stream, width=width, markup=False, highlight=False, emoji=False)
