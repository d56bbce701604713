"""Open connections, and check once that the server and its schema suit this code."""

import re
import threading
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.domain import errors
from holdfast.storage import randomness
from holdfast.storage.migrations import not_migrated
from holdfast.storage.postgres import migrate as migrations
from holdfast.storage.postgres.commits import PostgresSettings
from holdfast.storage.postgres.errors import translated, translated_opening

_OLDEST_SERVER = 140000
_STATEMENTS_KEPT = 500
# Detect a vanished server within a minute, even if nothing is being sent. The URL may override these.
_DEFAULTS = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


class PostgresConnector:
    """Opens connections to one database, whose schema is current once `make_ready` has returned."""

    def __init__(self, url: str, settings: PostgresSettings, *, migrates: bool) -> None:
        self._conninfo = with_defaults(url)
        self._settings = settings
        self._migrates = migrates
        self._ready = False
        self._opening = threading.Lock()

    def connect(self) -> psycopg.Connection[Any]:
        """Return a sync connection."""
        with translated_opening(self._settings.schema):
            connection = psycopg.connect(self._conninfo, autocommit=True)
        _set_up(connection)
        return connection

    async def connect_async(self) -> psycopg.AsyncConnection[Any]:
        """Return an async connection."""
        with translated_opening(self._settings.schema):
            connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        _set_up(connection)
        return connection

    @property
    def ready(self) -> bool:
        """Whether server and schema have been checked."""
        return self._ready

    def make_ready(self, *, again: bool = False) -> list[str]:
        """Check server and schema, unless that was done before; return the migrations applied."""
        with self._opening:
            if self._ready and not again:
                return []
            connection = self.connect()
            try:
                with translated(self._settings.schema):
                    applied = self._examine(connection)
            finally:
                connection.close()
            self._ready = True
            return applied

    def _examine(self, connection: psycopg.Connection[Any]) -> list[str]:
        _check_server(connection)
        schema = self._settings.schema
        if not self._migrates and (missing := migrations.pending(connection, schema)):
            raise not_migrated(missing, f"Holdfast schema {schema!r}")
        applied = migrations.migrate(connection, schema)
        [[self._settings.identity]] = connection.execute(
            self._settings.texts.reading["schema_identity"].encode(), prepare=False
        ).fetchall()
        return applied


def _set_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Prepare a new connection for use through a pooler, which may run each transaction on another server connection.

    The driver numbers the prepared statements of every connection from zero. Another client may have prepared a
    different statement under the same name, and that statement would run. So the numbers begin at random; a statement
    that a server connection does not know is an error, after which the store prepares none.
    """
    connection.add_notify_handler(_ignore)
    connection.prepared_max = _STATEMENTS_KEPT
    if hasattr(connection._prepared, "_prepared_idx"):
        connection._prepared._prepared_idx = randomness.RANDOM.getrandbits(62)
    else:
        # A driver that names statements in another way, perhaps as unsafe.
        connection.prepare_threshold = None


def _ignore(_notification: psycopg.Notify) -> None:
    """Drop a notification: through a pooler it may reach a connection that does not listen, which would store it."""


def with_defaults(url: str) -> str:
    """Return *url* with defaults for timeouts and names; raise `InvalidInput` if it cannot be parsed."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The driver quotes the part it cannot parse, which may be the password: neither quote nor chain its error.
        raise errors.InvalidInput("url", f"PostgreSQL cannot read it: {_without_quotes(str(error), url)}") from None
    _refuse_misread_password(url, given)
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in given}
    # Statements are sent exactly as in the files; settings from the environment must not change their meaning.
    return make_conninfo(url, **defaults, client_encoding="UTF8")


def described(url: str) -> str:
    """Return the host, port and database that *url* and the environment name, as `db.example.org:5432/jobs`."""
    named = {setting.keyword.decode(): setting.val for setting in psycopg.pq.Conninfo.get_defaults()}
    settings = {name: value.decode() for name, value in named.items() if value}
    settings |= {name: str(value) for name, value in conninfo_to_dict(url).items() if value}
    host = settings.get("host") or settings.get("hostaddr") or "localhost"
    database = settings.get("dbname") or settings.get("user") or ""
    return f"{host}:{settings.get('port', '5432')}/{database}"


def _without_quotes(message: str, url: str) -> str:
    """Return the driver's *message* without the parts of *url* that it quotes, except option names."""

    def masked(found: re.Match[str]) -> str:
        names_option = re.search(rf"[?&]{re.escape(found[1])}=", url)
        return found[0] if names_option else '"***"'

    return re.sub(r'"(.*)"', masked, message.strip(), flags=re.DOTALL)


def _refuse_misread_password(url: str, given: dict[str, Any]) -> None:
    """Raise if a special character ends the password early, so that the rest would be parsed as a host."""
    credentials, _, _ = url.partition("://")[2].partition("?")
    in_path = "@" in credentials.partition("/")[2]
    ports = str(given.get("port") or "").split(",")
    if in_path or "@" in str(given.get("host") or "") or not all(port.isdecimal() for port in ports if port):
        raise errors.InvalidInput(
            "url",
            "its host, port or database cannot be read; percent-encode special characters in the user name and "
            "the password: %40 for @, %2F for /, %3A for :, %3F for ?, %23 for #",
        )


def _check_server(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise errors.UnsupportedStore(f"this server is PostgreSQL {version // 10000}; 14 or later is needed")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise errors.UnsupportedStore(f"this database is encoded in {encoding}; create one with encoding UTF8")
