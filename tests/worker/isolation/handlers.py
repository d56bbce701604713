"""Tasks for tests of isolation. They are in a module, because another process has to import them."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from holdfast import Artifact, Backoff, Context, Defer, Fail, NewJob, Released, Retry, Tasks

tasks = Tasks()
LIMIT = 256 << 20
AT_ONCE = Backoff(base=0)


class OneOfAKind(Exception):  # noqa: N818  # the test checks its name
    """Cannot be pickled: it holds a lock and cannot be created from its arguments."""

    def __init__(self, message: str, *, lock: object) -> None:
        super().__init__(message)
        self.lock = lock


class Exiting(dict[str, int]):
    """Raises SystemExit while it is encoded."""

    def items(self) -> Any:
        raise SystemExit(3)


def mark_started(place: str) -> None:
    """Write the pid of this process to a file for the test."""
    unfinished = Path(f"{place}.unfinished")
    unfinished.write_text(str(os.getpid()), encoding="utf-8")
    unfinished.rename(place)


def note(place: str, context: Context) -> None:
    """Write the stop reason to a file."""
    Path(place).write_text(str(context.stop_reason), encoding="utf-8")


def linger(place: str) -> None:
    """Wait until the test creates a file."""
    while not Path(place).exists():
        time.sleep(0.002)


# --- healthy --------------------------------------------------------------------------------------------------------


@tasks.task("which", isolate="process")
def which() -> int:
    return os.getpid()


@tasks.task("which.later", isolate="process")
async def which_later() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@tasks.task("which.plain", max_attempts=3)
def which_plain() -> int:
    return os.getpid()


@tasks.task("echo", isolate="process")
def echo(value: Any) -> Any:
    return value


@tasks.task("about", isolate="process")
def about(context: Context) -> list[Any]:
    context.logger.warning("seen by %s", "the worker", extra={"colour": "red"})
    return [context.job.id, context.attempt, context.epoch, context.worker, context.lease_token, context.job.tags]


@tasks.task("collect", isolate="process")
def collect(context: Context) -> str:
    context.attach("empty.bin", b"")
    context.attach("big.bin", bytes(range(256)) * 4096, "application/x-test")
    context.follow_up("echo", {"value": "later"}, priority=3, delay=60.5, tags={"from": "collect"}, backoff=AT_ONCE)
    context.follow_up(echo.new("again"))
    return "done"


@tasks.task("report", isolate="process")
def report(context: Context, proceed: str) -> None:
    context.progress("reading", percent=10)
    context.progress(percent=20.5)
    linger(proceed)


@tasks.task("start", isolate="process")
def start_and_terminate() -> int | None:
    """Start a process with `multiprocessing` and terminate it."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


@tasks.task("print", isolate="process")
def print_some(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)


# --- ends -----------------------------------------------------------------------------------------------------------


def _raise(how: str) -> Any:  # noqa: PLR0912  # one branch for each way to end
    match how:
        case "odd":
            raise OneOfAKind("one of a kind", lock=threading.Lock())
        case "value":
            raise ValueError("no such value")
        case "key":
            raise KeyError("key")
        case "network":
            raise ConnectionResetError("gone")
        case "retry":
            raise Retry("busy", after=90, reason="rate_limit")
        case "defer":
            raise Defer(after=120)
        case "fail":
            raise Fail("no user", reason="no_user")
        case "exit":
            sys.exit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case "released":
            return Released()
        case "exit when encoded":
            return Exiting()
        case "cancel":
            raise asyncio.CancelledError
        case "huge":
            return "x" * (2 << 20)
        case "set of objects":
            return {object()}
        case "nan":
            return float("nan")
        case "long message":
            raise ValueError("x" * (8 << 20))
        case _:
            raise AssertionError(how)


ENDS: tuple[str, ...] = ("odd", "value", "key", "network", "retry", "defer", "fail", "exit", "interrupt", "released")
ENDS = (*ENDS, "exit when encoded", "cancel")
UNFIT = ("huge", "set of objects", "nan", "long message")


