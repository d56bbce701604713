"""docs/service-api.md is generated from the OpenAPI document, and its links lead somewhere."""

from __future__ import annotations

import re

from holdfast.service.routes import ROUTES
from tests.project.sources import DOCS, load_script

TEXT = (DOCS / "service-api.md").read_text(encoding="utf-8")


def test_the_page_is_the_generated_one() -> None:
    assert load_script("make-api-page").page() == TEXT, "run .venv/bin/python scripts/make-api-page"


def test_every_route_has_a_heading_and_every_schema_its_section() -> None:
    headings = set(re.findall(r"^### (.*)$", TEXT, re.MULTILINE))
    assert {f"{route.method} {route.path}" for route in ROUTES} <= headings
    targets = {heading.lower() for heading in headings}
    assert set(re.findall(r"\]\(#([a-z]+)\)", TEXT)) <= targets
