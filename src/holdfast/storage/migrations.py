"""Numbered migrations with checksums: which an engine knows, and which a schema still lacks."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain.errors import SchemaMismatch
from holdfast.version import __version__


class Migration(NamedTuple):
    """One numbered change of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """A digest of the text, to notice when an applied migration was edited afterwards."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def known_in(package: str) -> tuple[Migration, ...]:
    """Return the migrations that stand beside the modules of *package*, in order."""
    folder = importlib.resources.files(package) / "migrations"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in sorted(found, key=lambda entry: entry.name)
    )


def missing(
    known: Sequence[Migration], applied: Mapping[int, str], code_version_min: Callable[[], str]
) -> list[Migration]:
    """Return those of the *known* that are not *applied*, or raise `SchemaMismatch` if the schema needs other code.

    *applied* has checksums by number; the lowest version of the code that may use the schema is asked for only if
    there is a schema.
    """
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied in another form than this code knows;"
                " the schema was made by a modified or unreleased version"
            )
    if applied and _parts(lowest := code_version_min()) > _parts(__version__):
        raise SchemaMismatch(
            f"this database needs Holdfast {lowest} or later, and this is {__version__}; upgrade the package"
        )
    return [migration for migration in known if migration.number not in applied]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])
