"""The two streams as consoles: colours only on terminals and only if wanted, text shown as it is."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

# Output that no terminal shows is not cut to a width: whoever reads it wants all of it.
_WIDTH_UNBOUNDED = 10_000


def console(stream: TextIO) -> Console:
    """Return a console on *stream*. Markup, highlighting and emoji codes are off: a job may carry such characters."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_UNBOUNDED
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
