"""The buffer of the text that an attempt emits."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.domain import limits
from holdfast.domain.errors import InvalidInput
from holdfast.domain.output import OutputWrite, StreamEnd, new_chunks
from holdfast.tasks.output_buffer import OutputBuffer


def test_text_emitted_between_two_writes_is_joined() -> None:
    buffer = OutputBuffer()
    for text in ("a", "b", "c"):
        buffer.add(text)

    assert buffer.pending() == OutputWrite(0, ["abc"])


def test_a_chunk_never_changes_once_it_was_offered_for_writing() -> None:
    buffer = OutputBuffer()
    buffer.add("a")
    offered = buffer.pending()
    buffer.add("b")

    assert offered == OutputWrite(0, ["a"])
    assert buffer.pending() == OutputWrite(0, ["a", "b"])


def test_written_text_is_removed_and_an_older_answer_changes_nothing() -> None:
    buffer = OutputBuffer()
    buffer.add("a")
    buffer.pending()
    buffer.add("b")
    buffer.pending()
    buffer.answered(OutputWrite(0, ["a", "b"]), StreamEnd())
    buffer.answered(OutputWrite(0, ["a"]), StreamEnd())
    buffer.add("c")

    assert buffer.pending() == OutputWrite(2, ["c"])


def test_chunks_stay_within_their_size() -> None:
    buffer = OutputBuffer()
    half = "é" * (limits.OUTPUT_CHUNK_BYTES_MAX // 4 + 1)
    for _ in range(3):
        buffer.add(half)

    assert buffer.pending() == OutputWrite(0, [half, half, half])
    assert buffer.pending(2) == OutputWrite(0, [half, half])


def test_an_attempt_that_emits_too_much_is_told_and_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTPUT_BYTES_MAX", 3)
    buffer = OutputBuffer()
    buffer.add("abc")

    with pytest.raises(InvalidInput):
        buffer.add("d")
    assert buffer.pending() == OutputWrite(0, ["abc"])


def test_text_that_the_store_refused_is_dropped_and_the_next_is_refused() -> None:
    buffer = OutputBuffer()
    buffer.add("a")
    buffer.answered(OutputWrite(0, ["a"]), InvalidInput("text", "too large"))

    assert buffer.pending() is None
    with pytest.raises(InvalidInput, match="too large"):
        buffer.add("b")


@given(st.lists(st.one_of(st.text(max_size=5), st.none(), st.integers(0, 3))))
def test_whatever_answers_get_lost_or_overtake_the_stream_is_the_emitted_text(
    steps: list[str | int | None],
) -> None:
    """None sends a write whose answer is lost; a number sends an earlier write again and delivers its answer."""
    buffer, emitted = OutputBuffer(), ""
    stored: list[str] = []
    sent: list[OutputWrite] = []
    for step in [*steps, None]:
        if isinstance(step, str):
            buffer.add(step)
            emitted += step
            continue
        write = buffer.pending() if step is None else sent[-step - 1] if step < len(sent) else None
        if write is None:
            continue
        sent.append(OutputWrite(write.first, list(write.texts)))
        end = StreamEnd(len(stored), 1, len(stored) - 1, 0) if stored else StreamEnd()
        stored += [chunk.text for chunk in new_chunks(end, 1, write)]
        if step is not None:
            buffer.answered(write, StreamEnd())

    assert "".join(stored) == emitted
