"""Entry point of the `holdfast` command. Checks that the optional packages are installed before importing them."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

OPTIONAL = ("click", "rich")
MISSING = (
    "holdfast: the command line needs packages that are not installed; install the extra `cli`, in a clone with: "
    "pip install '.[cli]'"
)
# Commands that run until a signal, and then exit with 0.
_RUN_UNTIL_SIGNAL = ("worker", "serve", "gateway")
_OPTIONS_WITH_VALUE = ("--url", "--schema")
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    _open_streams()
    if _command(sys.argv[1:]) in _RUN_UNTIL_SIGNAL:
        _exit_on_signals()
    try:
        _run()
    except KeyboardInterrupt:
        # During the imports. Later, click handles it.
        _end_line()
        sys.exit(_INTERRUPTED)


def _run() -> None:
    if not _installed():
        sys.stderr.write(f"{MISSING}\n")
        sys.exit(2)
    if os.environ.get("COLUMNS") == "0":
        # The terminal did not tell its width, as in some containers.
        del os.environ["COLUMNS"]
    # Substitute characters that the terminal's encoding cannot represent, instead of failing.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    importlib.import_module("holdfast.cli.root").root.main(prog_name="holdfast")


def _open_streams() -> None:
    """Open standard streams that are closed, as for some services: another file would get their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            if descriptor == number:
                setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _command(arguments: Sequence[str]) -> str | None:
    """Return the name of the command, which options may precede."""
    rest = iter(arguments)
    for argument in rest:
        if argument in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif not argument.startswith("-"):
            return argument
    return None


def _exit_on_signals() -> None:
    """Exit with 0 on a signal until the command handles signals itself. Keep those ignored that are, as by nohup."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _: object) -> None:
    if number == signal.SIGINT:
        _end_line()
    sys.exit(0)


def _end_line() -> None:
    """Begin a new line: a terminal has shown ^C."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def _installed() -> bool:
    try:
        for package in OPTIONAL:
            importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if missing.name not in OPTIONAL:
            raise
        return False
    return True
