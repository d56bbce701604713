"""Bad jobs: each is refused with a typed error that names its field, before a statement is executed.

Refusals before the first statement are tested on one engine; values at the limits are stored by each engine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import InvalidInput, NewJob, Queue
from holdfast.domain import limits
from tests.support.assertions import all_refused, label, refused

MEBIBYTE = 1 << 20
NAIVE = datetime(2030, 1, 1)  # intentionally without a time zone
AWARE = datetime(2030, 1, 1, tzinfo=UTC)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def circle() -> Any:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


class Thing:
    """A type that JSON does not support."""


BAD_PAYLOADS: dict[str, tuple[Any, str]] = {
    "nan": (float("nan"), "payload"),
    "infinity": ({"a": float("inf")}, "payload.a"),
    "minus-infinity": ([1, -float("inf")], "payload[1]"),
    "surrogate-high": ("\ud83d", "payload"),
    "surrogate-low-inside": ({"a": ["x\udc00y"]}, "payload.a[0]"),
    "surrogate-in-key": ({"\ud800": 1}, "payload (a key)"),
    "nul": ("a\0b", "payload"),
    "nul-deep": ({"a": {"b": "\0"}}, "payload.a.b"),
    "nul-in-key": ({"a\0": 1}, "payload (a key)"),
    "bytes": (b"x", "payload"),
    "bytearray": ({"a": bytearray(b"x")}, "payload.a"),
    "set": ({1, 2}, "payload"),
    "object": ({"a": [Thing()]}, "payload.a[0]"),
    "exception": (ValueError("x"), "payload"),
    "datetime": (AWARE, "payload"),
    "timedelta": (timedelta(1), "payload"),
    "complex": (1j, "payload"),
    "class": (Thing, "payload"),
    "function": (len, "payload"),
    "iterator": (iter([1]), "payload"),
    "integer-key": ({1: "a"}, "payload"),
    "float-key": ({"a": {1.5: "a"}}, "payload.a"),
    "none-key": ({None: "a"}, "payload"),
    "bool-key": ({True: "a"}, "payload"),
    "tuple-key": ({(1, 2): "a"}, "payload"),
    "keys-that-collide": ({"1": "a", 1: "b"}, "payload"),
    "depth-65": (nested(65), "payload"),
    "depth-100000": (nested(100_000), "payload"),
    "circular": (circle(), "payload"),
    "one-byte-too-large": ("x" * (MEBIBYTE - 1), "payload"),
    "too-large-in-bytes-only": ("é" * (MEBIBYTE // 2), "payload"),
    "1001-digits": (10**1000, "payload"),
    "minus-1001-digits": ({"a": -(10**1000)}, "payload.a"),
    "5000-digits": (10**5000, "payload"),
}
GOOD_PAYLOADS: dict[str, Any] = {
    "depth-64": nested(64),
    "largest": "x" * (MEBIBYTE - 2),
    "largest-in-bytes": "é" * (MEBIBYTE // 2 - 1),
    "2^63": 2**63,
    "-2^63-1": -(2**63) - 1,
    "2^64": [2**64],
    "1000-digits": {"a": 10**1000 - 1, "b": -(10**1000) + 1},
    "surrogate-pair-as-one-character": "😀",
}


class TestPayload:
    @pytest.mark.validation
    def test_a_payload_that_is_not_strict_json_is_refused(self, queue: Queue) -> None:
        # Collect garbage of earlier tests first: a finalizer would have no stack left deep in the recursion.
        gc.collect()
        all_refused(
            queue,
            (
                (name, field, partial(queue.enqueue, "work", payload, events="all"))
                for name, (payload, field) in BAD_PAYLOADS.items()
            ),
        )

    @pytest.mark.parametrize("name", GOOD_PAYLOADS)
    def test_a_payload_at_the_limits_is_returned_exactly(self, queue: Queue, name: str) -> None:
        enqueued = queue.enqueue("work", GOOD_PAYLOADS[name])
        assert queue.get(enqueued.id).payload == GOOD_PAYLOADS[name]


BAD_NAMES: dict[str, Any] = {
    "empty": "",
    "blank": " \u2003",
    "nul": "a\0",
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "delete": "a\x7f",
    "c1-control": "a\x85",
    "surrogate": "a\ud800",
    "10-kB": "x" * 10_000,
    "integer": 5,
    "bool": True,
    "bytes": b"name",
    "list": ["name"],
}
NAMED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "kind": lambda name: {"kind": name},
    "lane": lambda name: {"lane": name},
    "tenant": lambda name: {"tenant": name},
    "affinity": lambda name: {"affinity": name},
    "job_id": lambda name: {"job_id": name},
    "dedupe_key": lambda name: {"dedupe_key": name},
    "requires[1]": lambda name: {"requires": ["fine", name]},
}


def options(field: str, value: Any) -> dict[str, Any]:
    return {"kind": "work", field: value}


class TestNames:
    @pytest.mark.validation
    def test_an_invalid_name_is_refused_in_every_field(self, queue: Queue) -> None:
        all_refused(
            queue,
            (
                (f"{field}: {name}", field, partial(queue.enqueue, **{"kind": "work", **fields(BAD_NAMES[name])}))
                for field, fields in NAMED.items()
                for name in BAD_NAMES
            ),
        )

    @pytest.mark.parametrize(
        ("field", "chars"), [("kind", 200), ("lane", 200), ("tenant", 200), ("job_id", 200), ("dedupe_key", 500)]
    )
    def test_a_name_is_accepted_up_to_its_limit(self, queue: Queue, field: str, chars: int) -> None:
        with refused(queue, field):
            queue.enqueue(**options(field, "x" * (chars + 1)))
        assert queue.enqueue(**options(field, "x" * chars)).created

    @pytest.mark.validation
    def test_none_is_not_a_name(self, queue: Queue) -> None:
        for field in ("kind", "lane", "tenant"):
            with refused(queue, field):
                queue.enqueue(NewJob(**options(field, None)))


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"priority": 1_001}, "priority"),
    ({"priority": -1_001}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": 1.0}, "priority"),
    ({"priority": "1"}, "priority"),
    ({"priority": None}, "priority"),
    ({"priority": 2**63}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 1_001}, "max_attempts"),
    ({"max_attempts": True}, "max_attempts"),
    ({"max_attempts": 2.5}, "max_attempts"),
    ({"delay": -1}, "delay"),
    ({"delay": -0.001}, "delay"),
    ({"delay": timedelta(seconds=-1)}, "delay"),
    ({"delay": float("nan")}, "delay"),
    ({"delay": float("inf")}, "delay"),
    ({"delay": True}, "delay"),
    ({"delay": "5"}, "delay"),
    ({"delay": None}, "delay"),
    ({"delay": 366 * 86_400 + 1}, "delay"),
    ({"delay": timedelta.max}, "delay"),
    ({"delay": 10**400}, "delay"),
    ({"delay": AWARE}, "delay"),
    ({"run_at": NAIVE}, "run_at"),
    ({"run_at": 1_900_000_000}, "run_at"),
    ({"run_at": "2030-01-01T00:00:00Z"}, "run_at"),
    ({"run_at": None}, "run_at"),
    ({"run_at": AWARE.date()}, "run_at"),
    ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at"),
    ({"run_at": AWARE, "delay": 5}, "run_at"),
    ({"deadline": NAIVE}, "deadline"),
    ({"deadline": -1}, "deadline"),
    ({"deadline": True}, "deadline"),
    ({"deadline": "5"}, "deadline"),
    ({"deadline": float("nan")}, "deadline"),
    ({"requires": "gpu"}, "requires"),
    ({"requires": 5}, "requires"),
    ({"requires": None}, "requires"),
    ({"requires": [str(number) for number in range(17)]}, "requires"),
    ({"headers": {str(number): "" for number in range(33)}}, "headers"),
    ({"headers": [("a", "b")]}, "headers"),
    ({"headers": []}, "headers"),
    ({"headers": {"a": 1}}, "headers.a"),
    ({"headers": {"a": None}}, "headers.a"),
    ({"headers": {"a": "x" * 2_001}}, "headers.a"),
    ({"headers": {"a": "\0"}}, "headers.a"),
    ({"headers": {"a": "\ud800"}}, "headers.a"),
    ({"headers": {"": "x"}}, "headers (a key)"),
    ({"headers": {1: "x"}}, "headers (a key)"),
    ({"headers": {"x" * 201: "x"}}, "headers (a key)"),
    ({"tags": {str(number): "" for number in range(33)}}, "tags"),
    ({"tags": "a=b"}, "tags"),
    ({"tags": 0}, "tags"),
    ({"tags": {"a": b"x"}}, "tags.a"),
    ({"tags": {"a": ["x"]}}, "tags.a"),
    ({"tags": {"a": "x" * 501}}, "tags.a"),
    ({"tags": {"a\0": "x"}}, "tags (a key)"),
    ({"tags": {"\udfff": "x"}}, "tags (a key)"),
    ({"backoff": 5}, "backoff"),
    ({"backoff": {"base": 1}}, "backoff"),
    ({"on_duplicate": "replace"}, "on_duplicate"),
    ({"on_duplicate": "keep"}, "on_duplicate"),
    ({"on_duplicate": "ignore", "dedupe_key": "k"}, "on_duplicate"),
    ({"on_duplicate": None, "dedupe_key": "k"}, "on_duplicate"),
    ({"dedupe_scope": "tenant"}, "dedupe_scope"),
    ({"dedupe_scope": "lane", "dedupe_key": "k"}, "dedupe_scope"),
    ({"events": "some"}, "events"),
    ({"events": True}, "events"),
    ({"color": "red"}, "color"),
    ({"job-id": "a"}, "job-id"),
    ({"timeout": 5}, "timeout"),
]
LARGEST_OPTIONS: list[dict[str, Any]] = [
    {"requires": [str(number) for number in range(16)]},
    {"requires": ["same"] * 17},
    {"headers": {str(number): "x" * 2_000 for number in range(32)}},
    {"tags": {str(number): "é" * 500 for number in range(32)}},
    {"delay": 366 * 86_400},
    {"deadline": 366 * 86_400},
]


class TestOptions:
    @pytest.mark.validation
    def test_a_bad_option_is_refused_by_name(self, queue: Queue) -> None:
        all_refused(
            queue,
            (
                (options, field, partial(lambda given: queue.enqueue(NewJob("work", **given)), options))
                for options, field in BAD_OPTIONS
            ),
        )

    @pytest.mark.parametrize("option", ["delay", "priority", "lane", "tenant", "dedupe_key"])
    def test_a_common_option_that_is_none_was_not_given(self, queue: Queue, option: str) -> None:
        common: dict[str, Any] = {"delay": 60, "priority": 3, "lane": "mail", "tenant": "acme", "dedupe_key": "k"}
        task = queue.task("declared", **common)(lambda: None)

        nothing: dict[str, Any] = {option: None}
        job = queue.enqueue("declared", **nothing).job
        assert (job.state, job.priority, job.lane, job.tenant, job.dedupe_key) == (
            "scheduled",
            *(common[name] for name in ("priority", "lane", "tenant", "dedupe_key")),
        )
        assert task.kind == job.kind

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda queue, **options: queue.enqueue("work", **options), "a job"),
            (lambda queue, **options: queue.claim(**options), "a claim"),
            (lambda queue, **options: queue.sessions.claim("s", **options), "sessions.claim"),
            (lambda queue, **options: queue.sessions.claim_next(**options), "sessions.claim_next"),
        ],
    )
    def test_an_unknown_option_is_refused_with_a_suggestion(self, queue: Queue, call: Any, message: str) -> None:
        with pytest.raises(
            InvalidInput, match=rf"^tenent: unknown option; did you mean 'tenant'\?; the options of {message} are"
        ):
            call(queue, tenent="acme")
        with pytest.raises(InvalidInput, match=rf"^zzz: unknown option; the options of {message} are .*tenant"):
            call(queue, zzz=1)

    @pytest.mark.validation
    def test_in_a_call_of_many_the_item_is_named(self, queue: Queue) -> None:
        first = NewJob("work", events="all")
        all_refused(
            queue,
            (
                (options, f"jobs[1].{field}", partial(queue.enqueue_many, [first, {"kind": "work", **options}]))
                for options, field in BAD_OPTIONS
            ),
        )

    @pytest.mark.parametrize("options", LARGEST_OPTIONS, ids=label)
    def test_values_at_the_limits_are_accepted(self, queue: Queue, options: dict[str, Any]) -> None:
        enqueued = queue.enqueue("work", **options)
        assert queue.get(enqueued.id) == enqueued.job


class TestMany:
    @pytest.mark.validation
    def test_an_argument_that_is_no_list_of_jobs_is_refused(self, queue: Queue) -> None:
        bad: list[tuple[Any, str]] = [
            ([NewJob("work")] * 10_001, "jobs"),
            ("work", "jobs"),
            ({"kind": "work"}, "jobs"),
            (None, "jobs"),
            (5, "jobs"),
            ({NewJob}, "jobs"),
            ((NewJob("work") for _ in range(2)), "jobs"),
            ([NewJob("work"), "work"], "jobs[1].job"),
            ([NewJob("work"), None], "jobs[1].job"),
            ([NewJob("work"), ("work", 1)], "jobs[1].job"),
            ([{"payload": 1}], "jobs[0].kind"),
            ([{}], "jobs[0].kind"),
            ([{"kind": "work", 5: 5}], "jobs[0].5"),
            ([NewJob("work"), NewJob("work"), NewJob("work"), NewJob("work", b"x")], "jobs[3].payload"),
        ]
        all_refused(queue, ((jobs, field, partial(queue.enqueue_many, jobs)) for jobs, field in bad))

    @pytest.mark.validation
    def test_payloads_too_large_together_are_refused_counted_in_bytes(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert limits.ENQUEUE_MANY_BYTES_MAX == 64 * MEBIBYTE
        monkeypatch.setattr(limits, "ENQUEUE_MANY_BYTES_MAX", 4 * MEBIBYTE)
        half_a_mebibyte_of_characters = "é" * (MEBIBYTE // 2 - 1)
        with refused(queue, "jobs[4].payload"):
            queue.enqueue_many([NewJob("work", half_a_mebibyte_of_characters)] * 5)
