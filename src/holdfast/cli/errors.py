"""Error output: one line with the message, one with a hint, and a stable exit code."""

import json
import os
import shlex
import sys
from typing import Final, NamedTuple

import click
from rich.text import Text

from holdfast import Conflict, HoldfastError, JobNotFound, OutcomeUnknown, Refused, Unavailable, WaitTimeout, errors
from holdfast.cli import formatting
from holdfast.cli.console import console
from holdfast.domain import masking

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
    errors.WorkerNotFound: "'holdfast workers list' shows the names",
    errors.WebhookNotFound: "'holdfast webhooks list' shows the ids",
    errors.ScheduleNotFound: "'holdfast schedules list' shows the names and tenants",
    errors.GroupNotFound: "'holdfast groups list' shows the names and tenants",
    errors.LimitNotFound: "'holdfast limits list' shows the names",
    errors.TokenNotFound: "'holdfast token list' shows the ids",
    errors.ArtifactNotFound: "holdfast jobs show {job_id}",
    errors.QueueFull: "holdfast lanes set {lane} --max-waiting N",
    errors.LaneDraining: "holdfast lanes set {lane} --state active",
    errors.KindRetired: "holdfast kinds restore {kind}",
    errors.EventsPruned: "continue with --after {horizon}; the events in between are deleted",
    Conflict: "holdfast jobs show {job_id}",
    WaitTimeout: "nothing has changed; wait again, or use a longer --timeout",
    OutcomeUnknown: "repeat the command; with --id this is always safe",
    errors.HandlersStuck: "restart the worker; --processes, systemd or a container does so automatically",
    errors.StoreBusy: "another process is writing; try again",
    errors.StoreFull: "free some space on the disk of the store, then try again; 'holdfast prune' deletes finished"
    " jobs, but needs some space itself",
    errors.StoreDamaged: "restore the file from a backup",
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
    try:
        _write(described, as_json=as_json)
    except BrokenPipeError:
        # The exit code still tells what is wrong. Buffered output must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return described.exit_code


def _write(described: ErrorReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"code": described.code, "message": described.message}}), err=True)
        return
    screen = console(sys.stderr)
    for label, style, text in (("error:", "bold red", described.message), ("hint:", "cyan", described.hint)):
        if text:
            # Wrap at spaces: a terminal breaks lines anywhere. A command stays on one line for copying.
            unwrapped = not screen.is_terminal or (label == "hint:" and text.startswith("holdfast "))
            screen.print(Text.assemble((label, style), " ", formatting.clean(text, keep="")), soft_wrap=unwrapped)


def describe(error: Exception) -> ErrorReport:
    """Return the code, the message, the hint and the exit code of *error*, with credentials masked."""
    report = _report(error)
    return report._replace(message=masking.mask_url(report.message), hint=masking.mask_url(report.hint))


def _report(error: Exception) -> ErrorReport:
    match error:
        case CommandError():
            return ErrorReport(error.code, str(error), error.hint, error.exit_code)
        case HoldfastError():
            return ErrorReport(error.code, str(error), _hint(error), exit_code_of(error))
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "holdfast"
            # Click writes the choices of a missing option on lines of their own.
            message = " ".join(error.format_message().split())
            quote = "quote a value with spaces for the shell; " if "unexpected extra argument" in message else ""
            return ErrorReport("invalid_input", message, f"{quote}see '{command} --help'", MISUSED)
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
