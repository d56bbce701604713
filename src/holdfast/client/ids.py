"""Ids that a process generates: job ids, lease tokens, upload ids, worker names."""

from __future__ import annotations

import base64
import getpass
import os
import secrets
import socket
import time

from holdfast.storage.randomness import RANDOM


def uuid7() -> str:
    """Return a new UUIDv7: its first 48 bits are the time, so new ids are inserted at the end of an index."""
    bits = RANDOM.getrandbits(74)
    head = time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | (bits >> 62) << 64
    tail = 0b10 << 62 | bits & (1 << 62) - 1
    digits = f"{head | tail:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def lease_token() -> str:
    """Return a random token that no other claim uses."""
    return secrets.token_hex(16)


def upload_id() -> str:
    """Return a random id that no other upload has."""
    return secrets.token_hex(16)


def token_id() -> str:
    """Return the random, public id of a token."""
    return base64.b32encode(secrets.token_bytes(10)).decode().lower()


def token_secret() -> str:
    """Return the secret of a token: 256 random bits."""
    return secrets.token_urlsafe(32)


def operator() -> str:
    """Return the user of the operating system that runs this process, and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user without a name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def worker_name() -> str:
    """Return a readable name for this process."""
    return f"{socket.gethostname()}:{os.getpid()}"
