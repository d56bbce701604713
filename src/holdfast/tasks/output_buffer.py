"""The text that a handler has emitted, until the worker has written it."""

from collections.abc import Iterable
from threading import Lock
from typing import Final

from holdfast.domain import claims, errors, limits, output

# How much text one commit contains, about: the attempts after it write theirs with the next one.
_BYTES_AT_ONCE: Final = 8 << 20


class OutputBuffer:
    """The text that one attempt has emitted and that is not yet written, joined into chunks. Thread-safe."""

    __slots__ = ("_chunks", "_lock", "_open", "_open_size", "_size", "refused", "written")

    def __init__(self) -> None:
        self.written = 0
        """How many parts of the attempt are stored."""
        self.refused: errors.InvalidInput | None = None
        """Why the store refused text, which is lost."""
        self._lock = Lock()
        self._chunks: list[str] = []
        self._open: list[str] = []
        self._open_size = self._size = 0

    def __bool__(self) -> bool:
        return bool(self._chunks or self._open)

    def add(self, text: str) -> bool:
        """Append a valid *text*; return whether the buffer was empty.

        Raise `InvalidInput` if the attempt has emitted too much, or the store has refused its text.
        """
        size = len(text.encode())
        with self._lock:
            if self.refused is not None:
                raise self.refused
            if self._size + size > limits.OUTPUT_BYTES_MAX:
                raise output.too_large()
            was_empty = not self
            if self._open_size + size > limits.OUTPUT_CHUNK_BYTES_MAX:
                self._close_chunk()
            self._open.append(text)
            self._open_size += size
            self._size += size
            return was_empty

    def pending(self, limit: int | None = None) -> output.OutputWrite | None:
        """Return the next chunks to write, at most *limit*, if any; they stay in the buffer until `answered`."""
        with self._lock:
            if limit is None or len(self._chunks) < limit:
                self._close_chunk()
            return output.OutputWrite(self.written, self._chunks[:limit]) if self._chunks else None

    def answered(self, write: output.OutputWrite, answer: output.StreamEnd | errors.HoldfastError) -> None:
        """Remove the text of *write* if the store has it; drop all text if the store refused it."""
        with self._lock:
            if isinstance(answer, output.StreamEnd):
                del self._chunks[: max(write.parts - self.written, 0)]
                self.written = max(write.parts, self.written)
                return
            if isinstance(answer, errors.InvalidInput):
                self.refused = answer
            self._chunks, self._open, self._open_size = [], [], 0

    def _close_chunk(self) -> None:
        if self._open:
            self._chunks.append("".join(self._open))
            self._open, self._open_size = [], 0


def take_emitted(
    emitted: Iterable[tuple[claims.Claim, OutputBuffer]],
) -> list[tuple[claims.Claim, OutputBuffer, output.OutputWrite]]:
    """Return text to write in one commit, with the claim and the buffer that it is from."""
    taken = []
    chunks = 0
    for claim, buffer in emitted:
        write = buffer.pending(limits.OUTPUT_CHUNKS_WRITTEN)
        if write is not None:
            taken.append((claim, buffer, write))
            chunks += len(write.texts)
            if len(taken) >= limits.SETTLE_MANY_MAX or chunks * limits.OUTPUT_CHUNK_BYTES_MAX >= _BYTES_AT_ONCE:
                break
    return taken
