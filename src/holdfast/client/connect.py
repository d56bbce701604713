"""`connect` and `connect_async`: return a queue for a URL. The store is opened on first use."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.middleware import Middleware, check_middleware
from holdfast.client.queue_state import QueueState
from holdfast.client.sync_api.queue import Queue
from holdfast.domain import errors, limits, validation
from holdfast.domain.clock import Clock
from holdfast.domain.codec import Codec, check_codec
from holdfast.storage.sqlite import connection
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.store import Store

Durability: TypeAlias = Literal["full", "relaxed"]
"""What a power failure may lose on SQLite: nothing, or the last commits."""

_SERVER_SCHEMES: Final = ("postgresql", "postgres")
_HTTP_SCHEMES: Final = ("http", "https")
SCHEMA_DEFAULT: Final = "holdfast"
URL_VARIABLE: Final = "HOLDFAST_URL"
"""The environment variable that names the queue of `connect()` and of the command line."""
TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105  # its name
"""The environment variable that has the token for a queue behind HTTP."""
# A URL with a slash missing, or a libpq connection string.
_MISTYPED_SERVER: Final = re.compile(
    r"postgres(ql)?(\+\w+)?(:|//)|\s*(host|hostaddr|port|dbname|user|password|service|sslmode)\s*=", re.IGNORECASE
)
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,500}")


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    schema: str = "holdfast",
    listen_url: str | None = None,
    token: str | None = None,
    clock: Clock | None = None,
    middleware: Sequence[Middleware] = (),
    codec: Codec | None = None,
) -> Queue:
    """Return the queue at *url*: a SQLite file, `:memory:` for a temporary queue, `postgresql://…` or `http://…`.

    Without *url* the environment variable `HOLDFAST_URL` names the queue.

    With `migrate=False` the first use raises `SchemaMismatch` unless the schema exists and is current. *clock*
    replaces the store's clock, for tests. *middleware* runs around each enqueue, claim, run and settle, also in
    workers; the first is the outermost. *codec* encodes payloads and results in the store, such as to encrypt them.

    SQLite: *url* may also be `sqlite:///path` or a `pathlib.Path`. Relative paths and symbolic links are resolved
    here, so a later `os.chdir` has no effect. With `durability="relaxed"` a power failure may lose the last commits;
    a killed process never loses any. *network_files* allows a file on a network file system, whose locks may be
    unreliable.

    PostgreSQL: all tables are in *schema*, by default `holdfast`. *listen_url* is the direct URL of the server if
    *url* is that of a connection pooler that does not support LISTEN.

    HTTP: *url* is that of a server that `holdfast serve` has started, `http://…` or `https://…`, and *token* one of
    its tokens; by default the environment variable `HOLDFAST_TOKEN` has it.
    """
    options = _Options(_text(url), durability, migrate, network_files, schema, listen_url, token, clock)
    return Queue(_state(options, middleware, codec))


def connect_async(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    schema: str = "holdfast",
    listen_url: str | None = None,
    token: str | None = None,
    clock: Clock | None = None,
    middleware: Sequence[Middleware] = (),
    codec: Codec | None = None,
) -> AsyncQueue:
    """Return the queue at *url*, with async methods; all options are those of `connect`."""
    options = _Options(_text(url), durability, migrate, network_files, schema, listen_url, token, clock)
    return AsyncQueue(_state(options, middleware, codec))


def queue_on(store: Store) -> Queue:
    """Return a queue on *store*."""
    return Queue(QueueState(store))


def async_queue_on(store: Store) -> AsyncQueue:
    """Return an async queue on *store*."""
    return AsyncQueue(QueueState(store))


def store_at(address: dict[str, Any]) -> Store:
    """Return a store for the *address* of a store in another process."""
    if "path" in address:
        return SqliteStore(**address)
    if "http_url" in address:
        return _http_store(**address)
    # Imported late, as below.
    from holdfast.storage.postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore(**address)


class _Options(NamedTuple):
    """The options of `connect`, not yet validated."""

    url: str
    durability: Durability
    migrate: bool
    network_files: bool
    schema: str
    listen_url: str | None
    token: str | None
    clock: Clock | None


def _state(options: _Options, middleware: Sequence[Middleware], codec: Codec | None) -> QueueState:
    store = _store(options)
    return QueueState(store, middleware=check_middleware(middleware), codec=check_codec(codec))


def _text(url: str | os.PathLike[str] | None) -> str:
    if url is None:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise errors.Misconfigured(f"no queue is named; call connect with a url, or set {URL_VARIABLE}")
    return os.fspath(url) if isinstance(url, os.PathLike) else url


def _refuse_unsupported_url(url: str) -> None:
    """Raise for SQLite's `file:` URLs, whose options defeat the store's locks, and for URLs that `Path` shortened."""
    if url.startswith("file:"):
        path = unquote(re.sub(r"^file:(//[^/]*)?", "", url).partition("?")[0].partition("#")[0])
        raise errors.InvalidInput("url", f"file: URLs are not supported; give the path: {path!r}")
    if url.startswith("sqlite:") and "://" not in url:
        raise errors.InvalidInput(
            "url", "begins with 'sqlite:' but not with 'sqlite://'; give the path or the whole URL"
        )


def _store(options: _Options) -> Store:
    validation.one_of(options.durability, "durability", ("full", "relaxed"))
    validation.flag(options.migrate, "migrate")
    validation.flag(options.network_files, "network_files")
    validation.name(options.url, "url", limits.URL_CHARS_MAX)
    _refuse_unsupported_url(options.url)
    scheme, separator, rest = options.url.partition("://")
    _refuse_mistyped_server(options.url, separator)
    if separator and scheme in _HTTP_SCHEMES:
        return _checked_http_store(options)
    if options.token is not None:
        raise errors.InvalidInput("token", "is an option for HTTP; this URL names a store")
    if separator and scheme in _SERVER_SCHEMES:
        return _postgres_store(options)
    if separator and scheme.partition("+")[0] in _SERVER_SCHEMES:
        raise errors.InvalidInput("url", f"{scheme}:// names a driver; write postgresql://")
    if not separator:
        return _sqlite_store(options, options.url)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return _sqlite_store(options, rest[1:])
    raise errors.InvalidInput(
        "url",
        f"{options.url!r} is not a supported store; give the path of a SQLite file, postgresql://… or http://…",
    )


def _refuse_mistyped_server(url: str, separator: str) -> None:
    """Raise if *url* is a mistyped server URL that would be used as the path of a SQLite file."""
    if not separator and _MISTYPED_SERVER.match(url):
        # The URL may contain a password at an unknown position, so the message does not quote it.
        raise errors.InvalidInput("url", "is not a valid server URL; write postgresql://user:password@host/database")


def _sqlite_store(options: _Options, path: str) -> Store:
    for option, value, default in (
        ("schema", options.schema, SCHEMA_DEFAULT),
        ("listen_url", options.listen_url, None),
    ):
        if value != default:
            raise errors.InvalidInput(option, "is an option for PostgreSQL; this URL names a SQLite file")
    return SqliteStore(
        connection.resolve_path(path),
        relaxed=options.durability == "relaxed",
        migrates=options.migrate,
        network_files=options.network_files,
        clock=options.clock,
    )


def _checked_http_store(options: _Options) -> Store:
    for option, value, default in (
        ("durability", options.durability, "full"),
        ("network_files", options.network_files, False),
        ("migrate", options.migrate, True),
        ("schema", options.schema, SCHEMA_DEFAULT),
        ("listen_url", options.listen_url, None),
        ("clock", options.clock, None),
    ):
        if value != default:
            raise errors.InvalidInput(option, "is an option for a store; this URL names an HTTP server")
    try:
        parts = urlsplit(options.url)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise errors.InvalidInput("url", "is not the URL of a server, such as http://127.0.0.1:8040")
    if parts.username is not None or parts.password is not None:
        raise errors.InvalidInput("url", "must not have a user or password; give the token as token=…")
    token = options.token if options.token is not None else os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not _TOKEN.fullmatch(validation.name(token, "token", limits.URL_CHARS_MAX)):
        # The message does not quote the token.
        raise errors.InvalidInput("token", "must be the text of a token, such as hf_…")
    return _http_store(options.url.rstrip("/"), token)


def _http_store(http_url: str, token: str | None) -> Store:
    try:
        # Imported late: the library needs no other package for a store.
        from holdfast.remote.store import HttpStore  # noqa: PLC0415
    except ImportError as error:
        raise errors.Misconfigured(
            "a queue behind HTTP needs a client; install the extra `http`, in a clone with `pip install '.[http]'` "
            f"({error})"
        ) from error
    return HttpStore(http_url, token)


def _postgres_store(options: _Options) -> Store:
    for option, value, default in (
        ("durability", options.durability, "full"),
        ("network_files", options.network_files, False),
    ):
        if value != default:
            raise errors.InvalidInput(option, "is an option for SQLite; this URL names a PostgreSQL server")
    schema = validation.name(options.schema, "schema")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise errors.InvalidInput(
            "schema",
            f"{schema!r} must be 1 to 48 lowercase letters, digits and underscores, and not begin with a digit",
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise errors.InvalidInput(
            "schema", f"{schema!r} is reserved by PostgreSQL; choose a name that does not begin with pg_"
        )
    if options.listen_url is not None:
        validation.name(options.listen_url, "listen_url", limits.URL_CHARS_MAX)
    try:
        # Imported late: a caller that uses only SQLite needs no driver.
        from holdfast.storage.postgres.store import PostgresStore  # noqa: PLC0415
    except ImportError as error:
        raise errors.Misconfigured(
            "PostgreSQL needs a driver; install the extra `postgres`, in a clone with `pip install '.[postgres]'` "
            f"({error})"
        ) from error
    return PostgresStore(
        options.url,
        schema=schema,
        listen_url=options.listen_url,
        migrates=options.migrate,
        clock=options.clock,
    )
