"""Comparing a job with what a test says of it: where it differs, word by word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.domain import validation
from holdfast.domain.job import Job
from holdfast.tasks.json_encode import Unfit, write


class Miss(NamedTuple):
    """One place in which a job is not as wanted."""

    place: str
    wanted: object
    found: object

    @property
    def weight(self) -> int:
        """How far it keeps a job from being the one that was meant."""
        return {"kind": 100, "state": 3}.get(self.place, 1)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()


def misses(job: Job, wanted: Mapping[str, Any]) -> list[Miss]:
    """Return where *job* differs from what is *wanted*; nothing if it fits."""
    found: list[Miss] = []
    for word, value in wanted.items():
        if word == "states":
            if job.state not in value:
                found.append(Miss("state", _listed(value), job.state))
        elif word in _PARTLY:
            _compare(word, _written(value), getattr(job, word), found)
        else:
            is_so, should_be = _EXACT.get(word, lambda job, word=word: getattr(job, word))(job), value
            if word in _NORMAL:
                should_be = _NORMAL[word](value)
            if is_so != should_be:
                found.append(Miss(word, should_be, is_so))
    return found


_PARTLY: Final = frozenset(("payload", "headers", "tags"))
_EXACT: Final[dict[str, Callable[[Job], object]]] = {
    "job_id": lambda job: job.id,
    "delay": lambda job: (job.due_at_ms - job.enqueued_at_ms) / 1000,
    "requires": lambda job: sorted(job.requires),
}
_NORMAL: Final[dict[str, Callable[[Any], object]]] = {
    "delay": lambda value: validation.duration_ms(value, "delay") / 1000,
    "requires": sorted,
}


def _compare(place: str, wanted: object, found: object, missed: list[Miss]) -> None:
    """Note where *found* lacks what is *wanted*: of an object only the members that are named."""
    if found is NOTHING:
        missed.append(Miss(place, wanted, found))
    elif isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for name, value in wanted.items():
            _compare(f"{place}.{name}", value, found.get(name, NOTHING), missed)
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (value, other) in enumerate(zip(wanted, found, strict=True)):
            _compare(f"{place}[{index}]", value, other, missed)
    # The wanted side stands first, so that it may be something that equals many. True is not 1 in JSON.
    elif wanted != found or (isinstance(wanted, int) and isinstance(wanted, bool) != isinstance(found, bool)):
        missed.append(Miss(place, wanted, found))


def _written(value: object) -> object:
    """Return *value* as the serializer would write it, but for what it cannot, such as something that equals all."""
    if isinstance(value, Mapping):
        return {str(name): _written(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_written(member) for member in value]
    try:
        return write(value)
    except Unfit:
        return value


def _listed(states: Any) -> object:
    return states[0] if len(states) == 1 else tuple(states)
