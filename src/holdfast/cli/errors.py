"""How errors reach the user: one line saying what is wrong, one saying what to do, and a stable exit code."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Final, NamedTuple

import click
from rich.text import Text

from holdfast import (
    ArtifactNotFound,
    Conflict,
    EventsPruned,
    HandlersStuck,
    HoldfastError,
    JobNotFound,
    KindRetired,
    LaneDraining,
    OutcomeUnknown,
    ReadOnlyStore,
    Refused,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreUnreachable,
    Unavailable,
    WaitTimeout,
)
from holdfast.cli.console import console
from holdfast.cli.formatting import clean
from holdfast.domain.masking import mask_url

OK = 0
REFUSED = 1
MISUSED = 2
UNAVAILABLE = 3
TIMED_OUT = 4
INTERRUPTED = 130
CUT_OFF = 141


# The gaps are filled with what the error knows.
_ADVICE: Final[dict[type[HoldfastError], str]] = {
    JobNotFound: "'holdfast jobs list' shows the ids there are; finished jobs may have been pruned",
    ArtifactNotFound: "holdfast jobs show {job_id}",
    LaneDraining: "holdfast lanes set {lane} --state active",
    KindRetired: "holdfast kinds restore {kind}",
    EventsPruned: "go on with --after {horizon}, knowing of the gap",
    Conflict: "holdfast jobs show {job_id}",
    WaitTimeout: "the job goes on unharmed; wait again, perhaps with a longer --timeout",
    OutcomeUnknown: "send the same command again: with an --id that is always safe",
    HandlersStuck: "start it again; --processes, systemd or a container does so by itself",
    StoreBusy: "another process is writing; try again in a moment",
    StoreFull: "free some space ('holdfast prune' deletes finished jobs), then try again",
    StoreUnreachable: "check the path and its permissions; for a server, its host and port, and that it runs",
    ReadOnlyStore: "check the permissions of the file and of its folder",
    SchemaMismatch: "'holdfast migrate' brings an older schema up to date; a newer one needs a newer Holdfast",
    StoreDamaged: "restore the file from a backup",
}


class CommandError(Exception):  # it is told, not caught by callers
    """Something wrong that the command line itself noticed."""

    def __init__(
        self, message: str, *, hint: str = "", code: str = "invalid_input", exit_code: int = MISUSED
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code
        self.exit_code = exit_code


class Told(NamedTuple):
    """An error in the form in which it is told."""

    code: str
    message: str
    hint: str
    exit_code: int


def tell(error: Exception, *, as_json: bool) -> int:
    """Write *error* to standard error, for people or for programs, and return the exit code."""
    told = describe(error)
    if as_json:
        click.echo(json.dumps({"error": {"code": told.code, "message": told.message}}), err=True)
        return told.exit_code
    screen = console(sys.stderr)
    for label, style, said in (("error:", "bold red", told.message), ("hint:", "cyan", told.hint)):
        if said:
            # A terminal would break lines within words. A command is left whole, to be copied.
            whole = not screen.is_terminal or (label == "hint:" and "holdfast " in said)
            screen.print(Text.assemble((label, style), " ", clean(said, keep="")), soft_wrap=whole)
    return told.exit_code


def describe(error: Exception) -> Told:
    """Return the code, the message, the advice and the exit code for *error*, with credentials masked."""
    told = _described(error)
    return told._replace(message=mask_url(told.message), hint=mask_url(told.hint))


def _described(error: Exception) -> Told:
    match error:
        case CommandError():
            return Told(error.code, str(error), error.hint, error.exit_code)
        case HoldfastError():
            return Told(error.code, str(error), _advice(error), exit_code_of(error))
        case click.UsageError():
            asked = error.ctx.command_path if error.ctx else "holdfast"
            return Told("invalid_input", error.format_message(), f"see '{asked} --help'", MISUSED)
        case click.ClickException():
            return Told("invalid_input", error.format_message(), "", MISUSED)
        case _:
            return Told("invalid_input", str(error), "", MISUSED)


def exit_code_of(error: HoldfastError) -> int:
    """Return the exit code that stands for this branch of the error tree."""
    match error:
        case WaitTimeout():
            return TIMED_OUT
        case Refused():
            return REFUSED
        case Unavailable():
            return UNAVAILABLE
        case _:
            return MISUSED


def _advice(error: HoldfastError) -> str:
    """Return what to do about *error*, ready to be typed where it is a command."""
    words = {name: shlex.quote(str(value)) for name, value in vars(error).items() if value is not None}
    try:
        return _ADVICE.get(type(error), "").format(**words)
    except KeyError:
        # A conflict that names no job: there is none to look at.
        return ""
