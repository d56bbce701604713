"""Error output: one line with the message, one with a hint, and a stable exit code."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Final, NamedTuple

import click
from rich.text import Text

from holdfast import Conflict, HoldfastError, JobNotFound, OutcomeUnknown, Refused, Unavailable, WaitTimeout
from holdfast.cli.console import console
from holdfast.cli.formatting import clean
from holdfast.domain.masking import mask_url
from holdfast.errors import (
    ArtifactNotFound,
    EventsPruned,
    HandlersStuck,
    KindRetired,
    LaneDraining,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    WorkerNotFound,
)

OK = 0
REFUSED = 1
MISUSED = 2
UNAVAILABLE = 3
TIMED_OUT = 4
INTERRUPTED = 130
BROKEN_PIPE = 141


# Format strings; the fields are attributes of the error.
_HINTS: Final[dict[type[HoldfastError], str]] = {
    JobNotFound: "'holdfast jobs list' shows existing ids; finished jobs may have been pruned",
    WorkerNotFound: "'holdfast workers list' shows the names",
    ArtifactNotFound: "holdfast jobs show {job_id}",
    LaneDraining: "holdfast lanes set {lane} --state active",
    KindRetired: "holdfast kinds restore {kind}",
    EventsPruned: "continue with --after {horizon}; the events in between are deleted",
    Conflict: "holdfast jobs show {job_id}",
    WaitTimeout: "the job is not affected; wait again, or use a longer --timeout",
    OutcomeUnknown: "repeat the command; with --id this is always safe",
    HandlersStuck: "restart the worker; --processes, systemd or a container does so automatically",
    StoreBusy: "another process is writing; try again",
    StoreFull: "free some space ('holdfast prune' deletes finished jobs), then try again",
    SchemaMismatch: "'holdfast migrate' updates an older schema; a newer schema needs a newer Holdfast",
    StoreDamaged: "restore the file from a backup",
}


class CommandError(Exception):
    """An error that a command detects itself."""

    def __init__(
        self, message: str, *, hint: str = "", code: str = "invalid_input", exit_code: int = MISUSED
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code
        self.exit_code = exit_code


class ErrorReport(NamedTuple):
    """An error as it is printed."""

    code: str
    message: str
    hint: str
    exit_code: int


def report_error(error: Exception, *, as_json: bool) -> int:
    """Write *error* to standard error, as text or as JSON, and return the exit code."""
    described = describe(error)
    if as_json:
        click.echo(json.dumps({"error": {"code": described.code, "message": described.message}}), err=True)
        return described.exit_code
    screen = console(sys.stderr)
    for label, style, text in (("error:", "bold red", described.message), ("hint:", "cyan", described.hint)):
        if text:
            # Wrap at spaces: a terminal breaks lines anywhere. A command stays on one line for copying.
            unwrapped = not screen.is_terminal or (label == "hint:" and text.startswith("holdfast "))
            screen.print(Text.assemble((label, style), " ", clean(text, keep="")), soft_wrap=unwrapped)
    return described.exit_code


def describe(error: Exception) -> ErrorReport:
    """Return the code, the message, the hint and the exit code of *error*, with credentials masked."""
    report = _report(error)
    return report._replace(message=mask_url(report.message), hint=mask_url(report.hint))


def _report(error: Exception) -> ErrorReport:
    match error:
        case CommandError():
            return ErrorReport(error.code, str(error), error.hint, error.exit_code)
        case HoldfastError():
            return ErrorReport(error.code, str(error), _hint(error), exit_code_of(error))
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "holdfast"
            return ErrorReport("invalid_input", error.format_message(), f"see '{command} --help'", MISUSED)
        case click.ClickException():
            return ErrorReport("invalid_input", error.format_message(), "", MISUSED)
        case _:
            return ErrorReport("invalid_input", str(error), "", MISUSED)


def exit_code_of(error: HoldfastError) -> int:
    """Return the exit code of the error's class."""
    match error:
        case WaitTimeout():
            return TIMED_OUT
        case Refused():
            return REFUSED
        case Unavailable():
            return UNAVAILABLE
        case _:
            return MISUSED


def _hint(error: HoldfastError) -> str:
    """Return the hint for *error*, with values quoted for a shell."""
    values = {name: shlex.quote(str(value)) for name, value in vars(error).items() if value is not None}
    try:
        return _HINTS.get(type(error), "").format(**values)
    except KeyError:
        # A Conflict may name no job.
        return ""
