"""The filter line of the command line and the dashboard."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import InvalidInput
from holdfast.domain import filter_line


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", {}),
        ("state:failed", {"state": ["failed"]}),
        ("state:failed,done state:ready", {"state": ["failed", "done", "ready"]}),
        ("kind:email.send lane:mail tenant:acme", {"kind": "email.send", "lane": "mail", "tenant": "acme"}),
        ("tag:order=42 tag:a=b=c", {"tags": {"order": "42", "a": "b=c"}}),
        ("age>1h", {"older_than": 3600.0}),
        ("age>=250ms", {"older_than": 0.25}),
        ("class:transient", {"failure_class": "transient"}),
        ("'kind:a b' root:x:y", {"kind": "a b", "root": "x:y"}),
        ("fingerprint:0123456789abcdef session:s", {"fingerprint": "0123456789abcdef", "session": "s"}),
    ],
)
def test_it_names_the_arguments_of_jobs(line: str, found: dict[str, Any]) -> None:
    assert filter_line.arguments(line) == found


@pytest.mark.parametrize(
    ("line", "field", "part"),
    [
        ("failed", "filter", "key:value"),
        ("colour:red", "filter", "state, kind"),
        ("kind:", "filter", "not understood"),
        ("'kind:a", "filter", "quotation mark"),
        ("state:broken", "state", "scheduled"),
        ("tag:order", "tag", "tag:order=42"),
        ("age>soon", "age", "age>1h"),
        ("age>", "filter", "age>1h"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_is(line: str, field: str, part: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        filter_line.arguments(line)
    assert refused.value.field == field
    assert part in str(refused.value)


@given(st.text())
def test_any_line_is_understood_or_refused(line: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert isinstance(filter_line.arguments(line), dict)
