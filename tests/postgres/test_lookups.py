"""Statements find jobs by number, id, tree or session in `job`, by anything else in `open_job`, which has indexes."""

from __future__ import annotations

import re

import pytest

from holdfast.storage.postgres.sql import QUERIES

# They count all jobs.
COUNTS = {"counts_by_kind", "counts_by_lane", "counts_by_state", "counts_by_tenant", "jobs_count"}
LOOKUP = re.compile(r"(?:from|join|update) holdfast\.job\b(?! j\b.{0,40}\bset\b)[^;]{0,320}", re.DOTALL)


@pytest.mark.parametrize("name", sorted(name for name, text in QUERIES.items() if "holdfast.job " in text))
def test_a_statement_reads_all_jobs_only_to_count_them(name: str) -> None:
    text = re.sub(r"holdfast\.job\n", "holdfast.job ", QUERIES[name])
    for found in LOOKUP.findall(text):
        assert name in COUNTS or re.search(r"\b(seq|id|root|session)\b", found), found
