"""A scripted model server with real HTTP: models, load times, streams, failures; in a thread, or as a process.

It behaves as Ollama does where the gateway depends on it: one model with one set of options is loaded at a time,
`/api/ps` lists it, an empty prompt loads it, `keep_alive: 0` unloads it. `POST /script` changes how it behaves, and
`GET /log` returns what happened, so that a test can use it in another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

from tests.support.service import TIMEOUT

MODELS = ("llama:8b", "qwen:7b", "mistral:latest", "embed:latest", "big:cloud")
RELOADING = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
CREATED = "2026-11-17T12:00:00.000000Z"


@dataclass
class Script:
    """How the server behaves."""

    load_seconds: float = 0.0
    first_token_seconds: float = 0.0
    """Before the headers of a generated answer."""
    tokens: int = 5
    token_seconds: float = 0.0
    """Between the tokens of an answer."""
    statuses: list[int] = field(default_factory=list)
    """The statuses with which the next requests to generate are refused; 0 answers one."""
    retry_after: str | None = None
    should_retry: str | None = None
    cut_after: list[int] = field(default_factory=list)
    """After how many bytes of the body the next answers are cut off; -1 cuts none."""
    hold: bool = False
    """Whether generated answers wait until `hold` is false."""
    hold_after: int = 0
    """How many frames of a stream are sent before it waits."""
    error_frame: bool = False
    """Whether streams end with an error of the server's own."""
    frame_bytes: int = 0
    """Into how many bytes each write of a stream is divided; 0 writes whole frames."""
    missing: list[str] = field(default_factory=list)
    """Models that the server does not have."""
    stop_within: bool = False
    """Whether a whole answer stops in the middle of its body."""
    padding: int = 0
    """How many characters are added to the text of a whole answer."""


