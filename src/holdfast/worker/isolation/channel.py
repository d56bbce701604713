"""Messages over a socket between the worker, the fork server and the isolated processes.

A frame is a length and that many bytes. A message is one frame of JSON; its binary attachments follow as separate
frames. Nothing is pickled: a message is only data, even if a handler has damaged its process.
"""

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


class InvalidMessage(Exception):  # noqa: N818
    """The received bytes are not a message: the sender's memory is damaged, or another writer uses its socket."""


class Channel:
    """One end of a socket pair. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Send a message and its attachments; raise `OSError` if the other side has closed the socket."""
        text = _encode({**message, "blobs": len(blobs)} if blobs else message)
        # Log messages of a handler may contain lone surrogates.
        frame = text.encode("utf-8", "surrogatepass")
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            for blob in blobs:
                self._socket.sendall(_LENGTH.pack(len(blob)))
                self._socket.sendall(blob)

    def send_with_descriptors(self, message: Message, *descriptors: int) -> None:
        """Send a message and open file descriptors."""
        frame = _encode(message).encode()
        with self._lock:
            socket.send_fds(self._socket, [_LENGTH.pack(len(frame)) + frame], list(descriptors))

    def receive(self) -> tuple[Message, list[bytes]] | None:
        """Return the next message; None after the other side has closed the socket.

        Raise `ConnectionResetError` if the other side closed it with messages unread.
        """
        frame = self._read_frame()
        if frame is None:
            return None
        try:
            message = _decode(frame.decode("utf-8", "surrogatepass"))
            count = message.pop("blobs", 0)
        except (ValueError, AttributeError) as error:
            raise InvalidMessage(f"{len(frame)} bytes are not a valid message") from error
        blobs = [self._read_frame() for _ in range(count)]
        return None if None in blobs else (message, [blob for blob in blobs if blob is not None])

    def _read_frame(self) -> bytes | None:
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        frame = self._reader.read(length)
        return frame if len(frame) == length else None

    def shut_down(self) -> None:
        """Shut down the socket: a blocked `receive` returns None after the messages that were sent before."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._reader.close()
        self._socket.close()

    def detach(self) -> None:
        """Close the inherited socket in a forked process, even if a thread of the parent used it during the fork."""
        os.close(self._socket.detach())
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        return self._socket.fileno()


def unpack_message(buffer: bytearray) -> Message | None:
    """Remove and return the first message in *buffer*; None if it is incomplete."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    message: Message = _decode(buffer[_LENGTH.size : end].decode())
    del buffer[:end]
    return message
