"""The chunks that a write adds to a stream."""

from __future__ import annotations

import pytest

from holdfast.domain import limits
from holdfast.domain.errors import Conflict, InvalidInput
from holdfast.domain.output import OutputWrite, StreamEnd, new_chunks

OLDER = StreamEnd(number=7, epoch=2, part=3, size=100)


def test_a_new_attempt_continues_numbers_and_size_and_starts_its_parts() -> None:
    chunks = new_chunks(OLDER, 3, OutputWrite(0, ["ab", "é"]))

    assert [tuple(chunk) for chunk in chunks] == [(8, 0, 102, "ab"), (9, 1, 104, "é")]


@pytest.mark.parametrize(
    ("first", "texts", "added"),
    [
        (4, ["e"], ["e"]),
        (None, ["e"], ["e"]),
        (0, ["a", "b", "c", "d", "e"], ["e"]),
        (3, ["d", "e", "f"], ["e", "f"]),
        (0, ["a", "b"], []),
        (3, ["d"], []),
    ],
)
def test_parts_that_are_stored_are_skipped(first: int | None, texts: list[str], added: list[str]) -> None:
    assert [chunk.text for chunk in new_chunks(OLDER, 2, OutputWrite(first, texts))] == added


@pytest.mark.parametrize(("end", "epoch", "first"), [(OLDER, 2, 5), (OLDER, 3, 1), (StreamEnd(), 1, 1)])
def test_a_gap_is_a_conflict(end: StreamEnd, epoch: int, first: int) -> None:
    with pytest.raises(Conflict):
        new_chunks(end, epoch, OutputWrite(first, ["x"]))


def test_a_full_stream_takes_no_more_and_a_repeated_write_is_no_error() -> None:
    full = StreamEnd(number=1, epoch=1, part=0, size=limits.OUTPUT_BYTES_MAX)

    with pytest.raises(InvalidInput):
        new_chunks(full, 1, OutputWrite(1, ["x"]))
    assert new_chunks(full, 1, OutputWrite(0, ["the stored one"])) == []
