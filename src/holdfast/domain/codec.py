"""Codecs: payloads and results that are encoded in the store, such as encrypted or compressed.

The stored form is JSON: `{"holdfast.codec":"NAME","data":"BASE64"}`. Null is not encoded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from operator import methodcaller
from typing import Final, Literal, Protocol, TypeAlias

from holdfast.domain import errors, strict_json, validation
from holdfast.domain.strict_json import Json

Field: TypeAlias = Literal["payload", "result"]

_KEY: Final = "holdfast.codec"
_PREFIX: Final = f'{{"{_KEY}":'
NULL: Final = "null"


class Codec(Protocol):
    """Encodes payloads and results for the store, and decodes them. Its methods may be called from any thread.

    `decode(encode(data))` returns *data*, the bytes of a JSON text. `encode` may return other bytes each time.
    """

    @property
    def name(self) -> str:
        """The name under which encoded values are stored; a value is decoded only by a codec of its name."""
        ...

    def encode(self, data: bytes, /) -> bytes:
        """Return *data* in encoded form."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """Return what `encode` was given, or raise if *data* cannot be decoded, such as with another key."""
        ...


def check_codec(codec: Codec | None) -> Codec | None:
    """Return *codec*, or raise `InvalidInput` if it is not a codec."""
    if codec is not None:
        if isinstance(codec, type):
            raise errors.InvalidInput("codec", "must be an object, not a class")
        for method in ("encode", "decode"):
            if not callable(getattr(codec, method, None)):
                raise errors.InvalidInput("codec", f"must have a method {method!r}; {type(codec).__name__} has none")
        validation.name(getattr(codec, "name", None), "codec.name")
    return codec


is_encoded: Final[Callable[[str], bool]] = methodcaller("startswith", _PREFIX)
"""Returns whether a text, a stored payload or result, is encoded."""


def codec_name(text: str) -> str | None:
    """Return the name of the codec that encoded *text*, a stored payload or result; None if it is not encoded."""
    return str(strict_json.decode(text)[_KEY]) if is_encoded(text) else None


def encode_text(codec: Codec, text: str, field: str, bytes_max: int) -> str:
    """Return the stored form of *text*, which is JSON; raise `CodecFailed`, or `InvalidInput` if it is too large."""
    try:
        data = base64.b64encode(codec.encode(text.encode())).decode()
    except Exception as error:  # the codec is the program's own code
        raise errors.CodecFailed(
            f"{field}: cannot be encoded by codec {codec.name!r}: {type(error).__name__}"
        ) from error
    stored = strict_json.compact({_KEY: codec.name, "data": data})
    # One byte for each character, except in the name.
    if len(stored.encode()) > bytes_max:
        raise errors.InvalidInput(
            field, f"is {len(stored.encode())} bytes after encoding; the limit is {bytes_max}", bytes_max
        )
    return stored


def decode_text(codec: Codec | None, text: str, job_id: str, field: Field) -> Json:
    """Return the value of *text*, the stored *field* of a job; raise `CodecFailed` if it cannot be decoded."""
    if not is_encoded(text):
        return strict_json.decode(text)
    about = f"the {field} of job {job_id!r}"
    stored = strict_json.decode(text)
    name = stored[_KEY]
    if codec is None:
        raise errors.CodecFailed(f"{about} is encoded by codec {name!r}; pass this codec to connect", job_id=job_id)
    if codec.name != name:
        raise errors.CodecFailed(
            f"{about} is encoded by codec {name!r}, and the codec of this queue is {codec.name!r}", job_id=job_id
        )
    try:
        return strict_json.decode(codec.decode(base64.b64decode(stored["data"])).decode())
    except Exception as error:  # the codec is the program's own code
        raise errors.CodecFailed(
            f"{about} cannot be decoded by codec {name!r}: {type(error).__name__}; was it encoded with another key?",
            job_id=job_id,
        ) from error
