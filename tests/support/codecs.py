"""A codec for tests: not secure, but with a key, a random part and a check, as encryption has."""

from __future__ import annotations

import hashlib
import os


class Scrambler:
    """Scrambles bytes with a key; the same bytes are encoded differently each time."""

    def __init__(self, key: bytes = b"key", name: str = "scrambler") -> None:
        self.name = name
        self._key = key

    def encode(self, data: bytes) -> bytes:
        if b"unencodable" in data:
            raise OSError("no key service")
        nonce = os.urandom(8)
        return nonce + self._check(nonce, data) + self._mix(nonce, data)

    def decode(self, data: bytes) -> bytes:
        nonce, check = data[:8], data[8:16]
        plain = self._mix(nonce, data[16:])
        if check != self._check(nonce, plain):
            raise ValueError("wrong key")
        return plain

    def _check(self, nonce: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(nonce + data, key=self._key, digest_size=8).digest()

    def _mix(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_128(self._key + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))
