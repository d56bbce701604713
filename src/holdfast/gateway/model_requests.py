"""Requests to a model server: the few fields that the gateway reads, and the changes that it makes.

The exact bytes are kept. Only `model`, `stream`, `options`, `keep_alive`, `store`, the most tokens asked for, and
whether there is a prompt are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.domain import strict_json
from holdfast.gateway import dialects

RELOADING_OPTIONS: Final = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
"""The options for which Ollama loads a model again."""
# Request headers that the job keeps. Others may contain secrets, or concern the connection.
_KEPT_HEADERS: Final = (
    *("content-type", "accept", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta"),
    *("openai-organization", "openai-project"),
)
_KEPT_HEADER_CHARS_MAX: Final = 1_000
_AFFINITY_CHARS_MAX: Final = 120
_BYTES_PER_TOKEN: Final = 4
_TOKENS_MAX: Final = 10_000_000


class InvalidRequestError(Exception):
    """The body of a request cannot be read."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to generate or to embed, as far as the gateway reads it."""

    path: str
    content: bytes = field(repr=False)
    model: str
    stream: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options for which the model may have to be loaded again."""
    keep_alive: Any = None
    loads_only: bool = False
    """Whether it has no prompt: it loads or unloads the model."""
    store: bool = True
    """Whether its content may be kept after its end: `store` is not false."""
    digest: str = ""
    """The SHA-256 of its exact bytes."""
    tokens: int = 1
    """How many tokens it may use: a guess by its length, and the most that it asks for."""

    @property
    def dialect(self) -> dialects.Dialect:
        """How its path speaks."""
        return dialects.dialect_of(self.path)

    @property
    def unloads(self) -> bool:
        """Whether it only unloads the model."""
        return self.loads_only and _is_zero(self.keep_alive)


def parse(path: str, content: bytes, num_ctx: Mapping[str, int]) -> ModelRequest:
    """Return the request with this body, or raise `InvalidRequestError`.

    Servers accept what is not quite JSON: invalid UTF-8, and text after the value.
    """
    document = _document(content)
    dialect, native = dialects.dialect_of(path), path.startswith("/api/")
    model, stream = document.get("model"), document.get("stream")
    model = model if isinstance(model, str) else ""
    embeds = path in dialects.EMBEDDING
    streams = not embeds and (dialect.streams_by_default if stream is None else bool(stream))
    given = document.get("options") if native else None
    options = {name: given[name] for name in RELOADING_OPTIONS if name in given} if isinstance(given, dict) else {}
    if native and (pinned := pinned_length(model, num_ctx)) is not None:
        options["num_ctx"] = pinned
    text = {"/api/generate": ("prompt", "images", "suffix", "context"), "/api/chat": ("messages",)}.get(path)
    return ModelRequest(
        path,
        content,
        model,
        streams,
        options,
        document.get("keep_alive") if native else None,
        loads_only=text is not None and not any(document.get(name) for name in text),
        store=document.get("store") is not False,
        digest=hashlib.sha256(content).hexdigest(),
        tokens=_tokens(document, content),
    )


def _tokens(document: Mapping[str, Any], content: bytes) -> int:
    given = document.get("options")
    asked = [document.get("max_tokens"), document.get("max_completion_tokens")]
    asked.append(given.get("num_predict") if isinstance(given, dict) else None)
    most = max((one for one in asked if isinstance(one, int) and 0 < one < _TOKENS_MAX), default=0)
    return 1 + len(content) // _BYTES_PER_TOKEN + most


def _document(content: bytes) -> dict[str, Any]:
    try:
        document, _ = json.JSONDecoder().raw_decode(content.decode("utf-8", "surrogateescape").lstrip())
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return document


def pinned_length(model: str, num_ctx: Mapping[str, int]) -> int | None:
    """Return the context length to which *model* is pinned, with or without the tag `latest`."""
    return num_ctx.get(model, num_ctx.get(model.removesuffix(":latest"), num_ctx.get(f"{model}:latest")))


def content_to_send(request: ModelRequest) -> bytes:
    """Return the bytes for the model server: the caller's own, unless `keep_alive` or a pinned option differs."""
    if not request.path.startswith("/api/"):
        return request.content
    document = _document(request.content)
    given = document.get("options")
    pinned = request.options.get("num_ctx")
    repinned = pinned is not None and not (isinstance(given, dict) and given.get("num_ctx") == pinned)
    if "keep_alive" not in document and not repinned:
        return request.content
    document.pop("keep_alive", None)
    if repinned:
        document["options"] = {**(given if isinstance(given, dict) else {}), "num_ctx": pinned}
    # Escaped, so that half of a surrogate pair stays what it was.
    return json.dumps(document).encode("utf-8", "surrogateescape")


def affinity_of(digest: str, options: Mapping[str, Any]) -> str:
    """Return what must be loaded for a request: the digest of its model, and the options that matter."""
    text = " ".join([digest[:16], *(f"{name}={strict_json.compact(options[name])}" for name in sorted(options))])
    if len(text) <= _AFFINITY_CHARS_MAX and text.isprintable():
        return text
    return f"{digest[:16]} {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:32]}"


def name_digest(name: str) -> str:
    """Return a digest in place of that of a model that is not known."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers that are stored and sent on."""
    return {name: headers[name][:_KEPT_HEADER_CHARS_MAX] for name in _KEPT_HEADERS if name in headers}


def load_content(model: str, options: Mapping[str, Any], keep_alive: Any) -> bytes:
    """Return a request to `/api/generate` without a prompt, which loads a model, or unloads it."""
    document: dict[str, Any] = {"model": model, "stream": False}
    if options:
        document["options"] = dict(options)
    if keep_alive is not None:
        document["keep_alive"] = keep_alive
    return json.dumps(document).encode("utf-8", "surrogateescape")


def _is_zero(keep_alive: Any) -> bool:
    """Return whether `keep_alive` unloads the model at once; numbers are seconds, texts are durations."""
    if isinstance(keep_alive, str):
        digits = keep_alive.strip().rstrip("nuµmsh")
        return digits.lstrip("0").lstrip(".").rstrip("0") == "" and digits != ""
    return isinstance(keep_alive, int | float) and not isinstance(keep_alive, bool) and keep_alive == 0
