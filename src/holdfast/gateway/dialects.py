"""The dialects of model servers: how a stream is divided into frames, and how errors and keep-alives look.

A frame is the smallest part of a stream that a client can use: a line of JSON, or one server-sent event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from holdfast.domain import strict_json

FrameKind: TypeAlias = Literal["content", "end", "error"]
"""What a frame is: a part of the answer, the terminator of a complete one, or an error that ends it."""

NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"
_EVENT: Final = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)", re.DOTALL)
_LINE: Final = re.compile(rb"[^\n]*\n")
_DONE: Final = re.compile(rb'"done"\s*:\s*true')
_DATA: Final = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)
_EVENT_NAME: Final = re.compile(rb"^event:[ ]?(.*?)\r?$", re.MULTILINE)


class Dialect:
    """How one family of paths speaks. The methods are pure."""

    media_type: str = NDJSON
    """The media type of a stream."""
    pattern: re.Pattern[bytes] = _LINE
    """Matches one frame."""
    streams_by_default = False
    """Whether a request without `stream` is answered with a stream."""

    def frame_kind(self, frame: bytes) -> FrameKind:
        """Return what a frame of a stream is."""
        raise NotImplementedError

    def error_body(self, status: int, code: str, message: str) -> bytes:
        """Return the body of a refusal."""
        raise NotImplementedError

    def error_frame(self, code: str, message: str) -> bytes:
        """Return the frame that ends a stream that cannot go on."""
        raise NotImplementedError

    def keep_alive(self, path: str, model: str) -> bytes:
        """Return a frame that clients ignore."""
        raise NotImplementedError

    def usage(self, content: bytes, *, streamed: bool) -> dict[str, int]:
        """Return the numbers of tokens that a complete answer reports: `input_tokens` and `output_tokens`."""
        raise NotImplementedError


class OllamaDialect(Dialect):
    """Lines of JSON; the last one has `done: true`."""

    streams_by_default = True

    def frame_kind(self, frame: bytes) -> FrameKind:
        """Return what a line is."""
        if _DONE.search(frame) or b'"error"' in frame:
            document = _decoded(frame)
            if document.get("done") is True:
                return "end"
            if document.get("error"):
                return "error"
        return "content"

    def error_body(self, status: int, code: str, message: str) -> bytes:  # noqa: ARG002
        """Return `{"error": …}`."""
        return _encoded({"error": message})

    def error_frame(self, code: str, message: str) -> bytes:  # noqa: ARG002
        """Return a line with an error."""
        return _encoded({"error": message}) + b"\n"

    def keep_alive(self, path: str, model: str) -> bytes:
        """Return an answer without content: clients parse every line."""
        text: dict[str, Any] = {"response": ""}
        if path == "/api/chat":
            text = {"message": {"role": "assistant", "content": ""}}
        return _encoded({"model": model, "created_at": _now(), **text, "done": False}) + b"\n"

    def usage(self, content: bytes, *, streamed: bool) -> dict[str, int]:
        """Return the counts of the last line."""
        last = content.rstrip(b"\n").rpartition(b"\n")[2] if streamed else content
        document = _decoded(last)
        return _counts(document.get("prompt_eval_count"), document.get("eval_count"))


class OpenAIDialect(Dialect):
    """Server-sent events; the last one is `[DONE]`."""

    media_type = SSE
    pattern = _EVENT

    def frame_kind(self, frame: bytes) -> FrameKind:
        """Return what an event is."""
        if b"[DONE]" in frame and _data_of(frame) == b"[DONE]":
            return "end"
        if b'"error"' in frame and _decoded(_data_of(frame)).get("error"):
            return "error"
        return "content"

    def error_body(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {"message": …}}`."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        if status == 429:
            kind = "rate_limit_error"
        return _encoded({"error": {"message": message, "type": kind, "param": None, "code": code}})

    def error_frame(self, code: str, message: str) -> bytes:
        """Return an event with an error."""
        return b"data: %s\n\n" % self.error_body(500, code, message)

    def keep_alive(self, path: str, model: str) -> bytes:  # noqa: ARG002
        """Return a comment."""
        return b": keep-alive\n\n"

    def usage(self, content: bytes, *, streamed: bool) -> dict[str, int]:
        """Return the counts of `usage`, which a stream has if the caller asks for it."""
        found: Any = _decoded(content).get("usage") if not streamed else None
        if streamed and b'"usage"' in content:
            events = [_decoded(data).get("usage") for data in _DATA.findall(content) if b'"usage"' in data]
            found = next((one for one in reversed(events) if one), None)
        found = found if isinstance(found, dict) else {}
        return _counts(found.get("prompt_tokens"), found.get("completion_tokens"))


class AnthropicDialect(Dialect):
    """Named server-sent events; the last one is `message_stop`."""

    media_type = SSE
    pattern = _EVENT

    def frame_kind(self, frame: bytes) -> FrameKind:
        """Return what an event is."""
        name = _EVENT_NAME.search(frame)
        if name is not None and name[1] == b"message_stop":
            return "end"
        return "error" if name is not None and name[1] == b"error" else "content"

    def error_body(self, status: int, code: str, message: str) -> bytes:  # noqa: ARG002
        """Return `{"type": "error", "error": …}`."""
        kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
        kinds |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
        return _encoded({"type": "error", "error": {"type": kind, "message": message}})

    def error_frame(self, code: str, message: str) -> bytes:
        """Return the event `error`."""
        return b"event: error\ndata: %s\n\n" % self.error_body(500, code, message)

    def keep_alive(self, path: str, model: str) -> bytes:  # noqa: ARG002
        """Return the event `ping`."""
        return b'event: ping\ndata: {"type": "ping"}\n\n'

    def usage(self, content: bytes, *, streamed: bool) -> dict[str, int]:
        """Return the counts of `message_start` and of the last `message_delta`."""
        found: dict[str, Any] = {}
        if not streamed:
            found = _object(_decoded(content).get("usage"))
        else:
            for data in _DATA.findall(content):
                if b'"usage"' in data:
                    document = _decoded(data)
                    found |= _object(_object(document.get("message")).get("usage")) | _object(document.get("usage"))
        return _counts(found.get("input_tokens"), found.get("output_tokens"))


OLLAMA: Final = OllamaDialect()
OPENAI: Final = OpenAIDialect()
ANTHROPIC: Final = AnthropicDialect()

GENERATING: Final[Mapping[str, Dialect]] = {
    "/api/chat": OLLAMA,
    "/api/generate": OLLAMA,
    "/v1/chat/completions": OPENAI,
    "/v1/completions": OPENAI,
    "/v1/messages": ANTHROPIC,
}
"""The paths whose requests are jobs."""
EMBEDDING: Final[Mapping[str, Dialect]] = {"/api/embed": OLLAMA, "/api/embeddings": OLLAMA, "/v1/embeddings": OPENAI}
"""The paths whose requests are jobs unless their model is resident."""


def dialect_of(path: str) -> Dialect:
    """Return the dialect of any path of a model server."""
    known = GENERATING.get(path) or EMBEDDING.get(path)
    if known is not None:
        return known
    return OPENAI if path.startswith("/v1/") else OLLAMA


def unloaded(path: str, model: str) -> bytes:
    """Return what Ollama answers to a request to unload a model."""
    text: dict[str, Any] = {"response": ""}
    if path == "/api/chat":
        text = {"message": {"role": "assistant", "content": ""}}
    return _encoded({"model": model, "created_at": _now(), **text, "done": True, "done_reason": "unload"})


class FrameSplitter:
    """Divides a stream into frames; keeps the beginning of a frame that is not complete."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that *data* completes."""
        if self.rest:
            data = self.rest + data
        frames = self._pattern.findall(data)
        self.rest = data[sum(map(len, frames)) :] if frames else data
        return frames


def split(dialect: Dialect, content: bytes) -> list[bytes]:
    """Return the frames of a whole stream; what follows the last complete frame is a frame too."""
    splitter = FrameSplitter(dialect.pattern)
    frames = splitter.feed(content)
    return [*frames, splitter.rest] if splitter.rest else frames


def _encoded(document: Any) -> bytes:
    return strict_json.compact(document).encode("utf-8", "replace")


def _decoded(text: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one if *text* is none."""
    try:
        return _object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _data_of(event: bytes) -> bytes:
    return b"\n".join(_DATA.findall(event)).strip()


def _counts(input_tokens: Any, output_tokens: Any) -> dict[str, int]:
    given = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return {name: count for name, count in given.items() if isinstance(count, int) and 0 <= count < 1 << 53}


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
