"""Every statement has one file, one purpose and a user."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast.stores.sqlite.statements import statements

SOURCES = Path(holdfast.__file__).parent / "stores"


def test_every_statement_is_used_and_every_one_used_exists() -> None:
    files = [path for path in SOURCES.rglob("*.py") if "postgres" not in path.parts]
    code = "\n".join(path.read_text() for path in files)
    named = set(re.findall(r'"([a-z_]+)"', code))
    built = {name for name in statements() if name.startswith("counts_by_")}
    assert set(statements()) - named - built == set()
    asked = set(re.findall(r'Statement\(\s*"([a-z_]+)"', code)) | set(
        re.findall(r'statements\(\)\["([a-z_]+)"\]', code)
    )
    assert asked - set(statements()) == set()
