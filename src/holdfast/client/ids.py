"""Ids that a process generates: job ids, lease tokens, upload ids, worker names."""

import base64
import getpass
import os
import secrets
import socket
import time
from typing import Final

from holdfast.domain import new_job
from holdfast.storage import randomness


def job_id() -> str:
    """Return the id of a new job: a UUIDv7."""
    return new_job.uuid7(time.time_ns() // 1_000_000, randomness.RANDOM.getrandbits(74))


# The first digit of the fourth group of a UUID, from a random one.
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def job_ids(count: int) -> list[str]:
    """Return the ids of new jobs in ascending order, in less than half of the time that single ones take.

    In order they fill the pages of an index one after the other.
    """
    now = f"{time.time_ns() // 1_000_000:012x}"
    start, digits = f"{now[:8]}-{now[8:]}-7", f"{randomness.RANDOM.getrandbits(80 * count):0{20 * count}x}"
    return sorted(
        f"{start}{digits[i : i + 3]}-{_VARIANTS[digits[i + 3]]}{digits[i + 4 : i + 7]}-{digits[i + 7 : i + 19]}"
        for i in range(0, 20 * count, 20)
    )


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
