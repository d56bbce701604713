"""Load named queries: one file per topic, each query with a `-- name:` line and a line of purpose."""

import importlib.resources
import re
from collections.abc import Iterable
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)

# Operations nest savepoints only one deep.
SAVEPOINTS: Final = {
    "savepoint": "savepoint holdfast_part",
    "savepoint_keep": "release holdfast_part",
    "savepoint_undo": "rollback to holdfast_part",
}


def load_queries(package: str, names: Iterable[str]) -> dict[str, str]:
    """Return the text of each query of the engine in *package* by its name.

    Raise `RuntimeError` unless the files define exactly *names*, each once and with its purpose.
    """
    found: dict[str, str] = {}
    for file in (importlib.resources.files(package) / "queries").iterdir():
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found or not text.startswith("-- "):
                raise RuntimeError(f"{file.name}: query {name} is defined twice or has no purpose")
            found[name] = text.strip().removesuffix(";")
    found |= SAVEPOINTS
    if unequal := found.keys() ^ set(names):
        raise RuntimeError(f"queries of {package} that are missing or not known: {', '.join(sorted(unequal))}")
    return found
