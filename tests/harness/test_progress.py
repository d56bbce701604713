"""The progress output of a test run: percentage, failures and slow tests."""

from __future__ import annotations

import re

import pytest

from tests.support import progress

pytest_plugins = ["pytester"]


@pytest.fixture
def shown(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> str:
    """The output of a run of four tests to a file, in CI, if every test counts as slow."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    pytester.makepyfile(
        """
        import pytest

        def test_passes(): ...

        @pytest.mark.slow("it waits for a lease")
        def test_marked(): ...

        def test_fails(): assert False

        def test_skips(): pytest.skip("not here")
        """
    )
    pytester.makeini("[pytest]\nmarkers = slow(reason)\n")
    words = ["-q", "-p", "no:xdist", "-o", "console_output_style=classic"]
    return str(pytester.runpytest_inprocess(*words, plugins=[progress]).stdout)


def test_a_run_shows_percentage_counts_and_time_and_no_dots(shown: str) -> None:
    assert re.search(r"^ 25%  1 of 4 tests, \d+:\d\d$", shown, re.MULTILINE)
    assert re.search(r"^100%  4 of 4 tests, 1 failed, 1 skipped, \d+:\d\d$", shown, re.MULTILINE)
    assert not re.search(r"^[.FsE]+$", shown, re.MULTILINE)


def test_a_failure_is_shown_immediately(shown: str) -> None:
    before, _, after = shown.partition(" FAILURES ")
    assert "::test_fails (call)" in before
    assert after


def test_a_test_that_waited_for_a_processor_counts_as_if_it_had_one() -> None:
    assert progress.idle_seconds(9.0, ran=1.0, waited=2.0) == 3.0
    assert progress.idle_seconds(9.0, ran=0.0, waited=0.0) == 9.0


def test_ci_lists_the_slowest_tests_and_those_without_a_marker(shown: str) -> None:
    slowest, _, unmarked = shown.partition("20 slowest tests")[2].partition("without the marker slow: 3")
    assert "::test_marked" in slowest
    assert "::test_passes" in unmarked
    assert "::test_marked" not in unmarked
