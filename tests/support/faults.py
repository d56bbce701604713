"""Faults on demand: a crash before any statement, and a reply lost after its commit."""

from __future__ import annotations


class Crashed(BaseException):
    """The process died here. Not an Exception, so that no code under test handles it as an error."""


class AnswerLost(BaseException):
    """The commit succeeded, and the caller never received the result."""


class Faults:
    """The observer of a store; idle until a test requests a fault."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._statements_left: int | None = None
        self._lose = False
        self._dead: BaseException | None = None
        """Raised for every statement after a fault: a process that died sends no more of them."""

    def crash_before(self, statement: int) -> None:
        """Crash before the *statement*-th statement from now, from 1; begin and commit count too."""
        self._statements_left = statement

    def lose_reply(self) -> None:
        """Let the next commit succeed and its reply be lost."""
        self._lose = True

    def calm(self) -> None:
        """Cancel faults that have not occurred."""
        self._statements_left = None
        self._lose = False
        self._dead = None
        self.seen.clear()

    @property
    def is_dead(self) -> bool:
        """Whether a fault has occurred, and the process is dead as far as its clients know."""
        return self._dead is not None

    def __call__(self, name: str) -> None:
        if self._dead is not None:
            raise self._dead
        if name == "committed":
            if self._lose:
                self._lose = False
                self._dead = AnswerLost()
                raise self._dead
            return
        self.seen.append(name)
        if self._statements_left is not None:
            self._statements_left -= 1
            if self._statements_left == 0:
                self._statements_left = None
                self._dead = Crashed()
                raise self._dead
