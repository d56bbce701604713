"""Rich consoles on the standard streams: styles only on terminals, and no markup in the text."""

import os
from typing import TextIO

from rich.console import Console

# Output to a file or a pipe is not truncated.
_WIDTH_UNBOUNDED = 10_000


def console(stream: TextIO) -> Console:
    """Return a console on *stream*. Markup, highlighting and emoji codes are off: job data may contain them."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_UNBOUNDED
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
