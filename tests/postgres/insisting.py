"""Retry as the errors advise: on `Unavailable`, send the same call again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast import Unavailable

T = TypeVar("T")

TRIES_MAX = 30


class Insisting:
    """Sends a call again until it succeeds, and stores the errors. Any other error fails the test."""

    def __init__(self) -> None:
        self.errors: list[Unavailable] = []

    def __call__(self, call: Callable[[], T]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return call()
            except Unavailable as error:
                self.errors.append(error)
        raise AssertionError(f"not answered after {TRIES_MAX} tries: {self.errors[-1]!r}")

    async def awaited(self, call: Callable[[], Awaitable[T]]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return await call()
            except Unavailable as error:
                self.errors.append(error)
        raise AssertionError(f"not answered after {TRIES_MAX} tries: {self.errors[-1]!r}")
