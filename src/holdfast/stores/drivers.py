"""The drivers of scripts and of procedures, each in two colours: one blocks, one awaits, and that is all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.domain.clock import Clock
from holdfast.domain.errors import HoldfastError
from holdfast.stores.engine import AsyncRunner, Runner
from holdfast.stores.randomness import RANDOM
from holdfast.stores.script import CHANCE, NOW, Listen, Pause, Procedure, Read, Request, Script, Signal, Write
from holdfast.stores.signals import AwaitingListener, BlockingListener
from holdfast.stores.undo import UndoableWrite

T = TypeVar("T")


def answer_beside(request: Request, clock: Clock, signals: set[str]) -> Any:
    """Answer what a script asks beside its statements: the time, chance, and a note of whom to wake."""
    if isinstance(request, Signal):
        signals.update(request.topics)
        return None
    if request is NOW:
        return clock.now()
    if request is CHANCE:
        return RANDOM.random()
    raise TypeError(f"a script asked for {request!r}")


def run_script(script: Script[T], answer: Callable[[Request], Any]) -> T:
    """Run *script* to its end, answering each of its requests."""
    reply = None
    try:
        while True:
            reply = answer(script.send(reply))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


async def run_script_async(script: Script[T], answer: Callable[[Request], Awaitable[Any]]) -> T:
    """Run *script* to its end, awaiting the answer to each of its requests."""
    reply = None
    try:
        while True:
            reply = await answer(script.send(reply))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


def drive(procedure: Procedure[T], runner: Runner) -> T:
    """Run *procedure* to its end in this thread; if it is interrupted, give back what it has leased."""
    leasing: list[UndoableWrite] = []
    try:
        return _drive(procedure, runner, leasing)
    except HoldfastError:
        raise
    except BaseException:
        if leasing:
            leasing[-1].abandon(runner)
        raise


def _drive(procedure: Procedure[T], runner: Runner, leasing: list[UndoableWrite]) -> T:
    listener = BlockingListener()
    topics: list[str] = []
    answer: object = None
    try:
        while True:
            match step := procedure.send(answer):
                case Write(undo=undo) if undo is not None:
                    leasing.append(UndoableWrite(step))
                    answer = runner.run(leasing[-1].step)
                case Read() | Write():
                    answer = runner.run(step)
                case Listen():
                    topics.append(step.topic)
                    runner.hub.add(step.topic, listener)
                    answer = None
                case Pause():
                    answer = listener.wait(step.seconds)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        procedure.close()
        for topic in topics:
            runner.hub.remove(topic, listener)


async def drive_async(procedure: Procedure[T], runner: AsyncRunner) -> T:
    """Run *procedure* to its end, awaiting every transaction; if it is cancelled, give back what it has leased."""
    listener = AwaitingListener()
    topics: list[str] = []
    answer: object = None
    try:
        while True:
            match step := procedure.send(answer):
                case Write(undo=undo) if undo is not None:
                    answer = await UndoableWrite(step).run_async(runner)
                case Read() | Write():
                    answer = await runner.run_async(step)
                case Listen():
                    topics.append(step.topic)
                    runner.hub.add(step.topic, listener)
                    answer = None
                case Pause():
                    answer = await listener.wait(step.seconds)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        procedure.close()
        for topic in topics:
            runner.hub.remove(topic, listener)
