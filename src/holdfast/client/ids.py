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

_OWN_DIGITS: Final = 12


def job_id() -> str:
    """Return the id of a new job: a UUIDv7."""
    return new_job.uuid7(time.time_ns() // 1_000_000, randomness.RANDOM.getrandbits(74))


def job_ids(count: int) -> list[str]:
    """Return the ids of new jobs in ascending order, in a third of the time that single ones take.

    In order they fill the pages of an index one after the other. They differ in their last 48 random bits.
    """
    first = new_job.uuid7(time.time_ns() // 1_000_000, randomness.RANDOM.getrandbits(74))[:-_OWN_DIGITS]
    while True:
        digits = f"{randomness.RANDOM.getrandbits(4 * _OWN_DIGITS * count):0{_OWN_DIGITS * count}x}"
        found = {first + digits[start : start + _OWN_DIGITS] for start in range(0, _OWN_DIGITS * count, _OWN_DIGITS)}
        if len(found) == count:
            return sorted(found)


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
