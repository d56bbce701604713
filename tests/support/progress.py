"""A plugin for pytest: one line of progress instead of dots, and a list of slow tests.

`make test` loads it with `-p tests.support.progress`. On a terminal the line is rewritten; elsewhere a line is added
for each tenth of the tests. With the variable CI set, the summary lists the slowest tests, and the tests without the
marker `slow` that would take over a second on an idle machine. That is an estimate from the time for which the kernel
let the test wait for a processor, so neither fails a run.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SLOWEST_SHOWN = 20
SLOW_SECONDS = 1.0
_REDRAW_SECONDS = 0.2
_IDLE_SECONDS = "idle_seconds"
# The nanoseconds for which this thread has run, and for which it has waited for a processor.
_SCHEDULED = Path("/proc/thread-self/schedstat")


def pytest_configure(config: pytest.Config) -> None:
    """Report in the controlling process; those of xdist only run tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "holdfast-progress")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Add to the report of a test the seconds that it would take on an idle machine."""
    began, (ran, waited) = time.monotonic(), _scheduled()
    try:
        yield
    finally:
        now = _scheduled()
        seconds = idle_seconds(time.monotonic() - began, now[0] - ran, now[1] - waited)
        item.user_properties.append((_IDLE_SECONDS, seconds))


def _scheduled() -> tuple[float, float]:
    with suppress(OSError, ValueError):
        ran, waited, _ = _SCHEDULED.read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9
    return 0.0, 0.0


def idle_seconds(seconds: float, ran: float, waited: float) -> float:
    """Return how long a test would take on an idle machine, if its thread *ran*, and *waited* for a processor.

    The processes and servers that it starts wait as often, so all of its time is divided.
    """
    return seconds * ran / (ran + waited) if ran > 0 else seconds


class Progress:
    """Counts finished tests, and writes the progress of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = self._drawn = time.monotonic()
        self._total = 0
        self._tenths = 0
        self._ended: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._unmarked: dict[str, float] = {}

    # --- counting --------------------------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = max(self._total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._total = max(self._total, len(ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
        """Omit the letter of each test: the line of progress has the counts, and failures are named."""
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        properties: dict[str, Any] = dict(report.user_properties)
        idle = properties.get(_IDLE_SECONDS, 0.0)
        if report.when == "call" and idle > SLOW_SECONDS and not {"slow", "long"} & set(report.keywords):
            self._unmarked[report.nodeid] = idle
        if report.failed or (report.skipped and report.nodeid not in self._ended):
            self._counts["failed" if report.failed else "skipped"] += 1
            self._ended.add(report.nodeid)
            if report.failed:
                self._write(f"{report.outcome.upper()} {report.nodeid} ({report.when})")
        elif report.when == "call":
            self._counts["passed"] += 1
            self._ended.add(report.nodeid)
        self._show()

    # --- showing ---------------------------------------------------------------------------------------------------

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def line(self) -> str:
        """Return the progress of the run: ` 43%  3,810 of 8,870 tests, 1 failed, 2:05`."""
        done = len(self._ended)
        share = 100 * done // max(self._total, done, 1)
        odd = [f"{self._counts[name]:,} {name}" for name in ("failed", "skipped") if self._counts[name]]
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return ", ".join([f"{share:3}%  {done:,} of {self._total:,} tests", *odd, f"{minutes}:{seconds:02}"])

    def _show(self) -> None:
        last = len(self._ended) == self._total
        if self._terminal.isatty:
            if last or time.monotonic() - self._drawn > _REDRAW_SECONDS:
                self._drawn = time.monotonic()
                self._terminal.rewrite(self.line(), erase=True)
            return
        tenths = 10 * len(self._ended) // max(self._total, 1)
        if tenths > self._tenths:
            self._tenths = tenths
            self._terminal.write_line(self.line())

    def _write(self, text: str) -> None:
        if self._terminal.isatty:
            self._terminal.rewrite("", erase=True)
        self._terminal.write_line(text, red=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not os.environ.get("CI"):
            return
        terminalreporter.section(f"{SLOWEST_SHOWN} slowest tests")
        for name, seconds in _longest(self._seconds)[:SLOWEST_SHOWN]:
            terminalreporter.write_line(f"{seconds:7.2f} s  {name}")
        if self._unmarked:
            terminalreporter.section(f"over {SLOW_SECONDS:g} s without the marker slow: {len(self._unmarked)}")
            for name, seconds in _longest(self._unmarked):
                terminalreporter.write_line(f"{seconds:7.2f} s  {name}")


def _longest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda pair: -pair[1])
