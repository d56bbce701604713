"""The public values: immutable, without a dict, and neither iterable nor ordered unless they are collections."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields, is_dataclass
from typing import is_typeddict

import pytest

import holdfast
from holdfast import Job, NewJob
from holdfast.domain import strict_json
from holdfast.domain.job import JobRow, job_of
from holdfast.domain.new_job import check_job, new_job
from holdfast.types import AsyncEnqueued, Enqueued, Now
from tests.project.sources import assert_none

COLLECTIONS = {"EventPage", "JobPage", "OutputPage", "SessionPage", "TaskRegistry"}
CLASSES = {
    name: value
    for module in (holdfast, holdfast.types)
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name)) and not is_typeddict(value)
}
BEHAVIOUR = ("__iter__", "__len__", "__getitem__", "__contains__")
ORDER = ("__lt__", "__le__", "__gt__", "__ge__")


def row(**options: object) -> JobRow:
    checked = check_job(NewJob("mail", {"to": "ada"}, **options), fresh_id="one")  # type: ignore[arg-type]
    return new_job(checked, 7, "default", Now(1_700_000_000_000, 1_700_000_000_000))


def test_only_collections_can_be_iterated_and_nothing_can_be_ordered() -> None:
    assert_none(
        (name, method)
        for name, value in CLASSES.items()
        for method in (*BEHAVIOUR, *ORDER)
        if getattr(value, method, None) is not getattr(object, method, None)
        and not (name in COLLECTIONS and method in BEHAVIOUR)
    )


def test_dataclasses_are_frozen_and_slotted_and_have_no_field_in_milliseconds() -> None:
    # The attributes of these are properties, which the next tests examine.
    with_properties = (Job, Enqueued, AsyncEnqueued)
    values = {name: value for name, value in CLASSES.items() if is_dataclass(value) and value not in with_properties}
    assert len(values) > 30
    assert_none(
        name
        for name, value in values.items()
        if not value.__dataclass_params__.frozen or "__slots__" not in vars(value)  # type: ignore[attr-defined]
    )
    # A lease's length is an int, so that equal claims have equal lengths; a clock reads two clocks of one kind.
    lengths = {"lease_ms", "wall_ms"}
    assert_none(
        (name, field.name)
        for name, value in values.items()
        for field in fields(value)
        if field.name.endswith(("_ms", "_json")) and field.name not in lengths
    )


@pytest.mark.parametrize("enqueued", [Enqueued, AsyncEnqueued])
def test_an_enqueued_job_has_documented_read_only_attributes(enqueued: type[object]) -> None:
    attributes = {name: value for name, value in vars(enqueued).items() if not name.startswith("_")}
    assert {name for name, value in attributes.items() if isinstance(value, property)} == {"id", "job", "created"}
    assert_none(name for name, value in attributes.items() if not value.__doc__)
    assert "__slots__" in vars(enqueued)


def test_a_job_has_documented_read_only_attributes_and_nothing_else() -> None:
    attributes = {name: value for name, value in vars(Job).items() if not name.startswith("_")}
    assert 34 <= len(attributes) <= 40
    assert_none(name for name, value in attributes.items() if not isinstance(value, property) or not value.__doc__)
    assert_none(name for name in attributes if name.endswith(("_json", "_ms")))
    with pytest.raises(AttributeError):
        job_of(row()).state = "done"  # type: ignore[misc]


def test_a_job_equals_a_job_with_the_same_row_and_can_be_copied() -> None:
    one = job_of(row(tags={"a": "1"}))
    assert one == job_of(row(tags={"a": "1"})) != job_of(row(tags={"a": "2"}))
    assert hash(one) == hash(job_of(row(tags={"a": "1"})))
    assert one == copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert repr(one) == "<Job one mail ready, attempt 0 of 5>"


def test_making_a_job_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = row(tags={"a": "1"})
    monkeypatch.setattr(strict_json, "decode", lambda text: pytest.fail(f"decoded {text}"))
    assert job_of(stored).id == "one"
