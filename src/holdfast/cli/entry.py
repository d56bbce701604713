"""Entry point of the `holdfast` command. Checks that the optional packages are installed before importing them."""

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
    # Substitute characters that the terminal's encoding cannot represent, instead of failing.
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
