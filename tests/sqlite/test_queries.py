"""Every statement has one file, one purpose and a user."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from holdfast.storage.sqlite.queries import statements

SOURCES = Path(holdfast.__file__).parent / "storage"


def test_every_statement_is_used_and_every_one_used_exists() -> None:
    files = [path for path in SOURCES.rglob("*.py") if "postgres" not in path.parts]
    code = "\n".join(path.read_text() for path in files)
    named = set(re.findall(r'"([a-z_]+)"', code))
    built = {name for name in statements() if name.startswith("counts_by_")}
    for_one = {name for name in statements() if name.endswith("_one") and name.removesuffix("_one") in named}
    assert set(statements()) - named - built - for_one == set()
    asked = set(re.findall(r'Statement\(\s*"([a-z_]+)"', code)) | set(
        re.findall(r'statements\(\)\["([a-z_]+)"\]', code)
    )
    assert asked - set(statements()) == set()


def test_a_statement_for_one_writes_and_reads_what_that_for_many_does() -> None:
    for name in statements():
        if name.endswith("_one"):
            assert _columns(name) == _columns(name.removesuffix("_one")), name


def _columns(name: str) -> set[str]:
    """Return the columns that a statement names."""
    text = re.sub(r"--.*|'[^']*'|[:$][\w\[\]]+", "", statements()[name])
    return set(re.findall(r"[a-z_]+", text)) & set(_all_columns())


def _all_columns() -> list[str]:
    with holdfast.connect(":memory:") as queue, queue.transaction() as transaction:
        return [
            name
            for table in ("holdfast_job", "holdfast_event")
            for (name,) in transaction.execute(f"select name from pragma_table_info('{table}')")
        ]
