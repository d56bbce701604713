"""The API reference is up to date: `scripts/make-reference` writes the pages that are in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from tests.project.public_api import MODULES
from tests.project.sources import DOCS, assert_none, load_script

MAKE_REFERENCE = load_script("make-reference")
GENERATED: dict[Path, str] = MAKE_REFERENCE.generate()


def test_the_reference_is_up_to_date() -> None:
    written = {path: path.read_text(encoding="utf-8") for path in (DOCS / "reference").iterdir()}

    assert_none(path.name for path in written.keys() | GENERATED.keys() if written.get(path) != GENERATED.get(path))


def test_every_exported_name_has_an_anchor() -> None:
    anchors = set(re.findall(r'<a id="([^"]+)">', "".join(GENERATED.values())))
    exported = {name for module in MODULES[:3] for name in module.__all__} - {"__version__", "errors", "types"}
    exported |= {
        f"{module.__name__.removeprefix('holdfast.')}.{name}" for module in MODULES[3:] for name in module.__all__
    }

    assert_none(sorted(exported - anchors))
    assert {"Queue.enqueue", "Sessions.claim", "Worker.run"} <= anchors


def test_every_attribute_and_type_in_the_reference_has_a_docstring() -> None:
    assert_none(MAKE_REFERENCE.undocumented)


def test_a_sync_and_an_async_method_have_the_same_parameters() -> None:
    # The page of an async class shows in full only the methods that differ.
    [described] = re.findall(r"### AsyncQueue\n(.*?)<a id", GENERATED[DOCS / "reference" / "queue.md"], re.DOTALL)

    assert "```" not in described
    assert all(
        f"`{name}`" in described for name in vars(holdfast.AsyncQueue) if not name.startswith("_") and name != "store"
    )
