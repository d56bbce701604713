"""The chart of a pipeline's queues matches a simulation."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from bench.pipelines import DOCUMENTS, PAGES, PICTURE, draw, lengths

from tests.project.sources import DOCS

pytestmark = pytest.mark.slow("a pipeline of thousands of jobs is simulated")


def test_the_chart_in_the_docs_is_up_to_date() -> None:
    drawn = draw()

    assert (DOCS / "images" / PICTURE).read_text(encoding="utf-8") == drawn
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_queues_stay_shorter_if_later_steps_are_drained_first() -> None:
    def longest(found: list[dict[str, int]], kind: str) -> int:
        return max(one.get(kind, 0) for one in found)

    oldest, listed = lengths("oldest"), lengths("listed")

    assert len(oldest) == len(listed) == DOCUMENTS * (1 + 2 * PAGES)
    assert longest(oldest, "page.embed") == longest(oldest, "page.index") == DOCUMENTS * PAGES - 1
    assert longest(listed, "page.embed") == PAGES - 1
    assert longest(listed, "page.index") == 0
