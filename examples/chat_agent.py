"""A conversation with an agent: messages that arrive during a turn join it at the next checkpoint.

The model is simulated and needs no network. A turn commits its additions to the transcript with its settlement.
"""

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from holdfast import SessionContext, Tasks, Worker

CHAT = "chat-42"

tasks = Tasks()
thinking, typed = threading.Event(), threading.Event()


@dataclass
class Message:
    text: str


@tasks.session_task("chat.message", join=True)
def answer(context: SessionContext[Message], messages: list[Message]) -> str:
    print(f"  turn {context.fencing_token} begins with {[message.text for message in messages]}")
    think()
    while joined := context.checkpoint():
        print(f"  turn {context.fencing_token} takes in {[message.text for message in joined]}")
        messages += joined
        think()
    with context.transaction() as tx:
        for message in messages:
            tx.execute("insert into transcript values (?, ?)", (context.session, message.text))
        lines = [line for (line,) in tx.execute("select line from transcript where chat = ?", (context.session,))]
    return reply(f"you wrote: {'; '.join(lines)}")


@tasks.session_task("chat.forget", entry_type="command")
def forget(context: SessionContext[None]) -> str:
    print(f"  turn {context.fencing_token} runs a command")
    with context.transaction() as tx:
        tx.execute("delete from transcript where chat = ?", (context.session,))
    return reply("all forgotten")


def think() -> None:
    """Simulate a model that runs until the user has typed further messages."""
    thinking.set()
    typed.wait(10)


def reply(text: str) -> str:
    print(f"agent: {text}")
    return text


def say(text: str) -> holdfast.types.Enqueued[Any]:
    print(f"user: {text}")
    if text == "/forget":
        return forget.enqueue(session=CHAT)
    return answer.enqueue(Message(text), session=CHAT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "chat.db")) as queue:
        queue.include(tasks)
        with queue.transaction() as tx:
            tx.execute("create table transcript (chat text, line text)")

        say("plan a trip to Rome")
        say("for two people")
        worker = Worker(queue)
        running = threading.Thread(target=worker.run)
        running.start()

        thinking.wait(10)
        # The first message joins the running turn. The command runs alone, before the entries behind it.
        say("by train, please")
        say("/forget")
        last = say("what did I ask?")
        typed.set()
        queue.wait(last.id, timeout=30)
        worker.stop()
        running.join()
        print(f"{worker.status().ended['done']} turns for {queue.counts()['done']} entries")


if __name__ == "__main__":
    main()
