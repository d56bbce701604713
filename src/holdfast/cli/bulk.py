"""Enqueueing a file of JSON lines: in batches, each durable when it is done, with the line named that is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rich.progress import BarColumn, FileSizeColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from holdfast import Backoff, Enqueued, HoldfastError, InvalidInput, Queue
from holdfast.cli import errors, formatting, params
from holdfast.cli.errors import CommandError
from holdfast.cli.terminal import Terminal

BATCH_JOBS = 1_000
# Well below what one call may carry, whatever the lines hold.
BATCH_BYTES = 8 << 20
_PLACE = re.compile(r"jobs\[(\d+)\]\.?")


class ImportLine(NamedTuple):
    """One job of the file, and where it stands."""

    number: int
    words: dict[str, Any]
    size: int


class ImportTally:
    """What has been stored so far."""

    def __init__(self) -> None:
        self.created = 0
        self.existing = 0
        self.through = 0

    @property
    def stored(self) -> int:
        """How many jobs of the file are in the store."""
        return self.created + self.existing

    @property
    def resume(self) -> str:
        """How to go on after an error."""
        if not self.through:
            return "nothing was stored"
        return f"every line up to {self.through} is stored; send the rest, put right, from line {self.through + 1}"

    def add(self, batch: list[ImportLine], made: list[Enqueued]) -> None:
        """Count a batch that was stored."""
        new = sum(one.created for one in made)
        self.created += new
        self.existing += len(made) - new
        self.through = batch[-1].number


def enqueue_lines(terminal: Terminal, source: str, defaults: dict[str, Any]) -> None:
    """Enqueue every line of *source*; words that a line does not say come from *defaults*."""
    tally = ImportTally()
    with ExitStack() as stack:
        stream, total = stack.enter_context(_opened(source))
        progress = stack.enter_context(_progress(terminal))
        bar = progress.add_task("enqueueing", total=total, jobs="")
        queue = stack.enter_context(terminal.queue(create=True))
        for batch in _batches(_lines(stream, defaults, tally)):
            _send(terminal, queue, batch, tally)
            progress.update(
                bar, advance=sum(line.size for line in batch), jobs=formatting.number(tally.stored, "job")
            )
    if not terminal.json:
        terminal.line(_said(tally))


def _send(terminal: Terminal, queue: Queue, batch: list[ImportLine], tally: ImportTally) -> None:
    try:
        made = queue.enqueue_many([line.words for line in batch])
    except HoldfastError as error:
        raise _located(error, batch, tally) from error
    tally.add(batch, made)
    if terminal.json:
        for line, one in zip(batch, made, strict=True):
            terminal.emit({"line": line.number, "id": one.id, "created": one.created})


def _located(error: HoldfastError, batch: list[ImportLine], tally: ImportTally) -> CommandError:
    """Return *error* in terms of the file: the library counts within the batch, people count lines."""
    told = errors.describe(error)
    where = f"lines {batch[0].number} to {batch[-1].number}" if len(batch) > 1 else f"line {batch[0].number}"
    message = told.message
    if isinstance(error, InvalidInput) and (found := _PLACE.match(error.field)):
        where = f"line {batch[int(found[1])].number}"
        field = error.field[found.end() :]
        message = f"{field}: {error.problem}" if field else error.problem
    return CommandError(f"{where}: {message}", hint=tally.resume, code=told.code, exit_code=told.exit_code)


def _lines(stream: BinaryIO, defaults: dict[str, Any], tally: ImportTally) -> Iterator[ImportLine]:
    size = 0
    for number, content in enumerate(stream, start=1):
        size += len(content)
        if content.strip():
            try:
                words = {**defaults, **_words(content)}
            except ValueError as error:
                raise CommandError(f"line {number}: {error}", hint=tally.resume) from None
            yield ImportLine(number, words, size)
            size = 0


def _words(content: bytes) -> dict[str, Any]:
    try:
        words = params.parse_json(content.decode())
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(words, dict):
        raise ValueError('not an object with the words of enqueue, such as {"kind": "email.send", "payload": null}')
    return _from_json(words)


def _from_json(words: dict[str, Any]) -> dict[str, Any]:
    """Turn what JSON cannot say, moments and backoffs, into what the library takes."""
    readers = {"delay": params.duration, "run_at": params.moment, "deadline": params.duration_or_moment}
    for word, reader in readers.items():
        if isinstance(words.get(word), str):
            try:
                words[word] = reader(words[word])
            except ValueError as error:
                raise ValueError(f"{word}: {error}") from None
    if isinstance(words.get("backoff"), dict):
        try:
            words["backoff"] = Backoff(**words["backoff"])
        except TypeError:
            raise ValueError("backoff: its words are base, factor, cap and jitter") from None
    return words


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
def _opened(source: str) -> Iterator[tuple[BinaryIO, int | None]]:
    if source == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(source)
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"cannot read {source!r}: {why}") from None
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
        disable=not terminal.watched,
    )


def _said(tally: ImportTally) -> str:
    existed = f"; {tally.existing:,} existed already" if tally.existing else ""
    return f"enqueued {formatting.number(tally.created, 'job')}{existed}"
