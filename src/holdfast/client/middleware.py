"""Middleware: a program's own code around each enqueue, claim, run and settle of a queue, such as tracing.

A method is a generator that yields once: the call happens at the `yield`. It awaits nothing, so one definition serves
sync and async callers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgenfunction, isgeneratorfunction, unwrap
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from holdfast.domain import errors, limits, strict_json, validation
from holdfast.domain.claims import Claim, ClaimRequest, Settlement
from holdfast.domain.codec import Codec
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome, Outcome
from holdfast.domain.results import StoredJob
from holdfast.domain.session_claims import SessionRequest
from holdfast.domain.strict_json import Json
from holdfast.tasks.context import Context

log = logging.getLogger("holdfast.middleware")

Answer = TypeVar("Answer")

CheckedSettlements: TypeAlias = Sequence[tuple[Claim, CheckedOutcome]]
"""Claims with their validated outcomes."""
EndedAs: TypeAlias = Literal["done", "failed", "deferred", "released", "lost"]
"""How an attempt of a worker ended; `lost` with its lease, in all other cases as it was settled."""


class JobDraft:
    """A validated job that is about to be stored, for `Middleware.enqueue`. Its headers and tags may be changed."""

    __slots__ = ("_checked", "_headers", "_tags", "claim")

    claim: Claim | None
    """The claim whose settlement stores the job as a follow-up; None if the job is enqueued."""

    def __init__(self, checked: CheckedJob, claim: Claim | None = None) -> None:
        self._checked = checked
        self._headers: dict[str, str] | None = None
        self._tags: dict[str, str] | None = None
        self.claim = claim

    def __repr__(self) -> str:
        return f"<JobDraft {self.id} {self.kind}>"

    @property
    def id(self) -> str:
        """Its id, chosen by the caller or generated. An entry of a session gets another when it is stored."""
        return self._checked.id

    @property
    def kind(self) -> str:
        """The kind of work."""
        return self._checked.settings.route.kind

    @property
    def lane(self) -> str:
        """Its lane, unless the catalog of kinds has another for it."""
        return self._checked.settings.route.lane

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self._checked.settings.tenant

    @property
    def dedupe_key(self) -> str | None:
        """Its dedupe key, if any."""
        return self._checked.dedupe_key

    @property
    def session(self) -> str | None:
        """The session it is an entry of, if any."""
        return None if self._checked.entry is None else self._checked.entry.session

    @property
    def payload(self) -> Json:
        """The payload, decoded at each access; changing it has no effect."""
        return strict_json.decode(self._checked.payload_json)

    @property
    def headers(self) -> dict[str, str]:
        """The headers; changes of this dict are stored."""
        if self._headers is None:
            self._headers = _strings(self._checked.settings.headers_json)
        return self._headers

    @property
    def tags(self) -> dict[str, str]:
        """The tags; changes of this dict are stored."""
        if self._tags is None:
            self._tags = _strings(self._checked.settings.tags_json)
        return self._tags

    def _changed(self, field: str) -> CheckedJob:
        """Return the job with its headers and tags; raise `InvalidInput` if they are invalid."""
        if self._headers is None and self._tags is None:
            return self._checked
        settings = self._checked.settings
        if self._headers is not None:
            checked = validation.string_map(
                self._headers, f"{field}headers", limits.HEADERS_MAX, limits.HEADER_VALUE_CHARS_MAX
            )
            settings = settings._replace(headers_json=strict_json.compact(checked))
        if self._tags is not None:
            checked = validation.string_map(self._tags, f"{field}tags", limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX)
            settings = settings._replace(tags_json=strict_json.compact(checked))
        return self._checked._replace(settings=settings)


def _strings(text: str) -> dict[str, str]:
    strings: dict[str, str] = {} if text == "{}" else strict_json.decode(text)
    return strings


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """A call that leases jobs, or entries of sessions."""

    of: Literal["jobs", "sessions"]
    """What it leases: jobs, or entries of a session."""
    worker: str
    """The name of the worker that claims."""
    lanes: tuple[str, ...] | None
    """The lanes; None for a claim of a named session."""
    kinds: tuple[str, ...] | None
    """The kinds; None means any."""
    tenant: str | None
    """The tenant; None means any."""
    limit: int
    """The maximum number of jobs or entries."""
    session: str | None = None
    """The session, if the call names one."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt of a worker that has ended: it was settled, or its lease is lost."""

    claims: Sequence[Claim]
    """The claim of its job, or of each entry of a session's turn."""
    outcome: EndedAs
    """How it ended."""
    jobs: Sequence[Job]
    """The jobs after the settlement; empty if the worker does not know them, as after a lost lease."""
    seconds: float | None
    """How long the handler ran; None if it did not run."""
    isolated: bool
    """Whether the handler ran in its own process."""

    @property
    def claim(self) -> Claim:
        """The claim of its job, or of the first entry of the turn."""
        return self.claims[0]


