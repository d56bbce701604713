"""The public API as text: every public name with its signature. `python -m tests.project.public_api` writes it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, is_typeddict

import holdfast
import holdfast.telemetry
import holdfast.testing

MODULES = [holdfast, holdfast.errors, holdfast.types, holdfast.testing, holdfast.telemetry]
RECORDED = Path(__file__).with_suffix(".txt")


def describe() -> str:
    """Return all public names, one line each."""
    lines: list[str] = []
    for module in MODULES:
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if value in MODULES or (module is not holdfast and getattr(holdfast, name, None) is value):
                continue
            lines += _described(f"{module.__name__}.{name}", value)
    return "\n".join([*lines, ""])


def _described(name: str, value: Any) -> list[str]:
    if not isinstance(value, type):
        return [f"{name}{_signature(value)}" if callable(value) else name]
    if is_typeddict(value):
        return [name, *(f"{name}[{option!r}]" for option in sorted(value.__annotations__))]
    bases = [base.__name__ for base in value.__bases__ if base is not object and not base.__name__.startswith("_")]
    lines = [f"class {name}{_signature(value)}" + (f" of {', '.join(bases)}" if bases else "")]
    for member in sorted(_members(value)):
        found = inspect.getattr_static(value, member, None)
        function = getattr(found, "__func__", found)
        if isinstance(found, property) or not callable(function):
            lines.append(f"{name}.{member}")
        else:
            prefix = "async " if inspect.iscoroutinefunction(function) else ""
            lines.append(f"{prefix}{name}.{member}{_signature(function)}")
    return lines


def _members(value: type) -> set[str]:
    """Return the public attributes of a class, those of its instances included, without inherited ones of Python."""
    ours = [base for base in value.__mro__ if base.__module__.startswith("holdfast")]
    found = {member for base in ours for member in (*vars(base), *getattr(base, "__annotations__", ()))}
    return {member for member in found if not member.startswith("_")}


def _signature(value: Any) -> str:
    try:
        signature = str(inspect.signature(value))
    except ValueError:
        return ""
    return re.sub(r"<([\w.]+ )?([\w.]+)( object)? at 0x\w+>", r"<\2>", signature)


if __name__ == "__main__":
    RECORDED.write_text(describe(), encoding="utf-8")
