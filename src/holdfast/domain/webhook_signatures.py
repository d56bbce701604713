"""Secrets and signatures of webhooks, by the Standard Webhooks specification."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.domain import errors

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # the prefix is public
SECRET_BYTES: Final = 32
_SECRET_BYTES_MIN: Final = 24
_SECRET_BYTES_MAX: Final = 64


class StoredSecret(NamedTuple):
    """A secret with which deliveries are signed until it expires."""

    text: str
    expires_at_ms: int | None = None


def secret_of(key: bytes) -> str:
    """Return the text of a secret with this key."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def check_secret(secret: object, field: str) -> str:
    """Return *secret* if it is `whsec_` and the base64 of 24 to 64 bytes; the message never contains it."""
    if not isinstance(secret, str) or not secret.startswith(SECRET_PREFIX):
        raise errors.InvalidInput(field, f"must be a string that starts with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise errors.InvalidInput(field, f"must be base64 after {SECRET_PREFIX}") from None
    if not _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX:
        message = f"has a key of {len(key)} bytes; it must have {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}"
        raise errors.InvalidInput(field, message)
    return secret


def valid_secrets(secrets: Sequence[StoredSecret], now_ms: int) -> list[str]:
    """Return the secrets that have not expired, newest first."""
    return [one.text for one in secrets if one.expires_at_ms is None or one.expires_at_ms > now_ms]


def rotated(secrets: Sequence[StoredSecret], new: str, now_ms: int, overlap_ms: int) -> tuple[StoredSecret, ...]:
    """Return the secrets after a rotation: the new one, and the newest before it until the overlap has passed.

    If the newest is already the new one, the call was sent again: the one before it stays.
    """
    until_ms = now_ms + overlap_ms
    old = [
        one._replace(expires_at_ms=min(one.expires_at_ms or until_ms, until_ms)) for one in secrets if one.text != new
    ]
    return StoredSecret(new), *(old[:1] if overlap_ms else ())


def sign(secrets: Sequence[str], delivery_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one `v1` signature for each secret, separated by spaces."""
    content = b"%s.%d.%s" % (delivery_id.encode(), timestamp, body)
    return " ".join(f"v1,{_signature(secret, content)}" for secret in secrets)


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()


def verify(secret: str, delivery_id: str, timestamp: int, body: bytes, header: str) -> bool:
    """Return whether *header* contains a signature by *secret*, in a time that does not depend on the signatures."""
    expected = sign([secret], delivery_id, timestamp, body)
    return any([hmac.compare_digest(expected, one) for one in header.split(" ")])  # noqa: C419  # compares all
