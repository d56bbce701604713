"""Where the command `holdfast` starts: it checks for the optional packages before anything needs them."""

from __future__ import annotations

import importlib
import sys
from io import TextIOWrapper

OPTIONAL = ("click", "rich")
MISSING = "holdfast: the command line needs packages that are not installed; run: pip install 'holdfast[cli]'"


def main() -> None:
    """Run the command line and exit with its code."""
    if not _installed():
        sys.stderr.write(f"{MISSING}\n")
        sys.exit(2)
    # A terminal that cannot show a character gets a substitute for it rather than a crash.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    importlib.import_module("holdfast.cli.root").root.main(prog_name="holdfast")


def _installed() -> bool:
    try:
        for package in OPTIONAL:
            importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name not in OPTIONAL:
            raise
        return False
    return True