class Middleware:
    """The base class of middleware: override the methods you need, and pass objects to `connect(middleware=[…])`.

    Each method except `ended` is a generator that yields once. What is before the `yield` runs before the call, what
    is after it afterwards. The `yield` returns the result of the call, or raises its error; a method cannot suppress
    the error. The first object of the list is the outermost.

    `enqueue`, `claim` and `settle` run where the call is made, in a worker in its event loop: they must not block. An
    error that `enqueue` raises before its `yield` refuses the jobs. All other errors of these methods and of `ended`
    are logged and change nothing.
    """

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:  # noqa: ARG002
        """Run around a call that stores *jobs*, all or none. Headers and tags may be changed before the `yield`.

        The `yield` returns a `StoredJob` for each, in order. The follow-ups of a settlement are such a call too,
        within `settle`; the store does not report them, so the `yield` then returns an empty list.
        """
        yield

    def claim(self, call: ClaimCall) -> Generator[None, Sequence[Claim], None]:  # noqa: ARG002
        """Run around a call that leases jobs, or entries of a session; the `yield` returns the claims, if any."""
        yield

    def run(self, context: Context) -> Generator[None, Any, None]:  # noqa: ARG002
        """Run around a handler, in its thread, task or isolated process; the `yield` returns what it returned.

        An error of this method is an error of the handler: it decides the outcome of the attempt, and may be a
        `Retry`, `Defer` or `Fail`. For an async handler it runs in the event loop, and must not block.
        """
        yield

    async def run_async(self, context: Context) -> AsyncGenerator[None, Any]:  # noqa: ARG002
        """Run around an async handler instead of `run`, if it is overridden: an async generator that yields once."""
        yield

    def settle(
        self,
        outcomes: Sequence[tuple[Claim, Outcome]],  # noqa: ARG002
    ) -> Generator[None, Sequence[Settlement], None]:
        """Run around a call that records outcomes of jobs, or of the entries of a turn.

        The `yield` returns a `Settlement` for each, in order. Inside a transaction it returns before the commit.
        """
        yield

    def ended(self, attempt: EndedAttempt) -> None:
        """Handle the end of an attempt of a worker, after its settlement; called in the worker's event loop."""


def check_middleware(middleware: Iterable[object]) -> tuple[Middleware, ...]:
    """Return *middleware* as a tuple, or raise `InvalidInput` that names the invalid one."""
    if isinstance(middleware, str | bytes) or not isinstance(middleware, Iterable):
        raise errors.InvalidInput("middleware", f"must be a list, not {type(middleware).__name__}")
    checked = []
    for index, one in enumerate(middleware):
        if not isinstance(one, Middleware):
            hint = "; pass an object, not the class" if isinstance(one, type) else ""
            raise errors.InvalidInput(f"middleware[{index}]", f"must be a Middleware, not {errors.shown(one)}{hint}")
        for name in ("enqueue", "claim", "run", "settle"):
            if not isgeneratorfunction(unwrap(getattr(type(one), name))):
                raise errors.InvalidInput(
                    f"middleware[{index}].{name}", "must be a generator function that yields once"
                )
        if not isasyncgenfunction(unwrap(type(one).run_async)):
            raise errors.InvalidInput(
                f"middleware[{index}].run_async", "must be an async generator function that yields once"
            )
        checked.append(one)
    return tuple(checked)


def overriding(middleware: Sequence[Middleware], *names: str) -> tuple[Middleware, ...]:
    """Return those of *middleware* that override one of the methods *names*."""
    return tuple(
        one for one in middleware if any(getattr(type(one), name) is not getattr(Middleware, name) for name in names)
    )


_TWICE: Final = "a middleware method must yield exactly once"


def claim_call(request: ClaimRequest | SessionRequest) -> ClaimCall:
    """Return the call that *request* describes."""
    if isinstance(request, ClaimRequest):
        return ClaimCall("jobs", request.worker, request.lanes, request.kinds, request.tenant, request.limit)
    limit = request.criteria.limit
    return ClaimCall("sessions", request.worker, request.lanes, request.kinds, request.tenant, limit, request.session)


# --- enqueue, claim and settle -------------------------------------------------------------------------------------


