"""`connect` and `connect_async`: from a URL to a queue. Nothing is opened until it is used."""

from __future__ import annotations

import os
import re
import uuid
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from holdfast.client import ids
from holdfast.client.async_queue import AsyncQueue
from holdfast.client.middleware import Middleware
from holdfast.client.operations import Operations, Shared
from holdfast.client.queue import Queue
from holdfast.domain import limits, validation
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.clock import Clock
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.storage.runners import SyncRunner
from holdfast.storage.sqlite.paths import resolve_path
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.store import Store

Durability: TypeAlias = Literal["full", "relaxed"]

_SERVER_SCHEMES: Final = ("postgresql", "postgres")
SCHEMA_DEFAULT: Final = "holdfast"
# A URL with a slash too few, or a connection string of settings.
_MISTYPED_SERVER: Final = re.compile(
    r"postgres(ql)?(\+\w+)?(:|//)|\s*(host|hostaddr|port|dbname|user|password|service|sslmode)\s*=", re.IGNORECASE
)
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


def connect(
    url: str | os.PathLike[str],
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    schema: str = SCHEMA_DEFAULT,
    listen_url: str | None = None,
    clock: Clock | None = None,
) -> Queue:
    """Return the queue at *url*: the path of a SQLite file, `:memory:` for one that is not kept, or `postgresql://…`.

    With `migrate=False` nothing is created: the schema must be there and current, else the first use raises. *clock*
    replaces the store's clock, for tests.

    For SQLite, also as `sqlite:///path` or a `pathlib.Path`. A relative path and symbolic links are resolved here,
    once, so that a later `os.chdir` changes nothing. With `durability="relaxed"` a power cut may lose the last
    moments of acknowledged work; a killed process loses nothing either way. *network_files* admits a file on a
    network file system, where locks cannot be trusted.

    For PostgreSQL: everything stands in *schema*. *listen_url* names the server directly where *url* is that of a
    pooler, through which nobody can be woken.
    """
    return queue_on(
        _store(_Options(_text(url), durability, migrate, network_files, schema, listen_url, clock)),
    )


def connect_async(
    url: str | os.PathLike[str],
    *,
    durability: Durability = "full",
    migrate: bool = True,
    network_files: bool = False,
    schema: str = SCHEMA_DEFAULT,
    listen_url: str | None = None,
    clock: Clock | None = None,
) -> AsyncQueue:
    """Return the queue at *url* with the same methods as `connect` gives, to be awaited."""
    return async_queue_on(_store(_Options(_text(url), durability, migrate, network_files, schema, listen_url, clock)))


def queue_on(store: Store) -> Queue:
    """Return a queue on a store made by hand."""
    return Queue(store, _operations(store))


def async_queue_on(store: Store) -> AsyncQueue:
    """Return an awaited queue on a store made by hand."""
    return AsyncQueue(store, _operations(store))


def store_at(address: dict[str, Any]) -> Store:
    """Return the store that another process has at *address*."""
    if "path" in address:
        return SqliteStore(**address)
    # Loaded late, as below.
    from holdfast.storage.postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore(**address)


class _Options(NamedTuple):
    """The words of `connect`, as they were given."""

    url: str
    durability: Durability
    migrate: bool
    network_files: bool
    schema: str
    listen_url: str | None
    clock: Clock | None


def _text(url: str | os.PathLike[str]) -> str:
    return os.fspath(url) if isinstance(url, os.PathLike) else url


def _refuse_unsupported_url(url: str) -> None:
    """Refuse URLs of SQLite's own, whose options defeat the store's locks, and those that a `Path` has shortened."""
    if url.startswith("file:"):
        path = unquote(re.sub(r"^file:(//[^/]*)?", "", url).partition("?")[0].partition("#")[0])
        raise InvalidInput("url", f"file: URLs are not supported; give the path itself: {path!r}")
    if url.startswith("sqlite:") and "://" not in url:
        raise InvalidInput("url", "begins with 'sqlite:' but not with 'sqlite://'; give the path, or the whole URL")


def _store(words: _Options) -> Store:
    validation.one_of(words.durability, "durability", ("full", "relaxed"))
    validation.flag(words.migrate, "migrate")
    validation.flag(words.network_files, "network_files")
    validation.name(words.url, "url", limits.URL_CHARS_MAX)
    _refuse_unsupported_url(words.url)
    scheme, separator, rest = words.url.partition("://")
    _refuse_mistyped_server(words.url, separator)
    if separator and scheme in _SERVER_SCHEMES:
        return _postgres_store(words)
    if separator and scheme.partition("+")[0] in _SERVER_SCHEMES:
        raise InvalidInput("url", f"{scheme}:// names a driver; write postgresql://, without the driver")
    if not separator:
        return _sqlite_store(words, words.url)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return _sqlite_store(words, rest[1:])
    raise InvalidInput(
        "url",
        f"{words.url!r} names no store that Holdfast knows; give the path of a SQLite file, or postgresql://…",
    )


def _refuse_mistyped_server(url: str, separator: str) -> None:
    """Raise if *url* means a server in a form that would be taken for the path of a SQLite file."""
    if not separator and _MISTYPED_SERVER.match(url):
        # Not quoted: what it is, and so where its password stands, is not known.
        raise InvalidInput("url", "names a server in an unknown form; write postgresql://user:password@host/database")


def _sqlite_store(words: _Options, path: str) -> Store:
    for word, given, plain in (
        ("schema", words.schema, SCHEMA_DEFAULT),
        ("listen_url", words.listen_url, None),
    ):
        if given != plain:
            raise InvalidInput(word, "is a word for PostgreSQL; this URL names a SQLite file")
    return SqliteStore(
        resolve_path(path),
        relaxed=words.durability == "relaxed",
        migrates=words.migrate,
        network_files=words.network_files,
        clock=words.clock,
    )


def _postgres_store(words: _Options) -> Store:
    for word, given, plain in (
        ("durability", words.durability, "full"),
        ("network_files", words.network_files, False),
    ):
        if given != plain:
            raise InvalidInput(word, "is a word for SQLite; this URL names a PostgreSQL server, which has settings")
    schema = validation.name(words.schema, "schema")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidInput(
            "schema", f"{schema!r} must be up to 48 small letters, digits and underscores, the first no digit"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise InvalidInput(
            "schema", f"{schema!r} is reserved by PostgreSQL; choose a name that does not begin with pg_"
        )
    if words.listen_url is not None:
        validation.name(words.listen_url, "listen_url", limits.URL_CHARS_MAX)
    try:
        # Loaded late: whoever stays with SQLite needs no driver.
        from holdfast.storage.postgres.store import PostgresStore  # noqa: PLC0415
    except ImportError as error:
        raise Misconfigured(
            f"PostgreSQL needs a driver; install it with `pip install 'holdfast[postgres]'` ({error})"
        ) from error
    return PostgresStore(
        words.url,
        schema=schema,
        listen_url=words.listen_url,
        migrates=words.migrate,
        clock=words.clock,
    )


def _operations(store: Store) -> Operations:
    return operations_on(store, {"worker": ids.worker_name(), "incarnation": uuid.uuid4().hex})


def operations_on(store: Store, claimer: ClaimOptions) -> Operations:
    """Return the operations of *store* for one claimer."""
    return Operations(SyncRunner(store), Shared(claimer, Middleware(store)))
