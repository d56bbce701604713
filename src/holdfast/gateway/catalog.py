"""The models of a model server: their names and digests, which of them run elsewhere, and which are loaded."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from holdfast.gateway import model_requests
from holdfast.gateway.http_client import Upstream, UpstreamFailedError

log = logging.getLogger("holdfast.gateway")

# How old the list of models may be before it is read again in the background.
_FRESH_SECONDS: Final = 30.0
# How long the list of loaded models is believed.
_RESIDENT_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 5.0


class Model(NamedTuple):
    """A model of the model server."""

    name: str
    digest: str
    remote: bool = False
    """Whether it runs elsewhere, so that it uses none of the server's memory."""


class Found(NamedTuple):
    """What the model server is, as `gateway check` shows it."""

    type: Literal["ollama", "openai"]
    version: str | None
    models: tuple[Model, ...]
    loaded: tuple[str, ...]


class Catalog:
    """The models of one model server, read again when a name is not known and from time to time."""

    def __init__(self, upstream: Upstream, upstream_type: str = "auto") -> None:
        self.upstream = upstream
        self.type: str = upstream_type
        """`ollama` or `openai`; `auto` until the server has answered."""
        self._models: dict[str, Model] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[bool] | None = None
        self._resident: frozenset[str] = frozenset()
        self._resident_at = float("-inf")

    @property
    def models(self) -> tuple[Model, ...]:
        """The models, as last read."""
        return tuple(dict.fromkeys(self._models.values()))

    @property
    def known(self) -> bool:
        """Whether the list was ever read."""
        return self._read_at > float("-inf")

    def lacks(self, name: str) -> bool:
        """Return whether the server is known not to have a model."""
        return self.known and self._lookup(name) is None and not _is_cloud(name)

    def name_of(self, digest_prefix: str) -> str | None:
        """Return the name of a model with this digest, for people."""
        return next((one.name for one in self._models.values() if one.digest.startswith(digest_prefix)), None)

    async def find(self, name: str) -> Model | None:
        """Return the model with this name, reading the list again if it is not known; None if there is none."""
        found = self._lookup(name)
        if found is None:
            await self.refresh()
            found = self._lookup(name)
        elif time.monotonic() - self._read_at > _FRESH_SECONDS:
            self._begin_reading()
        return found or _cloud_model(name)

    def _lookup(self, name: str) -> Model | None:
        plain = name.strip().lower().removeprefix("registry.ollama.ai/").removeprefix("library/")
        return self._models.get(name) or self._models.get(plain) or self._models.get(f"{plain}:latest")

    async def refresh(self) -> bool:
        """Read the list; return whether the server answered."""
        self._begin_reading()
        assert self._reading is not None  # noqa: S101  # begun above
        return await asyncio.shield(self._reading)

    def _begin_reading(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> bool:
        try:
            if self.type == "auto":
                self.type = await detect_type(self.upstream)
            models = await read_models(self.upstream, self.type)
        except UpstreamFailedError as error:
            log.warning("the models could not be listed: %s", error)
            return False
        self._models = {key: one for one in models for key in (one.name.lower(), one.name)}
        self._read_at = time.monotonic()
        return True

    async def is_resident(self, model: Model) -> bool:
        """Return whether a model is loaded now, by `/api/ps`."""
        if time.monotonic() - self._resident_at > _RESIDENT_SECONDS:
            try:
                self._resident = frozenset(await read_loaded(self.upstream, key="digest"))
            except UpstreamFailedError:
                self._resident = frozenset()
            self._resident_at = time.monotonic()
        return model.digest in self._resident

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def detect_type(upstream: Upstream) -> Literal["ollama", "openai"]:
    """Return what the server speaks: only Ollama has `/api/version`."""
    head, content = await upstream.fetch("GET", "/api/version", seconds=_ANSWER_SECONDS)
    return "ollama" if head.status == 200 and isinstance(_object(content).get("version"), str) else "openai"


async def read_models(upstream: Upstream, upstream_type: str) -> list[Model]:
    """Return the models that the server lists, or raise `UpstreamFailedError`."""
    if upstream_type == "ollama":
        entries = await _entries(upstream, "/api/tags", "models")
        return [_ollama_model(entry) for entry in entries if isinstance(entry.get("name"), str)]
    entries = await _entries(upstream, "/v1/models", "data")
    names = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    return [Model(name, model_requests.name_digest(name)) for name in names]


async def read_loaded(upstream: Upstream, key: Literal["digest", "name"]) -> list[str]:
    """Return the digests or names of the models that an Ollama server has loaded."""
    entries = await _entries(upstream, "/api/ps", "models")
    return [entry[key].removeprefix("sha256:") for entry in entries if isinstance(entry.get(key), str)]


async def inspect(upstream: Upstream, upstream_type: str) -> Found:
    """Return what a model server is, or raise `UpstreamFailedError`."""
    found_type = await detect_type(upstream) if upstream_type == "auto" else upstream_type
    models = await read_models(upstream, found_type)
    if found_type != "ollama":
        return Found("openai", None, tuple(models), ())
    _, content = await upstream.fetch("GET", "/api/version", seconds=_ANSWER_SECONDS)
    version = _object(content).get("version")
    loaded = await read_loaded(upstream, "name")
    return Found("ollama", version if isinstance(version, str) else None, tuple(models), tuple(loaded))


async def _entries(upstream: Upstream, path: str, key: str) -> list[dict[str, Any]]:
    head, content = await upstream.fetch("GET", path, seconds=_ANSWER_SECONDS)
    if head.status != 200:
        raise UpstreamFailedError(f"{path} answers with status {head.status}")
    entries = _object(content).get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, Iterable) else []


def _ollama_model(entry: dict[str, Any]) -> Model:
    name, digest = entry["name"], entry.get("digest")
    if not isinstance(digest, str) or not digest:
        digest = model_requests.name_digest(name)
    return Model(name, digest.removeprefix("sha256:"), bool(entry.get("remote_host")) or _is_cloud(name))


def _is_cloud(name: str) -> bool:
    return name.endswith((":cloud", "-cloud"))


def _cloud_model(name: str) -> Model | None:
    """Return a model that the server need not list, because it runs elsewhere."""
    return Model(name, model_requests.name_digest(name), remote=True) if _is_cloud(name) else None


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