class ModelServer:
    """The state of a server: its script, its log and what it has loaded."""

    def __init__(self, port: int = 0, version: str | None = "0.12.9") -> None:
        self.version = version
        """The version of Ollama; None for another server."""
        self.script = Script()
        self.log: list[dict[str, Any]] = []
        self.loaded: tuple[str, str] | None = None
        self.port = port
        self.query = ""
        """The query of the newest request."""
        self._loading = asyncio.Lock()
        self._running = 0

    # --- questions of tests ----------------------------------------------------------------------------------------

    def events(self, what: str) -> list[dict[str, Any]]:
        """Return what happened, of one type: `request`, `load`, `unload`, `within`, `end`, `cut`, `gone`."""
        return [one for one in self.log if one["event"] == what]

    @property
    def generations(self) -> list[dict[str, Any]]:
        """The requests that began to generate."""
        return [one for one in self.events("request") if one["generates"]]

    @property
    def _models(self) -> list[str]:
        return [name for name in MODELS if name not in self.script.missing]

    def note(self, event: str, **values: Any) -> None:
        """Add to the log."""
        self.log.append({"event": event, "at": time.monotonic(), **values})

    # --- HTTP ------------------------------------------------------------------------------------------------------

    async def serve(self, ready: asyncio.Event | None = None) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        if ready is not None:
            ready.set()
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await self._body(reader, headers)
            gone = asyncio.ensure_future(reader.read(1))
            answering = asyncio.ensure_future(self._answer(method, path, headers, body, writer))
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.note("gone", path=path)
                answering.cancel()
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await answering
        writer.close()

    @staticmethod
    async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        path, _, self.query = path.partition("?")
        match method, path:
            case (("GET" | "HEAD"), "/"):
                await _whole(writer, 200, b"Ollama is running", "text/plain; charset=utf-8", method)
            case "GET", "/api/version" if self.version is not None:
                await _json(writer, {"version": self.version})
            case "GET", "/api/tags":
                await _json(writer, {"models": [_tag(name) for name in self._models]})
            case "GET", "/api/ps":
                loaded = [] if self.loaded is None else [_tag(self.loaded[0])]
                await _json(writer, {"models": loaded})
            case "GET", "/v1/models":
                await _json(
                    writer, {"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]}
                )
            case "POST", "/api/show":
                await _json(writer, {"modelfile": "FROM llama", "details": {"family": "llama"}})
            case "POST", "/api/pull":
                await self._pull(writer)
            case "GET", "/log":
                await _json(writer, self.log)
            case "POST", "/script":
                self.change(json.loads(body))
                await _json(writer, {})
            case "POST", _:
                await self._generate(path, headers, body, writer)
            case _:
                await _whole(writer, 404, b"404 page not found", "text/plain")

    def change(self, values: dict[str, Any]) -> None:
        """Change the script."""
        known = {one.name for one in fields(Script)}
        assert values.keys() <= known, values
        for name, value in values.items():
            setattr(self.script, name, value)

    async def _pull(self, writer: asyncio.StreamWriter) -> None:
        await _head(writer, 200, [("Content-Type", "application/x-ndjson"), ("Transfer-Encoding", "chunked")])
        for status in ("pulling manifest", "success"):
            await _chunk(writer, json.dumps({"status": status}).encode() + b"\n")
        await _chunk(writer, b"", last=True)

    # --- generating ------------------------------------------------------------------------------------------------

    async def _generate(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        document = json.loads(body.decode("utf-8", "replace"))
        model = document.get("model", "")
        name = next((one for one in self._models if model in {one, one.removesuffix(":latest")}), None)
        empty = not any(document.get(key) for key in ("prompt", "messages", "input"))
        self.note(
            "request",
            path=path,
            model=model,
            generates=not empty,
            running=self._running,
            options=document.get("options", {}),
            keep_alive=document.get("keep_alive"),
            digest=hashlib.sha256(body).hexdigest(),
            size=len(body),
            prompt=_prompt(document),
            headers=headers,
        )
        if not path.startswith(("/api/", "/v1/")) or ("embed" in path and empty):
            await _whole(writer, 404, b"404 page not found", "text/plain")
        elif name is None:
            await _json(writer, _error(path, f"model '{model}' not found"), 404)
        elif empty and document.get("keep_alive") == 0:
            self.note("unload", model=name)
            self.loaded = None
            await _json(
                writer, {"model": model, "created_at": CREATED, "response": "", "done": True, "done_reason": "unload"}
            )
        else:
            await self._load(name, document.get("options") or {})
            if empty:
                loaded = {"model": model, "created_at": CREATED, "response": "", "done": True, "done_reason": "load"}
                await _json(writer, loaded)
            else:
                await self._run(path, model, document, writer)

    async def _load(self, name: str, options: dict[str, Any]) -> None:
        wanted = name, json.dumps({key: options[key] for key in RELOADING if key in options}, sort_keys=True)
        if name.endswith(":cloud"):
            return
        async with self._loading:
            if self.loaded != wanted:
                self.note("load", model=name, options=wanted[1])
                self.loaded = wanted
                await asyncio.sleep(self.script.load_seconds)

    async def _run(self, path: str, model: str, document: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        script = self.script
        status = script.statuses.pop(0) if script.statuses else 0
        if status:
            extra = [("Retry-After", script.retry_after), ("x-should-retry", script.should_retry)]
            await _json(
                writer, _error(path, f"scripted {status}"), status, [(k, v) for k, v in extra if v is not None]
            )
            return
        self._running += 1
        cut = script.cut_after.pop(0) if script.cut_after else -1
        try:
            await asyncio.sleep(script.first_token_seconds)
            if not script.hold_after:
                await self._held()
            streams = document.get("stream", path in {"/api/chat", "/api/generate"}) and "embed" not in path
            if streams:
                await self._stream(path, model, document, writer, cut)
            else:
                content = _whole_answer(path, model, document, script)
                if script.stop_within:
                    await _head(writer, 200, [("Content-Length", str(len(content)))])
                    writer.write(content[:10])
                    self.note("within", path=path, model=model)
                    await asyncio.Event().wait()
                await _whole(writer, 200, content, "application/json; charset=utf-8", cut=cut)
            self.note("cut" if cut >= 0 else "end", path=path, model=model)
        finally:
            self._running -= 1

    async def _stream(
        self, path: str, model: str, document: dict[str, Any], writer: asyncio.StreamWriter, cut: int
    ) -> None:
        native = path.startswith("/api/")
        media_type = "application/x-ndjson" if native else "text/event-stream"
        await _head(writer, 200, [("Content-Type", media_type), ("Transfer-Encoding", "chunked")])
        sent = 0
        async for frame in self._frames(path, model, document):
            step = self.script.frame_bytes or len(frame)
            for start in range(0, len(frame), step):
                part = frame[start : start + step]
                if 0 <= cut <= sent + len(part):
                    await _chunk(writer, part[: cut - sent])
                    writer.transport.abort()
                    return
                sent += len(part)
                await _chunk(writer, part)
        await _chunk(writer, b"", last=True)

    async def _frames(self, path: str, model: str, document: dict[str, Any]) -> AsyncIterator[bytes]:
        script = self.script
        frames = stream_frames(path, model, document, script)
        for index, frame in enumerate(frames):
            if index and script.token_seconds:
                await asyncio.sleep(script.token_seconds)
            if index >= script.hold_after:
                await self._held()
            yield frame

    async def _held(self) -> None:
        while self.script.hold:  # noqa: ASYNC110  # changed by another thread
            await asyncio.sleep(0.005)


def _prompt(document: dict[str, Any]) -> Any:
    messages = document.get("messages")
    found = messages[-1].get("content") if messages else document.get("prompt", document.get("input"))
    return found if not isinstance(found, str) else found[:200]


def _words(document: dict[str, Any], script: Script) -> list[str]:
    text = str(_prompt(document))
    return [f"{text[:20]}-{index} é" for index in range(script.tokens)]


def stream_frames(path: str, model: str, document: dict[str, Any], script: Script) -> Iterator[bytes]:
    """Yield the frames of a streamed answer."""
    tokens = _words(document, script)
    match path:
        case "/api/chat" | "/api/generate":
            for token in tokens:
                text = (
                    {"message": {"role": "assistant", "content": token}}
                    if path == "/api/chat"
                    else {"response": token}
                )
                yield _line({"model": model, "created_at": CREATED, **text, "done": False})
            if script.error_frame:
                yield _line({"error": "the runner has crashed"})
                return
            text = {"message": {"role": "assistant", "content": ""}} if path == "/api/chat" else {"response": ""}
            counts = {"prompt_eval_count": 7, "eval_count": len(tokens)}
            yield _line(
                {"model": model, "created_at": CREATED, **text, "done": True, "done_reason": "stop", **counts}
            )
        case "/v1/messages":
            start: dict[str, Any] = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": model,
                "content": [],
            }
            start |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
            yield _event("message_start", {"message": start})
            yield _event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
            for token in tokens:
                yield _event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": token}})
            if script.error_frame:
                yield _event("error", {"error": {"type": "overloaded_error", "message": "the runner has crashed"}})
                return
            yield _event("content_block_stop", {"index": 0})
            delta = {"stop_reason": "end_turn", "stop_sequence": None}
            yield _event("message_delta", {"delta": delta, "usage": {"output_tokens": len(tokens)}})
            yield _event("message_stop", {})
        case _:
            chat = path == "/v1/chat/completions"
            kind = "chat.completion.chunk" if chat else "text_completion"
            base = {"id": "cmpl-1", "object": kind, "created": 1, "model": model}
            for token in tokens:
                choice: dict[str, Any] = {"index": 0, "finish_reason": None}
                choice |= {"delta": {"role": "assistant", "content": token}} if chat else {"text": token}
                yield b"data: " + _compact({**base, "choices": [choice]}) + b"\n\n"
            if script.error_frame:
                yield (
                    b"data: "
                    + _compact({"error": {"message": "the runner has crashed", "type": "server_error"}})
                    + b"\n\n"
                )
                return
            last: dict[str, Any] = {"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}
            yield b"data: " + _compact({**base, "choices": [last]}) + b"\n\n"
            yield b"data: [DONE]\n\n"


def _whole_answer(path: str, model: str, document: dict[str, Any], script: Script) -> bytes:
    text = " ".join(_words(document, script)) + "x" * script.padding
    match path:
        case "/api/chat" | "/api/generate":
            content = (
                {"message": {"role": "assistant", "content": text}} if path == "/api/chat" else {"response": text}
            )
            counts = {"prompt_eval_count": 7, "eval_count": script.tokens}
            answer = {"model": model, "created_at": CREATED, **content, "done": True, "done_reason": "stop", **counts}
        case "/v1/messages":
            answer = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": model,
                "stop_reason": "end_turn",
            }
            answer |= {"content": [{"type": "text", "text": text}], "stop_sequence": None}
            answer |= {"usage": {"input_tokens": 7, "output_tokens": script.tokens}}
        case "/api/embed":
            answer = {"model": model, "embeddings": [[0.1, 0.2]]}
        case "/api/embeddings":
            answer = {"embedding": [0.1, 0.2]}
        case "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
            answer = {
                "object": "list",
                "data": data,
                "model": model,
                "usage": {"prompt_tokens": 1, "total_tokens": 1},
            }
        case _:
            chat = path == "/v1/chat/completions"
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            usage = {"prompt_tokens": 7, "completion_tokens": script.tokens, "total_tokens": 7 + script.tokens}
            answer = {
                "id": "cmpl-1",
                "object": kind,
                "created": 1,
                "model": model,
                "choices": [choice],
                "usage": usage,
            }
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")


def _error(path: str, message: str) -> dict[str, Any]:
    if path == "/v1/messages":
        return {"type": "error", "error": {"type": "not_found_error", "message": message}}
    if path.startswith("/v1/"):
        return {"error": {"message": message, "type": "api_error", "param": None, "code": None}}
    return {"error": message}


def _tag(name: str) -> dict[str, Any]:
    remote = {"remote_host": "https://ollama.com"} if name.endswith(":cloud") else {}
    return {"name": name, "model": name, "digest": hashlib.sha256(name.encode()).hexdigest(), "size": 1, **remote}


def _compact(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _line(document: Any) -> bytes:
    return _compact(document) + b"\n"


def _event(name: str, document: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _compact({"type": name, **document}))


async def _head(writer: asyncio.StreamWriter, status: int, headers: list[tuple[str, str]]) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes, *, last: bool = False) -> None:
    if data or last:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


async def _whole(
    writer: asyncio.StreamWriter,
    status: int,
    content: bytes,
    media_type: str,
    method: str = "GET",
    cut: int = -1,
    extra: list[tuple[str, str]] | None = None,
) -> None:
    headers = [("Content-Type", media_type), ("Content-Length", str(len(content))), *(extra or [])]
    await _head(writer, status, headers)
    if method != "HEAD":
        writer.write(content if cut < 0 else content[:cut])
        await writer.drain()
    if cut >= 0:
        await asyncio.sleep(0)
        writer.transport.abort()


async def _json(
    writer: asyncio.StreamWriter, document: Any, status: int = 200, extra: list[tuple[str, str]] | None = None
) -> None:
    await _whole(writer, status, json.dumps(document).encode(), "application/json; charset=utf-8", extra=extra)


@contextmanager
def model_server(port: int = 0, version: str | None = "0.12.9") -> Iterator[ModelServer]:
    """Run a server in a thread for a block."""
    started = threading.Event()
    state: dict[str, Any] = {}

    async def run() -> None:
        server = state["server"] = ModelServer(port, version)
        state["loop"], state["task"] = asyncio.get_running_loop(), asyncio.current_task()
        ready = asyncio.Event()
        serving = asyncio.ensure_future(server.serve(ready))
        await ready.wait()
        started.set()
        with suppress(asyncio.CancelledError):
            await serving
        serving.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="model-server")
    thread.start()
    assert started.wait(TIMEOUT)
    try:
        yield state["server"]
    finally:
        state["loop"].call_soon_threadsafe(state["task"].cancel)
        thread.join(TIMEOUT)


async def _main(port: int) -> None:
    server, ready = ModelServer(port), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(ready))
    await ready.wait()
    print(server.port, flush=True)
    await serving


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
