"""A chart of the queue lengths of a pipeline, with and without `drain="listed"`.

`python -m bench.pipelines docs/images` draws it. It does not depend on the machine: jobs run one after another.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape

import holdfast
from holdfast import Context, testing

DOCUMENTS, PAGES = 40, 8
KINDS: Final = ("document.extract", "page.embed", "page.index")
PICTURE: Final = "pipeline-lengths.svg"

Drain: TypeAlias = Literal["oldest", "listed"]
Lengths: TypeAlias = list[dict[str, int]]
"""The number of waiting jobs of each kind, after each job."""

_COLORS: Final = {"document.extract": "#9fb3bd", "page.embed": "#d98324", "page.index": "#0b6e8a"}
_WIDTH, _LEFT, _TOP, _WIDE, _HIGH, _GAP = 800, 60, 72, 320, 190, 70
_INK, _GRID = "#1d2b31", "#dfe6ea"


def lengths(drain: Drain) -> Lengths:
    """Run the pipeline, one job after another, and return the queue lengths."""
    found: Lengths = []
    with holdfast.connect(":memory:") as queue:

        def look() -> None:
            found.append({waiting.kind: waiting.jobs for waiting in queue.admin.backlog().ready})

        @queue.task(KINDS[0])
        def extract(context: Context, document: int) -> None:
            look()
            for page in range(PAGES):
                context.follow_up(embed.new(document, page))

        @queue.task(KINDS[1])
        def embed(context: Context, document: int, page: int) -> None:
            look()
            context.follow_up(index.new(document, page))

        @queue.task(KINDS[2])
        def index(document: int, page: int) -> None:  # noqa: ARG001  # payload of the job
            look()

        queue.enqueue_many([extract.new(document) for document in range(DOCUMENTS)])
        testing.drain(queue, kinds=KINDS[::-1], drain=drain)
    return found


def draw() -> str:
    """Return the chart as SVG."""
    both: dict[str, Lengths] = {
        "Without: the oldest job first": lengths("oldest"),
        'drain="listed": the last step first': lengths("listed"),
    }
    longest = max(count for found in both.values() for one in found for count in one.values())
    most = -(-longest // 40) * 40  # round numbers at the grid lines
    panels = "\n".join(_panel(index, title, found, most) for index, (title, found) in enumerate(both.items()))
    title = f"Jobs that wait at each step: {DOCUMENTS} documents of {PAGES} pages, one worker"
    height = _TOP + _HIGH + 84
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' font-family="Helvetica, Arial, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="12" y="26" font-size="15" font-weight="bold" fill="{_INK}">{escape(title)}</text>\n'
        f"{panels}\n{_legend(height - 16)}\n</svg>\n"
    )


def _panel(index: int, title: str, found: Lengths, most: int) -> str:
    left = _LEFT + index * (_WIDE + _GAP)
    base = _TOP + _HIGH
    steps = [most * part // 4 for part in range(5)]
    grid = "".join(
        f'<path d="M{left} {(y := base - _HIGH * step / most):.1f}h{_WIDE}" stroke="{_GRID}"/>'
        f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11" fill="{_INK}">{step}</text>'
        for step in steps
    )
    curves = "".join(_curve(kind, left, base, found, most) for kind in KINDS)
    return (
        f'<text x="{left}" y="{_TOP - 14}" fill="{_INK}">{escape(title)}</text>{grid}{curves}'
        f'<text x="{left + _WIDE}" y="{base + 18}" text-anchor="end" font-size="11" fill="{_INK}">'
        f"jobs done: {len(found)}</text>"
    )


def _curve(kind: str, left: float, base: float, found: Lengths, most: int) -> str:
    last = max(1, len(found) - 1)
    counts = [one.get(kind, 0) for one in found]
    points = " ".join(
        f"{left + _WIDE * index / last:.1f},{base - _HIGH * counts[index] / most:.1f}"
        for index in _turning_points(counts)
    )
    return f'<polyline points="{points}" fill="none" stroke="{_COLORS[kind]}" stroke-width="2"/>'


def _turning_points(counts: list[int]) -> list[int]:
    """Return the indexes at which a curve changes direction, and both ends."""
    inner = range(1, len(counts) - 1)
    turning = [index for index in inner if counts[index + 1] - counts[index] != counts[index] - counts[index - 1]]
    return [0, *turning, len(counts) - 1]


def _legend(y: int) -> str:
    return "".join(
        f'<rect x="{_LEFT + index * 180}" y="{y - 10}" width="18" height="10" fill="{_COLORS[kind]}"/>'
        f'<text x="{_LEFT + index * 180 + 24}" y="{y}" fill="{_INK}">{kind}</text>'
        for index, kind in enumerate(KINDS)
    )


def main() -> None:
    """Write the chart."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipelines", description="Draw the queues of a pipeline.")
    parser.add_argument("folder", type=Path, help="where to put the picture")
    path = parser.parse_args().folder / PICTURE
    path.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
