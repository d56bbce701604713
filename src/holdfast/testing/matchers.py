"""Compares a job with the fields that a test expects, and lists the differences."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.domain import validation
from holdfast.domain.job import Job
from holdfast.tasks.json_encode import InvalidValue, encode


class Mismatch(NamedTuple):
    """One difference between a job and the expected fields."""

    path: str
    expected: object
    found: object

    @property
    def weight(self) -> int:
        """The weight of the difference when jobs are ranked."""
        return {"kind": 100, "state": 3}.get(self.path, 1)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()


def mismatches(job: Job, expected: Mapping[str, Any]) -> list[Mismatch]:
    """Return the differences between *job* and the *expected* fields; an empty list if it matches."""
    found: list[Mismatch] = []
    for name, value in expected.items():
        if name == "states":
            if job.state not in value:
                found.append(Mismatch("state", _one_or_all(value), job.state))
        elif name in _PARTIAL:
            _compare(name, _encode_members(value), getattr(job, name), found)
        else:
            actual, expected_value = _GETTERS.get(name, lambda job, name=name: getattr(job, name))(job), value
            if name in _NORMALIZE:
                expected_value = _NORMALIZE[name](value)
            if actual != expected_value:
                found.append(Mismatch(name, expected_value, actual))
    return found


_PARTIAL: Final = frozenset(("payload", "headers", "tags"))
_GETTERS: Final[dict[str, Callable[[Job], object]]] = {
    "job_id": lambda job: job.id,
    "delay": lambda job: (job.due_at - job.enqueued_at).total_seconds(),
    "requires": lambda job: sorted(job.requires),
}
_NORMALIZE: Final[dict[str, Callable[[Any], object]]] = {
    "delay": lambda value: validation.duration_ms(value, "delay") / 1000,
    "requires": sorted,
}


def _compare(path: str, expected: object, found: object, differences: list[Mismatch]) -> None:
    """Add the differences between *found* and *expected*; of an object only the expected members are compared."""
    if found is NOTHING:
        differences.append(Mismatch(path, expected, found))
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name, value in expected.items():
            _compare(f"{path}.{name}", value, found.get(name, NOTHING), differences)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (value, other) in enumerate(zip(expected, found, strict=True)):
            _compare(f"{path}[{index}]", value, other, differences)
    # The expected value comes first, because its __eq__ may match many values. True is not 1 in JSON.
    elif expected != found or (isinstance(expected, int) and isinstance(expected, bool) != isinstance(found, bool)):
        differences.append(Mismatch(path, expected, found))


def _encode_members(value: object) -> object:
    """Return *value* as the serializer encodes it; values that it cannot encode, such as matchers, are kept."""
    if isinstance(value, Mapping):
        return {str(name): _encode_members(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encode_members(member) for member in value]
    try:
        return encode(value)
    except InvalidValue:
        return value


def _one_or_all(states: Any) -> object:
    return states[0] if len(states) == 1 else tuple(states)
