"""Fingerprints: which failures are the same one, from the kind, the exception, the user's frames and the message."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.domain import failures, strict_json
from holdfast.domain.failures import Failure

_FRAMES_MAX: Final = 3
_MESSAGE_CHARS_MAX: Final = 300
# Their messages name a worker or repeat another failure: all of a kind are the same failure.
_SAME_BY_REASON: Final = frozenset(
    (failures.LEASE_EXPIRED, failures.WORKER_CUT_OFF, failures.DEADLINE_PASSED, failures.DEPENDENCY_FAILED)
)
_FRAME: Final = re.compile(r'^  File "(?P<path>[^"\n]+)", line \d+, in (?P<function>\S+)', re.MULTILINE)
_LIBRARY: Final = re.compile(r"[/\\](?:site-packages|dist-packages|python3(?:\.\d+)?|holdfast)[/\\]|^<")
_SLASH: Final = re.compile(r"[/\\]")
_EXCEPTION: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
_WITH_DIGIT: Final = re.compile(r"[^\W\d_]*\d\w*")
_BLANKS: Final = re.compile(r"#(?:[-.,:/_+]+#)+")
_ONE_NUMBER: Final = re.compile(r"([^\W\d_]+)\d+")


class FailurePrint(NamedTuple):
    """What failures with the same fingerprint have in common."""

    fingerprint: str
    """16 hexadecimal digits."""
    kind: str
    error: str
    """The class of the exception, or the reason of a failure without one."""
    frames: tuple[str, ...]
    """The innermost calls in the user's code, outermost first, each as `file.py function`."""
    message: str
    """The message, with `#` in place of numbers and ids."""


def failure_print(kind: str, failure: Failure) -> FailurePrint:
    """Return the fingerprint of a failure of a job of *kind*, and from what it was made."""
    trace = failure.traceback or ""
    error = _exception(trace) or failure.reason
    frames = _user_frames(trace)
    message = blank(failure.message)
    same = (kind, error, failure.reason, list(frames), "" if failure.reason in _SAME_BY_REASON else message)
    digest = hashlib.sha256(strict_json.compact(same).encode("utf-8", "surrogatepass")).hexdigest()
    return FailurePrint(digest[:16], kind, error, frames, message)


def blank(message: str) -> str:
    """Return *message* on one line with `#` in place of numbers and ids, in which the same failures differ."""
    text = " ".join(message[: 4 * _MESSAGE_CHARS_MAX].split())
    text = _BLANKS.sub("#", _WITH_DIGIT.sub(_blanked, text))
    return text[:_MESSAGE_CHARS_MAX]


def _blanked(word: re.Match[str]) -> str:
    # `order42` and `order43` differ in their number only; `7f3ac1` is an id.
    named = _ONE_NUMBER.fullmatch(word[0])
    return f"{named[1]}#" if named else "#"


def _exception(trace: str) -> str | None:
    """Return the class of the exception at the end of a traceback, without its module."""
    *_, last = _FRAME.split(trace)
    names = [match["name"] for match in _EXCEPTION.finditer(last if trace else "")]
    return names[0].rpartition(".")[2] if names else None


def _user_frames(trace: str) -> tuple[str, ...]:
    frames = [(match["path"], match["function"]) for match in _FRAME.finditer(trace)]
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    return tuple(f"{_SLASH.split(path)[-1]} {function}" for path, function in own[-_FRAMES_MAX:])


# --- patterns ------------------------------------------------------------------------------------------------------


class FailureCount(NamedTuple):
    """The failures with one fingerprint of one tenant in one lane."""

    print: FailurePrint
    tenant: str
    lane: str
    first_at_ms: int
    last_at_ms: int
    failures: int
    """Counted up to a limit."""
    this_hour: int
    hour_before: int
    example: str | None
    """The id of the newest job that failed so, unless it was deleted."""


def merged(counts: Iterable[FailureCount]) -> list[tuple[FailureCount, Sequence[str], Sequence[str]]]:
    """Add up the counts with the same fingerprint; return each sum with its tenants and lanes, newest first."""
    parts: dict[str, list[FailureCount]] = {}
    for one in counts:
        parts.setdefault(one.print.fingerprint, []).append(one)
    sums = []
    for same in parts.values():
        newest = max(same, key=lambda one: one.last_at_ms)
        total = newest._replace(
            first_at_ms=min(one.first_at_ms for one in same),
            failures=sum(one.failures for one in same),
            this_hour=sum(one.this_hour for one in same),
            hour_before=sum(one.hour_before for one in same),
        )
        sums.append((total, sorted({one.tenant for one in same}), sorted({one.lane for one in same})))
    return sorted(sums, key=lambda one: (-one[0].last_at_ms, one[0].print.fingerprint))