@tasks.task("end.inside", permanent_on=KeyError, retry_on=(ValueError, OneOfAKind))
def end_inside(how: str) -> Any:
    return _raise(how)


@tasks.task("end.isolated", isolate="process", permanent_on=KeyError, retry_on=(ValueError, OneOfAKind))
def end_isolated(how: str) -> Any:
    return _raise(how)


@tasks.task("end.later", isolate="process", permanent_on=KeyError, retry_on=(ValueError, OneOfAKind))
async def end_later(how: str) -> Any:
    await asyncio.sleep(0)
    return _raise(how)


@tasks.task("cancel.itself", isolate="process", max_attempts=1)
async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


# --- crashes --------------------------------------------------------------------------------------------------------


def crash() -> NoReturn:
    """Read invalid memory in C."""
    ctypes.string_at(0)
    raise AssertionError("survived")


@tasks.task("die", isolate="process", max_attempts=1)
def die(how: str) -> None:
    _die(how)


@tasks.task("die.twice", isolate="process", max_attempts=2, backoff=AT_ONCE)
def die_twice(how: str) -> None:
    _die(how)


@tasks.task("die.later", isolate="process", max_attempts=1)
async def die_later(how: str) -> None:
    await asyncio.sleep(0)
    _die(how)


def _die(how: str) -> None:
    match how:
        case "segfault":
            crash()
        case "exit":
            os._exit(7)
        case "abort":
            os.abort()
        case "print and exit":
            print("famous last words")
            os._exit(1)
        case "kill":
            os.kill(os.getpid(), 9)
        case "garbage":
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b"\0\0\0\4oops" * 10)
                except OSError:
                    continue
            time.sleep(60)


@tasks.task("family", isolate="process", max_attempts=1, timeout=3600)
def family(place: str) -> None:
    """Start a process that would outlive this one, and kill this one."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(place).write_text(str(child.pid), encoding="utf-8")
    os._exit(3)


@tasks.task("eat", isolate="process", max_attempts=1, memory_limit=LIMIT)
def eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(1 << 20))


@tasks.task("eat.later", isolate="process", max_attempts=1, memory_limit=LIMIT)
async def eat_later() -> None:
    await asyncio.sleep(0)
    eaten = []
    while True:
        eaten.append(bytearray(1 << 20))


@tasks.task("eat.for_good", isolate="process", memory_limit=LIMIT, permanent_on=MemoryError)
def eat_for_good() -> None:
    bytearray(1 << 30)


@tasks.task("eat.unlimited", isolate="process", max_attempts=1)
def eat_unlimited(size: int) -> int:
    bytearray(size)
    return os.getpid()


@tasks.task("eat.little", isolate="process", max_attempts=1, memory_limit=LIMIT)
def eat_little() -> int:
    return os.getpid()


@tasks.task("eat.little.later", isolate="process", max_attempts=1, memory_limit=LIMIT)
async def eat_little_later() -> int:
    await asyncio.sleep(0)
    return os.getpid()


# --- not stopping ---------------------------------------------------------------------------------------------------


def hold_gil(seconds: float) -> None:
    """Sleep in C without releasing the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@tasks.task("hold", isolate="process", max_attempts=2, timeout=3600)
def hold(started: str, seconds: float) -> str:
    mark_started(started)
    hold_gil(seconds)
    return "held"


@tasks.task("hold.until", isolate="process", max_attempts=2, timeout=3600)
def hold_until(started: str, proceed: str) -> str:
    """Wait in C for a writer of the named pipe *proceed* without releasing the GIL."""
    mark_started(started)
    ctypes.PyDLL(None).open(proceed.encode(), os.O_RDONLY)
    return "held"


@tasks.task("hold.short", isolate="process", max_attempts=1, timeout=0.1)
def hold_short(started: str) -> None:
    mark_started(started)
    hold_gil(600)


@tasks.task("ignore", isolate="process", timeout=3600)
def ignore(started: str) -> None:
    mark_started(started)
    while True:
        time.sleep(0.01)


