"""Who calls: tokens are read from the store, cached for half a second, and watched while a request waits."""

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from holdfast.domain import access, errors, limits, validation
from holdfast.operations import access as access_operations
from holdfast.service.problems import ProblemError
from holdfast.storage import runners

log = logging.getLogger("holdfast.service")

# How long a token is cached, and how often the tokens of waiting requests are checked, in one query: a revocation
# takes effect within a second.
_FRESH_SECONDS: Final = 0.5
_WATCH_SECONDS: Final = 0.75
_CACHED_MAX: Final = 10_000


class Caller(NamedTuple):
    """The sender of a request."""

    grants: access.Grants
    actor: str
    """How the audit log names it."""
    token: access.Token | None = None


EVERYTHING: Final = Caller(access.Grants(("admin",)), "anonymous")
PUBLIC: Final = Caller(access.Grants(()), "anonymous")


class _Cached(NamedTuple):
    stored: access.StoredToken | None
    read_at: float
    now: datetime
    """The store's time at the read."""


class Access:
    """Authenticates requests."""

    def __init__(self, runner: runners.AsyncRunner, *, required: bool) -> None:
        self._runner = runner
        self._required = required
        self._cache: dict[str, _Cached] = {}
        self._reading: dict[str, asyncio.Future[_Cached]] = {}
        self._touched: dict[str, float] = {}
        self._watched: dict[str, set[Callable[[], None]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def caller(self, request: Request) -> Caller:
        """Return the sender of a request, or raise `NotAuthenticated`."""
        if not self._required:
            _refuse_other_origins(request)
            return EVERYTHING
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise errors.NotAuthenticated("send a token: Authorization: Bearer hf_…")
        parsed = access.parse_token(text.strip())
        cached = None if parsed is None else await self._read(parsed[0])
        if (
            parsed is None
            or cached is None
            or not access.is_genuine(cached.stored, parsed[1])
            or cached.stored is None
        ):
            raise errors.NotAuthenticated("the token is not known")
        token = cached.stored.token
        state = token.state(_now(cached))
        if state != "active":
            raise errors.NotAuthenticated(f"the token is {state}")
        self._touch(token)
        return Caller(token.grants, f"token:{token.id}", token)

    async def _read(self, token_id: str) -> _Cached:
        """Return the token, read at most half a second ago; concurrent requests share one read."""
        cached = self._cache.get(token_id)
        if cached is not None and time.monotonic() - cached.read_at < _FRESH_SECONDS:
            return cached
        reading = self._reading.get(token_id)
        if reading is None:
            reading = asyncio.ensure_future(self._read_many([token_id]))
            self._reading[token_id] = reading
            reading.add_done_callback(lambda _: self._reading.pop(token_id, None))
        return await asyncio.shield(reading)

    async def _read_many(self, ids: list[str]) -> _Cached:
        started_at = time.monotonic()
        found, now = await self._runner.read(access_operations.stored_tokens, ids)
        if len(self._cache) > _CACHED_MAX:
            self._cache.clear()
        for token_id in ids:
            last = self._cache[token_id] = _Cached(
                found.get(token_id), started_at, validation.datetime_of(now.wall_ms)
            )
        return last

    def _touch(self, token: access.Token) -> None:
        """Store the time of use in the background, once a minute at most."""
        now = time.monotonic()
        if now - self._touched.get(token.id, -1e9) < limits.TOKEN_USE_MS / 1000:
            return
        self._touched[token.id] = now
        task = asyncio.create_task(self._write_use(token.id))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _write_use(self, token_id: str) -> None:
        try:
            await self._runner.write(access_operations.touch_token, token_id)
        except errors.HoldfastError as error:
            log.warning("the use of token %s could not be stored: %s", token_id, error)

    # --- revocation ------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self, caller: Caller, end: Callable[[], None]) -> Iterator[None]:
        """Call *end* during the block, within a second after the caller's token was revoked or has expired."""
        if caller.token is None:
            yield
            return
        token_id = caller.token.id
        ends = self._watched.setdefault(token_id, set())
        ends.add(end)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            ends.discard(end)
            if not ends and self._watched.get(token_id) is ends:
                del self._watched[token_id]

    async def _watch(self) -> None:
        while self._watched:
            await asyncio.sleep(_WATCH_SECONDS)
            ids = list(self._watched)
            try:
                if ids:
                    await self._read_many(ids)
            except errors.HoldfastError as error:
                log.warning("the tokens of waiting requests could not be checked: %s", error)
                continue
            for token_id in ids:
                cached = self._cache.get(token_id)
                if cached is None or cached.stored is None or cached.stored.token.state(_now(cached)) != "active":
                    for end in list(self._watched.get(token_id, ())):
                        end()

    async def close(self) -> None:
        """Stop watching, and wait for writes in the background."""
        if self._watching is not None:
            self._watching.cancel()
        for task in [*self._background, *([self._watching] if self._watching else [])]:
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _now(cached: _Cached) -> datetime:
    """Return the store's time, carried on since the token was read."""
    return cached.now + timedelta(seconds=time.monotonic() - cached.read_at)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_other_origins(request: Request) -> None:
    """Raise if a web page of another host sent the request, or if a host name that is not ours leads here.

    Without tokens only this check keeps web pages in a browser on this machine from using the service.
    """
    host = request.headers.get("host", "")
    if not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise ProblemError(403, "wrong_origin", "without tokens the header Host must name this machine", field="Host")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise ProblemError(
            403, "wrong_origin", "without tokens, web pages of other hosts are refused", field="Origin"
        )
