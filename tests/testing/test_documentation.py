"""The page on testing documents all of `holdfast.testing`."""

from __future__ import annotations

import inspect
import re

import pytest

from holdfast import testing
from holdfast.testing import plugin
from holdfast.testing.assertions import Expected
from tests.project.sources import DOCS, table_rows

PAGE = DOCS / "testing.md"


@pytest.mark.parametrize("name", testing.__all__)
def test_a_public_name_is_documented_and_has_a_docstring(name: str) -> None:
    assert re.search(rf"`{name}[`(]", PAGE.read_text(encoding="utf-8"))
    assert getattr(testing, name).__doc__


@pytest.mark.parametrize("name", [name for name in vars(testing.ManualClock) if name[0] != "_" and name != "now"])
def test_what_the_clock_can_do_is_documented(name: str) -> None:
    assert re.search(rf"`{name}[`(]", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("argument", Expected.__annotations__)
def test_an_argument_of_assert_enqueued_is_documented(argument: str) -> None:
    assert all(table_rows(PAGE)[argument])


def test_every_fixture_and_option_is_documented_and_no_other() -> None:
    fixtures = {name for name in vars(plugin) if name.startswith("holdfast_")}
    options = set(re.findall(r'addoption\("(--[a-z-]+)"', inspect.getsource(plugin)))

    assert fixtures
    assert len(options) == 2
    assert table_rows(PAGE).keys() - Expected.__annotations__.keys() == fixtures | options
