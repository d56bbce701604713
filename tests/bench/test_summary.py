"""The performance page begins with the figures of the last stored run."""

from __future__ import annotations

import json
from typing import Any

from bench.docs_writer import SUMMARY_BEGIN, SUMMARY_END, summary
from bench.results import NAMES

from tests.project.sources import DOCS, ROOT


def test_the_page_begins_with_the_figures_of_the_stored_results() -> None:
    stored = json.loads((ROOT / "bench/results/latest.json").read_text(encoding="utf-8"))
    lead, _, _ = (DOCS / "performance.md").read_text(encoding="utf-8").partition("## What is compared")

    for engine in NAMES:
        assert f"{SUMMARY_BEGIN[engine]}\n\n{summary(stored[engine])}\n{SUMMARY_END[engine]}" in lead


def test_a_part_that_was_not_measured_has_no_row() -> None:
    stored: dict[str, Any] = {"scenarios": [], "pickup": [], "claim_cost": [], "memory": None, "worker": None}

    assert summary(stored).count("\n") == 2
