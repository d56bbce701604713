"""A session task for tests that records its turns and waits on request."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from holdfast import AsyncSessionContext, Job, Queue, SessionContext
from tests.worker.workers import comes, wait_finished, wait_for_event

SESSION = "chat-42"


@dataclass
class Message:
    """A chat message."""

    text: str


class Chat:
    """`chat.message` joins and waits until released; `chat.reset` is a command. Both record their calls."""

    def __init__(self, queue: Queue, *, awaited: bool = False, checkpoints: int = 1, **options: Any) -> None:
        self.queue = queue
        self.calls: list[Any] = []
        """The messages of each call and of each checkpoint that returned any, in order."""
        self.tokens: list[int] = []
        self.started, self.proceed, self.stopped = threading.Event(), threading.Event(), threading.Event()
        self.proceed.set()
        self.error: BaseException | None = None
        self.checkpoints = checkpoints
        declares = queue.session_task("chat.message", **{"join": True, **options})
        self.answer = declares(self._awaited() if awaited else self._blocking())

        @queue.session_task("chat.reset", entry_type="command")
        def reset(context: SessionContext[None]) -> str:
            self._record("reset", context.fencing_token)
            return "reset"

        self.reset = reset

    def _record(self, messages: Any, token: int) -> None:
        self.calls.append(messages)
        self.tokens.append(token)

    def _blocking(self) -> Any:
        def answer(context: SessionContext[Message], messages: list[Message]) -> list[str]:
            texts = [message.text for message in messages]
            self._record(list(texts), context.fencing_token)
            self.started.set()
            while not self.proceed.wait(0.005):
                if context.cancelled:
                    self.stopped.set()
                    context.raise_if_cancelled()
            for _ in range(self.checkpoints):
                if more := [message.text for message in context.checkpoint()]:
                    self._record(more, context.fencing_token)
                    texts += more
            return self._finish(texts)

        return answer

    def _awaited(self) -> Any:
        async def answer(context: AsyncSessionContext[Message], messages: list[Message]) -> list[str]:
            texts = [message.text for message in messages]
            self._record(list(texts), context.fencing_token)
            self.started.set()
            try:
                await comes(self.proceed)
            finally:
                if context.cancelled:
                    self.stopped.set()
            for _ in range(self.checkpoints):
                if more := [message.text for message in await context.checkpoint()]:
                    self._record(more, context.fencing_token)
                    texts += more
            return self._finish(texts)

        return answer

    def _finish(self, texts: list[str]) -> list[str]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return texts

    def say(self, *texts: str, **options: Any) -> list[str]:
        """Enqueue each text as an entry, and return their ids."""
        return [self.answer.enqueue(Message(text), **{"session": SESSION, **options}).id for text in texts]

    def halt(self) -> None:
        """Make turns wait before their checkpoints from now on."""
        self.started.clear()
        self.proceed.clear()

    def halts(self) -> None:
        """Wait until a turn has started and waits."""
        wait_for_event(self.started)


def all_ended(queue: Queue, ids: list[str]) -> list[Job]:
    """Wait until each of these entries has finished, and return them."""
    return [wait_finished(queue, job_id) for job_id in ids]
