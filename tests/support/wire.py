"""A proxy between clients and a PostgreSQL server that tests can cut at any message, before or after its reply."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

Deed: TypeAlias = Callable[[], object]

_START_UP = 196608  # protocol 3.0; what comes before it asks for encryption, and has no type either
_CHUNK = 1 << 16
# The messages that request a reply from the server: a simple query, and the end of an extended one.
_REQUESTS = (b"Q", b"S")


@dataclass(slots=True)
class Fault:
    """A fault at one message, and whether it has occurred."""

    contains: bytes
    """A whole word or several, in any case. Empty for any message that asks for an answer."""
    countdown: int
    answered: bool
    """Whether the server gets the message and answers it before the connection is cut."""
    action: Deed | None
    """Done before the message goes on, instead of a cut."""
    struck: threading.Event = field(default_factory=threading.Event)

    def meets(self, kind: bytes, body: bytes) -> bool:
        if self.contains:
            wanted = re.search(rb"\b" + re.escape(self.contains) + rb"\b", body, re.IGNORECASE) is not None
        else:
            wanted = kind in _REQUESTS
        if not wanted or self.struck.is_set():
            return False
        self.countdown -= 1
        if self.countdown == 0:
            self.struck.set()
        return self.countdown == 0


class Wire:
    """Forwards all messages between the clients of its `url` and the server at *url*, until a fault is requested."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._fault: Fault | None = None
        self._refuses = False
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, name="wire", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the server through this proxy. Unencrypted, so that messages can be parsed."""
        port = self._listener.getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return f"postgresql://{user}127.0.0.1:{port}{self._parts.path}?sslmode=disable&gssencmode=disable"

    @property
    def connections(self) -> int:
        """The number of connections through this proxy."""
        with self._lock:
            return len(self._links)

    def cut(self, *, contains: bytes = b"", nth: int = 1, answered: bool = False) -> Fault:
        """Cut the connection at the *nth* message from now that contains *contains*.

        The server does not receive it; if *answered*, it does, and the client does not receive the reply.
        """
        return self._arm(Fault(contains, nth, answered, None))

    def at(self, action: Deed, *, contains: bytes = b"", nth: int = 1) -> Fault:
        """Call *action* before the *nth* message from now that contains *contains* is forwarded to the server."""
        return self._arm(Fault(contains, nth, answered=False, action=action))

    def calm(self) -> None:
        """Cancel a fault that has not occurred, and accept new connections again."""
        self._fault = None
        self._refuses = False

    def drop_all(self, *, refuse: bool = False) -> int:
        """Cut every connection and return how many. With *refuse*, new ones are cut at once until `calm`."""
        self._refuses = refuse
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        for link in links:
            link.join()
        return len(links)

    def close(self) -> None:
        """Cut all connections and accept no more."""
        # Closing a listening socket alone leaves the thread waiting in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        self.drop_all()

    def _arm(self, fault: Fault) -> Fault:
        self._fault = fault
        return fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if self._refuses:
                raise ConnectionRefusedError
            server = socket.create_connection((self._parts.hostname or "127.0.0.1", self._parts.port or 5432))
        except OSError:
            client.close()
            return
        link = _Link(client, server, self._meet, self._forget)
        with self._lock:
            self._links.add(link)
        link.start()

    def _meet(self, kind: bytes, body: bytes) -> Fault | None:
        with self._lock:
            fault = self._fault
            return fault if fault is not None and fault.meets(kind, body) else None

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection: a thread for each direction."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        meet: Callable[[bytes, bytes], Fault | None],
        forget: Callable[[_Link], None],
    ) -> None:
        self._client = client
        self._server = server
        self._meet = meet
        self._forget = forget
        self._mute = False
        self._ends = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._guarded, args=(target,), name="wire", daemon=True)
            for target in (self._pass_requests, self._pass_answers)
        ]
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():  # an action may cut its own connection
                thread.join(10)

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _guarded(self, target: Callable[[], None]) -> None:
        with suppress(OSError):
            target()
        self.cut()  # whichever side ends first, the other hears of it
        with self._lock:
            self._ends += 1
            last = self._ends == len(self._threads)
        if last:
            self._client.close()
            self._server.close()
            self._forget(self)

    def _pass_requests(self) -> None:
        for kind, whole in _messages(self._client):
            fault = self._meet(kind, whole[5:])  # without its type and length, which may look like letters
            if fault is not None and fault.action is not None:
                fault.action()
            elif fault is not None and fault.answered:
                self._mute = True
            elif fault is not None:
                return
            self._server.sendall(whole)

    def _pass_answers(self) -> None:
        while chunk := self._server.recv(_CHUNK):
            if self._mute:
                return  # answered, but the reply is dropped
            self._client.sendall(chunk)


def _messages(source: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Yield the messages of a client as type and whole bytes; those of the startup have no type."""
    held = b""
    started = False
    while chunk := source.recv(_CHUNK):
        held += chunk
        while (size := _size(held, started)) and len(held) >= size:
            whole, held = held[:size], held[size:]
            yield (whole[:1] if started else b""), whole
            started = started or struct.unpack_from("!i", whole, 4)[0] == _START_UP


def _size(held: bytes, started: bool) -> int:
    """Return the length of the message at the beginning of *held*; 0 if it is not known yet."""
    head = 1 if started else 0
    return head + int(struct.unpack_from("!i", held, head)[0]) if len(held) >= head + 8 - 4 * started else 0