class Around(Generic[Answer]):
    """Runs generators around a block, which sets `answer`. Their errors are logged, except refusals at the start."""

    __slots__ = ("_calls", "_refusing", "_running", "answer")

    answer: Answer

    def __init__(self, calls: Sequence[Callable[[], Generator[None, Answer, None]]], *, refusing: bool) -> None:
        self._calls = calls
        self._refusing = refusing
        """Whether an error before the `yield` is raised, after the generators started before have received it."""
        self._running: list[Generator[None, Answer, None]] = []

    def __enter__(self) -> Around[Answer]:
        for call in self._calls:
            try:
                steps = call()
                if next(steps, self) is self:
                    raise RuntimeError(_TWICE)
            except BaseException as error:
                if self._refusing or not isinstance(error, Exception):
                    self.__exit__(type(error), error, None)
                    raise
                log.exception("middleware failed before a call, which continues without it")
            else:
                self._running.append(steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt: BaseException | None = None
        while self._running:
            steps = self._running.pop()
            try:
                # A copy: what a method does with its list must not change the result of the call.
                _finish(steps, error, None if error is not None else copy(self.answer))
            except Exception:
                log.exception("middleware failed after a call, whose result stays")
            except BaseException as raised:  # such as KeyboardInterrupt
                interrupt = error = raised
        if interrupt is not None:
            raise interrupt


def _finish(steps: Generator[None, Any, None], error: BaseException | None, answer: object) -> None:
    """Continue a generator with the answer of its call, or with the error; raise only what it raises instead."""
    try:
        if error is None:
            steps.send(answer)
        else:
            steps.throw(error)
    except StopIteration:
        return
    except BaseException as raised:
        if error is None or not _is_same(raised, error):
            raise
        return
    steps.close()
    raise RuntimeError(_TWICE)


def _is_same(raised: BaseException, error: BaseException) -> bool:
    # A generator that does not catch StopIteration raises a RuntimeError from it.
    return raised is error or (isinstance(error, StopIteration | StopAsyncIteration) and raised.__cause__ is error)


class EnqueueCall:
    """A context in which a call stores `jobs` and sets `answer`."""

    jobs: list[CheckedJob]
    """The jobs to store, with the changes of middleware, encoded."""
    answer: Sequence[StoredJob] = ()

    def __init__(
        self,
        middleware: Sequence[Middleware],
        codec: Codec | None,
        jobs: Sequence[CheckedJob],
        claim: Claim | None = None,
    ) -> None:
        self._codec = codec
        self._drafts = [JobDraft(job, claim) for job in jobs]
        self._field = "follow_ups[{}]." if claim is not None else "jobs[{}]." if len(jobs) > 1 else ""
        calls = [partial(one.enqueue, list(self._drafts)) for one in overriding(middleware, "enqueue")]
        self._around: Around[Sequence[StoredJob]] = Around(calls, refusing=True)

    def __enter__(self) -> EnqueueCall:
        self._around.__enter__()
        try:
            self.jobs = [self._changed(draft, index) for index, draft in enumerate(self._drafts)]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _changed(self, draft: JobDraft, index: int) -> CheckedJob:
        field = self._field.format(index)
        changed = draft._changed(field)  # noqa: SLF001  # not for programs, which get the draft
        return changed if self._codec is None else changed.encoded(self._codec, field)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._around.answer = self.answer
        self._around.__exit__(kind, error, trace)


class SettleCall:
    """A context in which a call settles `outcomes` and passes the result to `answered`."""

    outcomes: list[tuple[Claim, CheckedOutcome]]
    """The outcomes to store, with the changes of middleware to their follow-ups, encoded; without the refused."""

    def __init__(self, middleware: Sequence[Middleware], codec: Codec | None, outcomes: CheckedSettlements) -> None:
        self._codec = codec
        self.outcomes = []
        self._given = outcomes
        self._middleware = middleware
        pairs = [(claim, checked.outcome) for claim, checked in outcomes]
        calls = [partial(one.settle, list(pairs)) for one in overriding(middleware, "settle")]
        self._around: Around[Sequence[Settlement]] = Around(calls, refusing=False)
        self._follow_ups: dict[int, EnqueueCall] = {}
        self._refused: dict[int, Settlement] = {}
        """The settlements that were refused before the call, by index."""
        self._settlements: list[Settlement] = []

    def __enter__(self) -> SettleCall:
        self._around.__enter__()
        try:
            for index, (claim, checked) in enumerate(self._given):
                try:
                    self.outcomes.append((claim, self._prepared(index, claim, checked)))
                except Exception as error:  # of a program's own code
                    self._refused[index] = Settlement(claim, error=_refusal(error))
        except BaseException as error:  # such as KeyboardInterrupt
            self.__exit__(type(error), error, None)
            raise
        return self

    def _prepared(self, index: int, claim: Claim, checked: CheckedOutcome) -> CheckedOutcome:
        if checked.follow_ups:
            call = EnqueueCall(self._middleware, None, checked.follow_ups, claim)
            call.__enter__()
            self._follow_ups[index] = call
            checked = checked._replace(follow_ups=tuple(call.jobs))
        return checked if self._codec is None else checked.encoded(self._codec)

    def raise_refused(self) -> None:
        """Raise the first refusal, for a call that settles all or nothing."""
        for refused in self._refused.values():
            if refused.error is not None:
                raise refused.error

    def answered(self, settled: Iterable[Settlement]) -> list[Settlement]:
        """Record the settlements of `outcomes`; return those of all outcomes, in order."""
        rest = iter(settled)
        self._settlements = [self._refused.get(index) or next(rest) for index in range(len(self._given))]
        return self._settlements

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for index, call in reversed(self._follow_ups.items()):
                own = self._settlements[index].error if error is None else error
                call.__exit__(None if own is None else type(own), own, None)
        except BaseException as raised:  # such as KeyboardInterrupt
            error = raised
            raise
        finally:
            self._around.answer = self._settlements
            self._around.__exit__(None if error is None else type(error), error, None)


def _refusal(error: Exception) -> errors.HoldfastError:
    """Return the error of a settlement whose follow-ups middleware refused."""
    if isinstance(error, errors.HoldfastError):
        return error
    refusal = errors.InvalidInput("follow_ups", f"were refused by middleware: {type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal


# --- handlers ------------------------------------------------------------------------------------------------------


def around_handler(
    middleware: Sequence[Middleware], context: Context, function: Callable[..., Any], *, is_async: bool
) -> Callable[..., Any]:
    """Return *function*, a handler, with the methods `run` of *middleware* around it."""
    enclosing = overriding(middleware, "run", "run_async") if is_async else overriding(middleware, "run")
    if not enclosing:
        return function
    if not is_async:
        return lambda *args, **kwargs: _run(enclosing, context, partial(function, *args, **kwargs))

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await _run_async(enclosing, context, partial(function, *args, **kwargs))

    return run_async


def _run(middleware: Sequence[Middleware], context: Context, call: Callable[[], Any]) -> Any:
    if not middleware:
        return call()
    steps = _start(middleware[0], context)
    try:
        result = _run(middleware[1:], context, call)
    except BaseException as error:
        _finish(steps, error, None)
        raise
    _finish(steps, None, result)
    return result


async def _run_async(
    middleware: Sequence[Middleware], context: Context, call: Callable[[], Coroutine[Any, Any, Any]]
) -> Any:
    if not middleware:
        return await call()
    if type(middleware[0]).run_async is not Middleware.run_async:
        return await _run_around(middleware[0].run_async(context), middleware, context, call)
    steps = _start(middleware[0], context)
    try:
        result = await _run_async(middleware[1:], context, call)
    except BaseException as error:
        _finish(steps, error, None)
        raise
    _finish(steps, None, result)
    return result


async def _run_around(
    steps: AsyncGenerator[None, Any],
    middleware: Sequence[Middleware],
    context: Context,
    call: Callable[[], Coroutine[Any, Any, Any]],
) -> Any:
    try:
        await anext(steps)
    except StopAsyncIteration:
        raise RuntimeError(_TWICE) from None
    try:
        result = await _run_async(middleware[1:], context, call)
    except BaseException as error:
        await _finish_async(steps, error, None)
        raise
    await _finish_async(steps, None, result)
    return result


def _start(middleware: Middleware, context: Context) -> Generator[None, Any, None]:
    steps = middleware.run(context)
    if next(steps, steps) is steps:
        raise RuntimeError(_TWICE)
    return steps


async def _finish_async(steps: AsyncGenerator[None, Any], error: BaseException | None, answer: object) -> None:
    """Do what `_finish` does with an async generator."""
    try:
        if error is None:
            await steps.asend(answer)
        else:
            await steps.athrow(error)
    except StopAsyncIteration:
        return
    except BaseException as raised:
        if error is None or not _is_same(raised, error):
            raise
        return
    await steps.aclose()
    raise RuntimeError(_TWICE)


def report_ended(middleware: Sequence[Middleware], attempt: EndedAttempt) -> None:
    """Call the methods `ended`, and log their errors."""
    for one in middleware:
        try:
            one.ended(attempt)
        except Exception:  # of a program's own code
            log.exception("middleware failed after the end of an attempt of job %s", attempt.claim.job.id)
