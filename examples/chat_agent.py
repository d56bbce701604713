"""A conversation with an agent: what is typed while it thinks joins its turn at the next checkpoint.

The model is scripted and needs no network. What a turn adds to the transcript and its settlement are one commit.
"""

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast import SessionContext, Tasks, Worker

CHAT = "chat-42"

tasks = Tasks()
thinking, typed = threading.Event(), threading.Event()


@dataclass
class Message:
    text: str


@tasks.session_task("chat.message", slot="join")
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
        known = [line for (line,) in tx.execute("select line from transcript where chat = ?", (context.session,))]
    return reply(f"you asked: {'; '.join(known)}")


@tasks.session_task("chat.forget", work_class="command")
def forget(context: SessionContext[None]) -> str:
    print(f"  turn {context.fencing_token} obeys a command")
    with context.transaction() as tx:
        tx.execute("delete from transcript where chat = ?", (context.session,))
    return reply("all forgotten")


def think() -> None:
    """Take as long as the user types; a real model would take as long as it takes."""
    thinking.set()
    typed.wait(10)


def reply(text: str) -> str:
    print(f"agent: {text}")
    return text


def say(text: str) -> holdfast.Enqueued:
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
        # The first joins the running turn. The command is obeyed alone, and nothing behind it passes it.
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
