"""The API reference is up to date: `scripts/make-reference` writes the pages that are in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.project.public_api import MODULES
from tests.project.sources import DOCS, ROOT, assert_none, load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("make-reference")


@pytest.fixture(scope="module")
def generated(script: Any) -> dict[Path, str]:
    pages: dict[Path, str] = script.generate()
    return pages


def test_the_reference_is_up_to_date(generated: dict[Path, str]) -> None:
    written = {path: path.read_text(encoding="utf-8") for path in (DOCS / "reference").iterdir()}

    assert_none(path.name for path in written.keys() | generated.keys() if written.get(path) != generated.get(path))


def test_every_exported_name_has_an_anchor(generated: dict[Path, str]) -> None:
    anchors = set(re.findall(r'<a id="([^"]+)">', "".join(generated.values())))
    exported = {name for module in MODULES[:3] for name in module.__all__} - {"__version__", "errors", "types"}
    exported |= {
        f"{module.__name__.removeprefix('holdfast.')}.{name}" for module in MODULES[3:] for name in module.__all__
    }

    assert_none(sorted(exported - anchors))
    assert {"Queue.enqueue", "Sessions.claim", "Worker.run"} <= anchors


def test_every_attribute_and_type_in_the_reference_has_a_docstring(script: Any, generated: dict[Path, str]) -> None:
    assert generated
    assert_none(script.undocumented)


def test_no_type_in_a_signature_has_the_name_of_an_exported_class() -> None:
    domain = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/holdfast/domain").glob("*.py"))
    aliases = re.findall(r"^(\w+): TypeAlias", domain, re.MULTILINE)
    exported = {name: getattr(module, name) for module in MODULES for name in module.__all__}

    assert_none(name for name in aliases if isinstance(exported.get(name), type))


def test_a_sync_and_an_async_method_have_the_same_parameters(generated: dict[Path, str]) -> None:
    # The page of an async class shows in full only the methods that differ.
    [described] = re.findall(r"### AsyncQueue\n(.*?)<a id", generated[DOCS / "reference" / "queue.md"], re.DOTALL)

    assert "```" not in described
    assert all(f"`{name}`" in described for name in vars(holdfast.AsyncQueue) if not name.startswith("_"))
