"""Fingerprints of failures: what is the same failure and what is another."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from holdfast.domain import failures
from holdfast.domain.failures import Failure
from holdfast.domain.fingerprints import FailureCount, FailurePrint, blank, failure_print, merged


def failure(message: str, trace: str | None = None, reason: str = "error") -> Failure:
    return Failure("transient", reason, message, trace)


def raised(call: Callable[[], object]) -> Failure:
    try:
        call()
    except Exception as error:  # whatever the test raises
        return failure(str(error), "".join(traceback.format_exception(error)))
    raise AssertionError("nothing was raised")


def convert(text: str) -> int:
    return int(text)


def convert_elsewhere(text: str) -> int:
    return int(text)


@pytest.mark.parametrize(
    ("message", "blanked"),
    [
        ("order 42 is not paid", "order # is not paid"),
        ("order42 and order_43", "order# and order_#"),
        ("job 0198c0de-0000-7000-8000-000000000001 is gone", "job # is gone"),
        ("commit 7f3ac1 at 0x7f00aa", "commit # at #"),
        ("10.0.0.1:5432 refused, 2026-11-17T15:21:05Z", "# refused, #"),
        ("took 1.5 s,\n  not 2", "took # s, not #"),
        ("no number at all", "no number at all"),
        ("é1 — ünï2", "é# — ünï#"),
        ("", ""),
    ],
)
def test_numbers_and_ids_are_blanked(message: str, blanked: str) -> None:
    assert blank(message) == blanked


@given(st.text())
def test_any_message_is_blanked_to_one_bounded_line_without_ascii_digits(message: str) -> None:
    text = blank(message)
    assert len(text) <= 300
    assert "\n" not in text
    assert not any(character in "0123456789" for character in text)


@given(st.text(), st.text(), st.text())
def test_any_failure_has_a_fingerprint(kind: str, message: str, trace: str) -> None:
    found = failure_print(kind, failure(message, trace))
    assert len(found.fingerprint) == 16
    assert found == failure_print(kind, failure(message, trace))


def test_failures_that_differ_in_numbers_only_are_the_same() -> None:
    one = failure_print("mail", raised(lambda: convert("a1b2")))
    other = failure_print("mail", raised(lambda: convert("c3d4")))
    assert one == other
    assert one.error == "ValueError"
    assert one.frames[-1] == "test_fingerprints.py convert"


def test_another_kind_exception_message_or_place_is_another_failure() -> None:
    one = raised(lambda: convert("x"))
    prints = {
        failure_print("mail", one).fingerprint,
        failure_print("sms", one).fingerprint,
        failure_print("mail", raised(lambda: convert("y"))).fingerprint,
        failure_print("mail", raised(lambda: convert_elsewhere("x"))).fingerprint,
        failure_print("mail", raised(lambda: dict[str, int]()["x"])).fingerprint,
        failure_print("mail", failure("invalid")).fingerprint,
        failure_print("mail", failure("invalid", reason="other")).fingerprint,
    }
    assert len(prints) == 7


def test_frames_of_libraries_are_left_out_and_line_numbers_do_not_count() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/srv/app/jobs.py", line {line}, in send\n    post()\n'
        '  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads\n    return decode()\n'
        '  File "C:\\\\app\\\\.venv\\\\Lib\\\\site-packages\\\\http.py", line 3, in post\n    raise Refused\n'
        "app.errors.Refused: no\nmore: text\n"
    )
    one, other = (failure_print("mail", failure("no", trace.replace("{line}", line))) for line in ("7", "9"))
    assert one == other
    assert (one.error, one.frames) == ("Refused", ("jobs.py send",))


def test_without_frames_of_its_own_the_innermost_are_used() -> None:
    trace = '  File "<frozen runpy>", line 1, in run\nKeyError: 1\n'
    assert failure_print("mail", failure("1", trace)).frames == ("<frozen runpy> run",)


@pytest.mark.parametrize("reason", [failures.LEASE_EXPIRED, failures.WORKER_CUT_OFF, failures.DEADLINE_PASSED])
def test_failures_that_name_a_worker_are_the_same_by_their_reason(reason: str) -> None:
    one, other = (failure_print("mail", failure(f"worker {name} stopped", reason=reason)) for name in ("ada", "bob"))
    assert one.fingerprint == other.fingerprint
    assert one.error == reason


def test_counts_of_tenants_and_lanes_are_added() -> None:
    mail, sms = (FailurePrint(name, name, "ValueError", (), "no") for name in ("mail", "sms"))
    counts = [
        FailureCount(mail, "acme", "default", 5, 20, 3, 2, 1, "a"),
        FailureCount(mail, "zeta", "bulk", 2, 10, 4, 1, 0, "b"),
        FailureCount(sms, "acme", "default", 1, 30, 1, 1, 0, None),
    ]
    [[first, *_], [second, tenants, lanes]] = merged(counts)
    assert first.print is sms
    assert second == FailureCount(mail, "acme", "default", 2, 20, 7, 3, 1, "a")
    assert (tenants, lanes) == (["acme", "zeta"], ["bulk", "default"])
