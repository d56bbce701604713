"""Frames over a socket: what the worker, the template and the isolated processes say to each other.

A frame is a length and as many bytes. A message is one frame of JSON; bytes that belong to it follow as frames of
their own. Nothing is ever pickled: what an isolated process says is data, whatever its handler did to it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]

_LENGTH: Final = struct.Struct(">I")
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class Garbled(Exception):  # noqa: N818  # what was heard, in one word
    """What came is no message: the other side's memory is damaged, or somebody else writes to its socket."""


class Channel:
    """One end of a socket pair. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Send a message and the bytes that belong to it, or raise `OSError` if nobody is there."""
        text = _encode({**message, "blobs": len(blobs)} if blobs else message)
        # A handler may leave halves of surrogate pairs in a text that is only logged.
        frame = text.encode("utf-8", "surrogatepass")
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            for blob in blobs:
                self._socket.sendall(_LENGTH.pack(len(blob)))
                self._socket.sendall(blob)

    def send_with(self, message: Message, *descriptors: int) -> None:
        """Send a message and open files."""
        frame = _encode(message).encode()
        with self._lock:
            socket.send_fds(self._socket, [_LENGTH.pack(len(frame)) + frame], list(descriptors))

    def receive(self) -> tuple[Message, list[bytes]] | None:
        """Return the next message; none once the other side is gone. `ConnectionResetError`: it left mail unread."""
        frame = self._frame()
        if frame is None:
            return None
        try:
            message = _decode(frame.decode("utf-8", "surrogatepass"))
            count = message.pop("blobs", 0)
        except (ValueError, AttributeError) as error:
            raise Garbled(f"{len(frame)} bytes are no message") from error
        blobs = [self._frame() for _ in range(count)]
        return None if None in blobs else (message, [blob for blob in blobs if blob is not None])

    def _frame(self) -> bytes | None:
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        frame = self._reader.read(length)
        return frame if len(frame) == length else None

    def hang_up(self) -> None:
        """Let whoever receives here come to the end; what was sent before is still received."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._reader.close()
        self._socket.close()

    def abandon(self) -> None:
        """In a forked process: let go of the other's socket, whatever its threads were doing with it."""
        os.close(self._socket.detach())
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's own number."""
        return self._socket.fileno()


def unpacked(buffer: bytearray) -> Message | None:
    """Take the first message out of *buffer*, if it is there as a whole."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    message: Message = _decode(buffer[_LENGTH.size : end].decode())
    del buffer[:end]
    return message
