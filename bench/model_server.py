"""A model server for the bench of the gateway: `python -m bench.model_server PORT`.

It does as little as possible for each chunk: one timer writes the next chunk of every stream, with the time of its
writing. It loads one model at a time, and counts the loads. `GET /count` returns the counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from typing import Any

MODELS = ("llama:8b", "qwen:7b", "mistral:7b")


class Streams:
    """Writes the chunks of all open streams at the same moments."""

    def __init__(self, chunks_per_second: float) -> None:
        self._pause = 1 / chunks_per_second
        self._open: dict[asyncio.Transport, int] = {}

    def add(self, transport: asyncio.Transport, chunks: int) -> None:
        """Begin a stream."""
        transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._open[transport] = chunks

    async def run(self) -> None:
        """Write until cancelled."""
        due = time.monotonic()
        while True:
            due += self._pause
            await asyncio.sleep(max(due - time.monotonic(), 0))
            for transport, left in list(self._open.items()):
                if transport.is_closing():
                    del self._open[transport]
                elif left:
                    self._open[transport] = left - 1
                    _write(transport, b'{"at":%d,"done":false}\n' % time.monotonic_ns())
                else:
                    del self._open[transport]
                    _write(transport, b'{"done":true}\n')
                    transport.write(b"0\r\n\r\n")


def _write(transport: asyncio.Transport, data: bytes) -> None:
    transport.write(b"%x\r\n%s\r\n" % (len(data), data))


class BenchServer:
    """The state of the server."""

    def __init__(self, load_seconds: float, run_seconds: float) -> None:
        self.load_seconds = load_seconds
        self.run_seconds = run_seconds
        self.loaded = ""
        self.loads = 0
        self.lock = asyncio.Lock()
        self.streams = Streams(200.0)

    async def answer(self, path: str, body: bytes, transport: asyncio.Transport) -> None:
        """Answer one request."""
        if path == "/api/version":
            _json(transport, {"version": "0.0.0"})
        elif path == "/api/tags":
            _json(transport, {"models": [{"name": name, "digest": _digest(name)} for name in MODELS]})
        elif path == "/count":
            _json(transport, {"loads": self.loads})
        else:
            request = json.loads(body)
            prompt = request.get("messages")
            if request.get("stream") and prompt:
                self.streams.add(transport, request["chunks"])
                return
            async with self.lock:
                wanted = f"{request['model']} {request.get('options', {}).get('num_ctx')}"
                if self.loaded != wanted:
                    self.loads, self.loaded = self.loads + 1, wanted
                    await asyncio.sleep(self.load_seconds)
                if prompt and self.run_seconds:
                    await asyncio.sleep(self.run_seconds)
            _json(transport, {"message": {"role": "assistant", "content": "done"}, "done": True})


class Connection(asyncio.Protocol):
    """One connection, which may send several requests."""

    def __init__(self, server: BenchServer) -> None:
        self._server = server
        self._buffer = b""
        self._transport: Any = None
        self._answering: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request that is complete."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode().lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
        if len(body) >= length:
            self._buffer = b""
            path = head.split(b" ")[1].decode()
            self._answering = asyncio.ensure_future(self._server.answer(path, body, self._transport))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _json(transport: asyncio.Transport, document: Any) -> None:
    content = json.dumps(document).encode()
    transport.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
    )


async def main(port: int, load_seconds: float, run_seconds: float) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    state = BenchServer(load_seconds, run_seconds)
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=1_024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await state.streams.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
