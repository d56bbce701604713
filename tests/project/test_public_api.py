"""The public names and signatures are recorded, so that every change of them is deliberate."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import holdfast
from tests.project.public_api import MODULES, RECORDED, describe
from tests.project.sources import assert_none


def _functions() -> Iterator[tuple[str, object]]:
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif isinstance(value, type) and value.__module__.startswith("holdfast"):
                yield f"{module.__name__}.{name}", value
                for member, found in vars(value).items():
                    if inspect.isfunction(found) and not member.startswith("_"):
                        yield f"{module.__name__}.{name}.{member}", found


def test_the_public_api_is_the_recorded_one() -> None:
    assert RECORDED.read_text(encoding="utf-8") == describe(), "run: python -m tests.project.public_api"


def test_the_package_exports_few_names() -> None:
    assert len(holdfast.__all__) <= 50


def test_every_public_class_function_and_method_has_a_docstring() -> None:
    assert_none(name for name, value in _functions() if not inspect.getdoc(value))


def test_a_public_class_names_the_module_from_which_programs_import_it() -> None:
    assert_none(
        f"{module.__name__}.{name} is in {value.__module__}"
        for module in MODULES[:3]
        for name in module.__all__
        if isinstance(value := getattr(module, name), type)
        and value.__module__ not in {module.__name__, "holdfast.errors"}
    )