@tasks.task("ignore.later", isolate="process", timeout=3600)
async def ignore_later(started: str) -> None:
    mark_started(started)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


@tasks.task("stops", isolate="process", timeout=3600)
def stops(context: Context, started: str, told: str) -> None:
    mark_started(started)
    context.wait_cancelled()
    note(told, context)
    context.raise_if_cancelled()


@tasks.task("stops.async", isolate="process", timeout=3600)
async def stops_async(context: Context, started: str, told: str) -> None:
    mark_started(started)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(told, context)
        raise


tasks.task("stops.short", isolate="process", timeout=0.2)(stops.function)
tasks.task("stops.short.async", isolate="process", timeout=0.2)(stops_async.function)


@tasks.task("linger", isolate="process", timeout=3600)
def linger_on(started: str, proceed: str) -> str:
    mark_started(started)
    linger(proceed)
    return "at last"


# --- the store ------------------------------------------------------------------------------------------------------


@tasks.task("effect", isolate="process", max_attempts=1)
def effect(context: Context, number: int, then: str = "return") -> str:
    with context.transaction() as transaction:
        transaction.execute(f"insert into effects (number) values ({int(number)})")
        transaction.enqueue("echo", {"value": number})
    if then != "return":
        _die(then)
    return "written"


@tasks.task("effect.later", isolate="process", max_attempts=1)
async def effect_later(context: Context, number: int) -> str:
    async with context.transaction() as transaction:
        await transaction.execute(f"insert into effects (number) values ({int(number)})")
    return "written"


# --- suspects -------------------------------------------------------------------------------------------------------


@tasks.task("poison", max_attempts=3, backoff=AT_ONCE)
def poison(started: str) -> None:
    """Kill its process after its neighbours have started; the task does not set `isolate`."""
    for neighbour in range(3):
        linger(f"{started}{neighbour}")
    crash()


@tasks.task("neighbour", max_attempts=2, backoff=AT_ONCE)
def neighbour(context: Context, started: str) -> int:
    """Run beside the killing job; the second attempt is done."""
    if context.attempt == 1:
        mark_started(started)
        time.sleep(600)
    return os.getpid()


# --- growing --------------------------------------------------------------------------------------------------------

_grown: list[bytes] = []


@tasks.task("grow", isolate="process")
def grow(size: int) -> None:
    """Keep memory allocated, as a leak would."""
    _grown.append(b"x" * size)


# --- output ---------------------------------------------------------------------------------------------------------


@tasks.task("emit", isolate="process")
def emit(context: Context, texts: list[str]) -> None:
    for text in texts:
        context.emit(text)


@tasks.task("emit.later", isolate="process")
async def emit_later(context: Context, texts: list[str]) -> None:
    for text in texts:
        context.emit(text)
        await asyncio.sleep(0)


@tasks.task("emit.live", isolate="process")
def emit_live(context: Context, place: str) -> None:
    context.emit("now")
    linger(place)
    context.emit(" then")


@tasks.task("emit.die", isolate="process", max_attempts=1)
def emit_and_die(context: Context) -> None:
    context.emit("last words")
    os._exit(7)


@tasks.task("emit.within", isolate="process", max_attempts=1)
def emit_within(context: Context, *, fails: bool = False) -> None:
    context.emit("before ")
    with context.transaction():
        context.emit("within ")
    context.emit("after")
    if fails:
        raise ValueError("rolled back")


# --- artifacts ------------------------------------------------------------------------------------------------------


@tasks.task("inputs", isolate="process")
def read_inputs(context: Context) -> str:
    text = context.artifact("in").data.decode()
    context.follow_up(NewJob("next", artifacts=[Artifact("in", b"\x00\xff", "image/png")]))
    return text


@tasks.task("inputs.later", isolate="process")
async def read_inputs_later(context: Context) -> str:
    return (await context.artifact_async("in")).data.decode()


@tasks.task("parents", isolate="process")
def read_parents(context: Context) -> list[str]:
    return [job.id for job in context.parents()]
