"""Enqueue a file of JSON lines in batches. Each batch is one transaction; an error names the line of the file."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rich.progress import BarColumn, FileSizeColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from holdfast import Backoff, HoldfastError, InvalidInput, Queue, types
from holdfast.cli import errors, formatting, params
from holdfast.cli.terminal import Terminal

BATCH_JOBS = 1_000
# Well below the size limit of one call.
BATCH_BYTES = 8 << 20
_INDEX = re.compile(r"jobs\[(\d+)\]\.?")


class ImportLine(NamedTuple):
    """The options of one job, and its line in the file."""

    number: int
    options: dict[str, Any]
    size: int


class ImportTally:
    """Counts of the jobs stored so far."""

    def __init__(self) -> None:
        self.created = 0
        self.existing = 0
        self.through = 0

    @property
    def stored(self) -> int:
        """The number of the file's jobs that are in the store."""
        return self.created + self.existing

    @property
    def resume(self) -> str:
        """How to continue after an error."""
        if not self.through:
            return "nothing was stored"
        return f"lines up to {self.through} are stored; correct the file and continue from line {self.through + 1}"

    def add(self, batch: list[ImportLine], results: list[types.Enqueued[Any]]) -> None:
        """Count a stored batch."""
        created = sum(result.created for result in results)
        self.created += created
        self.existing += len(results) - created
        self.through = batch[-1].number


def enqueue_lines(terminal: Terminal, source: str, defaults: dict[str, Any]) -> None:
    """Enqueue every line of *source*; options missing from a line come from *defaults*."""
    tally = ImportTally()
    with ExitStack() as stack:
        stream, total = stack.enter_context(_open_source(source))
        progress = stack.enter_context(_progress(terminal))
        bar = progress.add_task("enqueueing", total=total, jobs="")
        queue = stack.enter_context(terminal.queue(create=True))
        for batch in _batches(_lines(stream, defaults, tally)):
            _send(terminal, queue, batch, tally)
            progress.update(
                bar, advance=sum(line.size for line in batch), jobs=formatting.number(tally.stored, "job")
            )
    if not terminal.json:
        terminal.line(_summary(tally))


def _send(terminal: Terminal, queue: Queue, batch: list[ImportLine], tally: ImportTally) -> None:
    try:
        results = queue.enqueue_many([line.options for line in batch])
    except HoldfastError as error:
        raise _locate_error(error, batch, tally) from error
    tally.add(batch, results)
    if terminal.json:
        for line, result in zip(batch, results, strict=True):
            terminal.emit({"line": line.number, "id": result.id, "created": result.created})


def _locate_error(error: HoldfastError, batch: list[ImportLine], tally: ImportTally) -> errors.CommandError:
    """Return *error* with the line of the file in place of the index within the batch."""
    described = errors.describe(error)
    where = f"lines {batch[0].number} to {batch[-1].number}" if len(batch) > 1 else f"line {batch[0].number}"
    message = described.message
    if isinstance(error, InvalidInput) and (found := _INDEX.match(error.field)):
        where = f"line {batch[int(found[1])].number}"
        field = error.field[found.end() :]
        message = f"{field}: {error.problem}" if field else error.problem
    return errors.CommandError(
        f"{where}: {message}", hint=tally.resume, code=described.code, exit_code=described.exit_code
    )


def _lines(stream: BinaryIO, defaults: dict[str, Any], tally: ImportTally) -> Iterator[ImportLine]:
    size = 0
    for number, content in enumerate(stream, start=1):
        size += len(content)
        if content.strip():
            try:
                options = {**defaults, **_parse_options(content)}
            except ValueError as error:
                raise errors.CommandError(f"line {number}: {error}", hint=tally.resume) from None
            yield ImportLine(number, options, size)
            size = 0


def _parse_options(content: bytes) -> dict[str, Any]:
    try:
        options = params.parse_json(content.decode().rstrip())
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError('not an object with the options of a job, such as {"kind": "email.send", "payload": null}')
    return _convert_values(options)


def _convert_values(options: dict[str, Any]) -> dict[str, Any]:
    """Convert values that JSON cannot express: durations, timestamps and backoffs."""
    readers = {"delay": params.duration, "run_at": params.timestamp, "deadline": params.duration_or_timestamp}
    for name, reader in readers.items():
        if isinstance(options.get(name), str):
            try:
                options[name] = reader(options[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    if isinstance(options.get("backoff"), dict):
        try:
            options["backoff"] = Backoff(**options["backoff"])
        except TypeError:
            raise ValueError("backoff: valid keys are base, factor, cap and jitter") from None
    return options


def _batches(lines: Iterator[ImportLine]) -> Iterator[list[ImportLine]]:
    batch: list[ImportLine] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == BATCH_JOBS or size + line.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line.size
    if batch:
        yield batch


@contextmanager
def _open_source(source: str) -> Iterator[tuple[BinaryIO, int | None]]:
    if source == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(source)
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise errors.CommandError(f"cannot read {source!r}: {why}") from None
    with stream:
        yield stream, path.stat().st_size or None


def _progress(terminal: Terminal) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        FileSizeColumn(),
        TextColumn("{task.fields[jobs]}"),
        TimeRemainingColumn(),
        console=terminal.err,
        transient=True,
        disable=not terminal.shows_progress,
    )


def _summary(tally: ImportTally) -> str:
    existing = f"; {tally.existing:,} existed already" if tally.existing else ""
    return f"enqueued {formatting.number(tally.created, 'job')}{existing}"
