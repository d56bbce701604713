"""The OpenAPI document, and the table of errors."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jsonschema_rs
import pytest

from holdfast.domain import errors
from holdfast.service import openapi, problems
from holdfast.service.routes import ROUTES
from tests.project.sources import DOCS, table_rows
from tests.support.service import Server

DOCUMENT = openapi.document(ROUTES)


def resolved(schema: Any) -> Any:
    """Return a schema with the named schemas beside it."""
    return {**schema, "components": DOCUMENT["components"]}


def test_the_document_is_served_and_names_every_route_once(server: Server) -> None:
    served = server.anonymous.get("/openapi.json")

    assert served.json == DOCUMENT
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    operations = {operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()}
    assert operations == {route.name for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_examples_match_their_schemas(route: Any) -> None:
    if route.body is not None:
        assert route.body_example is not None
        jsonschema_rs.validate(resolved(route.body), route.body_example)
    if route.response_example is not None:
        jsonschema_rs.validate(resolved(route.response), route.response_example)


def test_every_error_of_the_library_has_a_status() -> None:
    known = {
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.HoldfastError)
    }
    assert problems.STATUSES.keys() == known


def test_every_code_of_the_service_is_documented() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (DOCS.parent / "src/holdfast/service").glob("*.py")
    )
    used = set(re.findall(r'ProblemError\(\s*\d+,\s*"(\w+)"', sources)) - {"unavailable"}
    assert used == problems.PROBLEM_CODES.keys()
    rows = table_rows(DOCS / "service.md")
    assert {code for code in problems.PROBLEM_CODES if code not in rows} == set()
