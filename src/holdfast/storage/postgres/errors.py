"""Translate errors of the server and the driver to Holdfast's errors. Driver errors are translated only here."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import psycopg

from holdfast.domain import errors
from holdfast.storage.contract import OvertakenError

# Looked up by the full code first, then by its class, the first two characters.
_BY_STATE: dict[str, tuple[type[errors.HoldfastError], str]] = {
    "08": (errors.StoreUnreachable, "the connection to the server was lost"),
    "22021": (errors.Misconfigured, "the database cannot store this text; it must be encoded in UTF8"),
    "25006": (errors.ReadOnlyStore, "the server is read-only, like a standby; connect to one that accepts writes"),
    "25P03": (
        errors.StoreUnreachable,
        "the connection was idle for so long that the server ended its transaction; nothing was stored",
    ),
    "28": (errors.Misconfigured, "the server refuses this role; check the URL and the server's pg_hba.conf"),
    "28P01": (
        errors.Misconfigured,
        "the server refuses the user or the password; check them in the URL or PGPASSWORD",
    ),
    "3D": (errors.Misconfigured, "the server has no such database; create it, or check the URL"),
    "40": (errors.StoreBusy, "other transactions changed the same jobs repeatedly; try again"),
    "42501": (errors.Misconfigured, "the role lacks rights on the schema; grant them"),
    "23505": (errors.StoreBusy, "other transactions stored the same key repeatedly; try again"),
    "53100": (errors.StoreFull, "the server's disk is full; nothing was stored"),
    "53": (errors.StoreBusy, "the server has no capacity for another connection or query; try again"),
    "54": (errors.StoreBusy, "the server reached one of its limits; try again"),
    "55P03": (errors.StoreBusy, "other transactions held a required lock for too long; try again"),
    "57014": (errors.StoreBusy, "the server cancelled the statement because it took too long; try again"),
    "57": (errors.StoreUnreachable, "the server is shutting down or starting up"),
    "58": (errors.StoreUnreachable, "the server cannot read or write its files"),
    "XX001": (errors.StoreDamaged, "the database is damaged; restore it from a backup"),
    "XX002": (errors.StoreDamaged, "an index of the database is damaged; rebuild it"),
}
_UNREACHABLE = "the server cannot be reached; check that it is running, and the host and port in the URL"
_MISSING = {"3F000", "42P01", "42703", "42883"}
# A refused connection carries no code, only a message in the server's language.
_REFUSED = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    "authentication failed": "28",
    "no pg_hba.conf entry": "28",
    'role "': "28",
    "does not exist": "3D",
    "too many": "53",
    "remaining connection slots": "53",
}
# Errors that another run may avoid: a duplicate key, a deadlock, a serialization failure.
_RETRYABLE = {"23505", "40001", "40P01"}
_PREPARED_LOST = {"26000", "42P05"}


def lost(error: psycopg.Error) -> bool:
    """Return whether the connection, or the server behind it, is gone."""
    return error.sqlstate is None or error.sqlstate[:2] in {"08", "57"} or ended_as_idle(error)


def ended_as_idle(error: psycopg.Error) -> bool:
    """Return whether the server rolled back the transaction because it was idle for too long."""
    return error.sqlstate == "25P03"


@contextmanager
def translated_opening(schema: str) -> Iterator[None]:
    """Translate the error if no connection could be opened."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and isinstance(error, psycopg.OperationalError) and _refusal(error) is None:
            raise errors.StoreUnreachable(f"{_UNREACHABLE} ({one_line(error)})") from error
        with translated(schema):
            raise


@contextmanager
def translated_loss(schema: str) -> Iterator[None]:
    """Translate the loss of the connection; other errors of the caller's own statements are raised unchanged."""
    try:
        yield
    except psycopg.OperationalError as error:
        if lost(error):
            raise translate(error, schema) from error
        raise


@contextmanager
def translated(schema: str) -> Iterator[None]:
    """Translate driver errors raised within the block to Holdfast's errors."""
    try:
        yield
    except TRANSLATED as error:
        raise_translated(error, schema)


TRANSLATED: Final = (psycopg.Error, OvertakenError)


def raise_translated(error: Exception, schema: str) -> NoReturn:
    """Raise the error for *error*, which is being handled, as `translated` does."""
    translated_error = translate(error, schema)
    if translated_error is error:
        raise error
    raise translated_error from error


def translate(error: Exception, schema: str) -> Exception:
    """Return the error to raise for *error*: itself if it is not a driver error, or is a programming error."""
    if isinstance(error, OvertakenError):
        return errors.StoreBusy(f"other transactions changed the same jobs repeatedly; try again ({error})")
    if not isinstance(error, psycopg.Error):
        return error
    message = one_line(error)
    state = error.sqlstate or ""
    if state in _MISSING:
        if f"{schema}." in message or f'"{schema}"' in message:
            return errors.SchemaMismatch(
                f"this database has no current Holdfast schema; call queue.migrate() ({message})"
            )
        return error
    if not state and isinstance(error, psycopg.OperationalError):
        state = _refusal(error) or "08"
    found = _BY_STATE.get(state) or _BY_STATE.get(state[:2])
    return error if found is None else found[0](f"{found[1]} ({message})")


def one_line(error: BaseException | None) -> str:
    """Return the message of *error* on one line.

    Before a connection is open the server uses an encoding that the driver does not know; characters that the driver
    could not decode become question marks.
    """
    return " ".join(str(error).replace("\ufffd", "?").split())


def _refusal(error: psycopg.Error) -> str | None:
    """Return the error code that the message of a refused connection corresponds to, if it is known."""
    return next((code for text, code in _REFUSED.items() if text in str(error)), None)


def is_retryable(error: BaseException) -> bool:
    """Return whether the same operation may succeed if it is run again."""
    return isinstance(error, OvertakenError) or getattr(error, "sqlstate", None) in _RETRYABLE


def prepared_lost(error: BaseException) -> bool:
    """Return whether a pooler has assigned the server connection with our prepared statements to another client."""
    return getattr(error, "sqlstate", None) in _PREPARED_LOST
