"""`holdfast top`: the overview, once, as JSON, and live on a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

import holdfast
from holdfast.cli import top
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.types import FlowMinute, LaneFlow, Need, Overview, WorkerInfo, WorkerModels
from tests.cli.conftest import Cli
from tests.cli.test_process import OnTerminal
from tests.support.screen import Screen

NOW = datetime(2030, 1, 31, 9, 0, 0, tzinfo=UTC)
SIZES = [(80, 24), (120, 40)]


def overview(*, needs: int, lanes: int) -> Overview:
    found = tuple(
        Need(
            "problem",
            "failure",
            f"{n:016x}",
            f"kind{n} failed {n + 2} times within the last hour (new)",
            "ValueError: " + "a long message " * 10,
            NOW - timedelta(minutes=5),
            n + 2,
            ("acme",),
            f"holdfast failures show {n:016x}",
        )
        for n in range(needs)
    )
    flow = tuple(FlowMinute(NOW - timedelta(minutes=59 - n), n, n // 2, n % 3, 0, 0) for n in range(60))
    rows = tuple(LaneFlow(f"lane{n}", "active", 10_000, 90.0, 5, 4, 1, 1.5, 2.5) for n in range(lanes))
    sentence = f"Working. {needs} things need you."
    models = (WorkerModels("gpu-1", ("llama",), 2, 1, NOW),)
    return Overview(NOW, "working", sentence, found, needs, flow, 90.0, 10_000, 3, 2, 1, rows, (), models, parked=7)


def lines_of(seen: Overview, width: int, height: int, sort: str = "oldest") -> list[str]:
    console = Console(width=width, height=height, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(top.draw(seen, width, height, sort=sort))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("needs", [0, 3, 4, 7])
def test_it_fits_the_screen_and_begins_with_what_matters(width: int, height: int, needs: int) -> None:
    lines = lines_of(overview(needs=needs, lanes=30), width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"Working. {needs} things need you.")
    assert lines[0].endswith("09:00:00 UTC")
    assert lines[1].startswith("10,000+ ready · 3 running · 2 scheduled · 1 blocked · 7 parked · oldest 1m 30s")
    shown = [line for line in lines if line.startswith("! ")]
    assert len(shown) == needs or any("more" in line for line in lines)
    # What is the matter is more than its command, which needs a second line or a wide one.
    assert all("failed" in line for line in shown)
    commands = [f"$ holdfast failures show {n:016x}" in "\n".join(lines) for n in range(len(shown))]
    assert all(commands) or width == 80
    assert any(line.startswith("arrived") for line in lines)
    assert sum(line.startswith("lane") for line in lines) >= 3, "lanes have their place"
    assert any("llama" in line for line in lines)


@pytest.mark.parametrize("needs", [1, 3])
def test_a_narrow_screen_wraps_what_needs_an_operator(needs: int) -> None:
    lines = lines_of(overview(needs=needs, lanes=1), 40, 60)

    assert max(map(len, lines)) <= 40
    whole = " ".join(" ".join(lines).split())
    assert "10,000+ ready · 3 running · 2 scheduled · 1 blocked · 7 parked · oldest 1m 30s" in whole
    for one in overview(needs=needs, lanes=1).needs:
        assert f"! {one.what}" in whole
        assert one.command in whole


def test_lanes_are_sorted_by_the_chosen_column() -> None:
    seen = overview(needs=0, lanes=3)
    rows = [replace(one, failed=n, ready=10 - n) for n, one in enumerate(seen.lanes)]
    seen = replace(seen, lanes=tuple(rows))
    drawn = {sort: "".join(re.findall(r"lane(\d)", "\n".join(lines_of(seen, 80, 24, sort)))) for sort in top.SORTS}
    assert drawn == {"oldest": "012", "ready": "012", "failed": "210", "name": "012"}


def test_bars_are_proportional_and_zero_is_empty() -> None:
    assert top.spark([0, 1, 50, 100], 100) == " ▁▄█"
    assert top.spark([0, 1, 50, 100], 100, plain=True) == " .=@"
    assert top.spark([0, 0], 0) == "  "


def test_once_prints_the_overview_in_the_texts_of_the_snapshot(cli: Cli, failed_job: str) -> None:
    assert failed_job
    text = cli.text("top", "--once", columns=120)
    seen = cli.queue.admin.overview()

    assert text.startswith(seen.sentence)
    for need in seen.needs:
        assert f"! {need.what}" in text
        assert need.command in text


def test_json_is_the_snapshot(cli: Cli, failed_job: str) -> None:
    assert failed_job
    document = cli.json("top")
    seen = cli.queue.admin.overview()

    assert document["sentence"] == seen.sentence
    assert [need["subject"] for need in document["needs"]] == [need.subject for need in seen.needs]
    assert len(document["flow"]) == 60


@pytest.mark.slow("the command line runs as a process")
@pytest.mark.parametrize(("width", "height", "end"), [(80, 24, "q"), (120, 40, "\x03")])
def test_it_is_drawn_live_on_the_whole_screen_until_it_is_ended(
    tmp_path: Path, width: int, height: int, end: str
) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        row = WorkerInfo("w1", "i", "host", 1, "0.1.0", "active", 8, 0, ("default",), (), (), ("llama",), 2)
        WorkerCalls(state_of(queue).store).beat(row)
        queue.enqueue("report.write")
        running = OnTerminal(tmp_path, "top", "--every", "200ms", NO_COLOR="1", COLUMNS=str(width), LINES=str(height))
        running.read_until("1 ready")
        queue.enqueue("report.write")
        running.read_until("2 ready")
        running.type("s")
        running.read_until("sort lanes by failed")
        running.type("p")
        running.read_until("paused")
        running.type("p")
        running.read_until("p pause")
    running.type(end)

    assert running.finish() == 0
    inside = running.seen.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    assert inside, "the screen of the shell is restored"
    screen = Screen(width, height)
    # All of it: the last picture may be cut off by the interrupt, above the one before.
    screen.write(re.sub(r"\^C", "", inside))
    assert screen.lines[0].startswith("Working. Nothing needs you.")
    assert "2 ready" in screen.lines[1]
    assert any("llama, 0 waiting, 2 switches" in line for line in screen.lines)
    assert len(screen.lines) <= height


@pytest.mark.slow("the command line runs as a process")
def test_a_terminal_that_cannot_draw_gets_it_once(tmp_path: Path) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        queue.enqueue("report.write")
    running = OnTerminal(tmp_path, "top", TERM="dumb", COLUMNS="80", LINES="24")

    assert running.finish() == 0
    assert "1 ready" in running.seen
    assert "\x1b" not in running.seen
