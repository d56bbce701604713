"""The output stream of a job: text in numbered chunks that its attempts append and readers follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from holdfast.domain import errors, limits


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of a job's output: the text that one attempt emitted between two writes."""

    number: int
    """Its number within the job, from 1 and without gaps; pass it as *after* to continue behind it."""
    attempt: int
    """The attempt that emitted it; a retry continues the stream."""
    epoch: int
    """The epoch of that attempt; it differs also between attempts that did not count."""
    at: datetime
    """When it was written."""
    text: str
    """The text."""


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Some chunks of a job's output, and whether they are the last."""

    chunks: tuple[OutputChunk, ...]
    """The chunks; the page itself can be iterated and indexed too."""
    ended: bool
    """Whether the job has finished and no chunk follows this page."""

    def __iter__(self) -> Iterator[OutputChunk]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, index: int) -> OutputChunk:
        return self.chunks[index]


class StreamEnd(NamedTuple):
    """The last chunk of a stream."""

    number: int = 0
    epoch: int = 0
    part: int = 0
    """Its index within its attempt."""
    size: int = 0
    """The bytes of the stream up to and including it."""

    def parts_of(self, epoch: int) -> int:
        """Return how many parts the attempt with *epoch*, the newest of the job, has written."""
        return self.part + 1 if self.number and self.epoch == epoch else 0


class OutputWrite(NamedTuple):
    """Texts that one attempt appends, each as a chunk."""

    first: int | None
    """The index of the first text within the attempt; parts that are stored are skipped. None appends in any case."""
    texts: Sequence[str]

    @property
    def parts(self) -> int:
        """How many parts of the attempt are stored after this write."""
        return (self.first or 0) + len(self.texts)


class NewChunk(NamedTuple):
    """A chunk to store."""

    number: int
    part: int
    size: int
    text: str


def check_text(text: object, field: str = "text") -> str:
    """Return *text* if one chunk can hold it."""
    if not isinstance(text, str):
        raise errors.InvalidInput(field, f"must be a string, not {type(text).__name__}")
    if "\0" in text:
        raise errors.InvalidInput(field, "contains U+0000")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise errors.InvalidInput(field, "contains half of a surrogate pair") from None
    if size > limits.OUTPUT_CHUNK_BYTES_MAX:
        raise errors.InvalidInput(
            field, f"is {size} bytes; the limit is {limits.OUTPUT_CHUNK_BYTES_MAX}", limits.OUTPUT_CHUNK_BYTES_MAX
        )
    return text


def new_chunks(end: StreamEnd, epoch: int, write: OutputWrite) -> list[NewChunk]:
    """Return the chunks that *write* adds after *end*; those that are already stored are missing.

    Raise `Conflict` if parts before it are missing, `InvalidInput` if the stream would be too large.
    """
    stored = end.parts_of(epoch)
    first = stored if write.first is None else write.first
    if first > stored:
        raise errors.Conflict(f"part {first} does not follow: this attempt has written {stored} parts")
    chunks = []
    number, size = end.number, end.size
    for part, text in enumerate(write.texts[stored - first :], stored):
        number, size = number + 1, size + len(text.encode())
        chunks.append(NewChunk(number, part, size, text))
    if size > limits.OUTPUT_BYTES_MAX and chunks:
        raise too_large()
    return chunks


def too_large() -> errors.InvalidInput:
    """Return the error for text that would make a stream too large."""
    return errors.InvalidInput(
        "text", f"makes the output of this job exceed {limits.OUTPUT_BYTES_MAX} bytes, the limit"
    )
