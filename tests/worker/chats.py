"""A conversation under test: a session task that writes down its turns and halts where a test wants it to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from holdfast import AsyncSessionContext, Queue, SessionContext
from tests.worker.workers import arrived, comes

SESSION = "chat-42"


@dataclass
class Message:
    """What somebody says."""

    text: str


class Chat:
    """`chat.message` joins and halts until let go; `chat.reset` is a command. Each of their calls is written down."""

    def __init__(self, queue: Queue, *, awaited: bool = False, checkpoints: int = 1, **words: Any) -> None:
        self.queue = queue
        self.calls: list[Any] = []
        """The messages of each call, and of each checkpoint that brought any, in order."""
        self.tokens: list[int] = []
        self.started, self.go_on, self.stopped = threading.Event(), threading.Event(), threading.Event()
        self.go_on.set()
        self.error: BaseException | None = None
        self.checkpoints = checkpoints
        declares = queue.session_task("chat.message", **{"slot": "join", **words})
        self.answer = declares(self._awaited() if awaited else self._blocking())

        @queue.session_task("chat.reset", work_class="command")
        def reset(context: SessionContext[None]) -> str:
            self._note("reset", context.fencing_token)
            return "reset"

        self.reset = reset

    def _note(self, told: Any, token: int) -> None:
        self.calls.append(told)
        self.tokens.append(token)

    def _blocking(self) -> Any:
        def answer(context: SessionContext[Message], messages: list[Message]) -> list[str]:
            said = [message.text for message in messages]
            self._note(list(said), context.fencing_token)
            self.started.set()
            while not self.go_on.wait(0.005):
                if context.cancelled:
                    self.stopped.set()
                    context.raise_if_cancelled()
            for _ in range(self.checkpoints):
                if more := [message.text for message in context.checkpoint()]:
                    self._note(more, context.fencing_token)
                    said += more
            return self._ended(said)

        return answer

    def _awaited(self) -> Any:
        async def answer(context: AsyncSessionContext[Message], messages: list[Message]) -> list[str]:
            said = [message.text for message in messages]
            self._note(list(said), context.fencing_token)
            self.started.set()
            try:
                await comes(self.go_on)
            finally:
                if context.cancelled:
                    self.stopped.set()
            for _ in range(self.checkpoints):
                if more := [message.text for message in await context.checkpoint()]:
                    self._note(more, context.fencing_token)
                    said += more
            return self._ended(said)

        return answer

    def _ended(self, said: list[str]) -> list[str]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return said

    def say(self, *texts: str, **words: Any) -> list[str]:
        """Enqueue each text as an entry, and return their ids."""
        return [self.answer.enqueue(Message(text), **{"session": SESSION, **words}).id for text in texts]

    def halt(self) -> None:
        """Let turns halt before their checkpoints from now on."""
        self.started.clear()
        self.go_on.clear()

    def halts(self) -> None:
        """Wait until a turn has begun and halts."""
        arrived(self.started)
