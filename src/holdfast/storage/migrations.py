"""Numbered migrations with checksums: those an engine knows, and those a schema still lacks."""

import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain import errors
from holdfast.version import __version__


class Migration(NamedTuple):
    """One numbered change of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """A digest of the text, to detect that an applied migration was edited afterwards."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def known_in(package: str) -> tuple[Migration, ...]:
    """Return the migrations in the folder of *package*, in order."""
    folder = importlib.resources.files(package) / "migrations"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in sorted(found, key=lambda entry: entry.name)
    )


def missing(
    known: Sequence[Migration], applied: Mapping[int, str], code_version_min: Callable[[], str]
) -> list[Migration]:
    """Return the *known* migrations that are not *applied*; raise `SchemaMismatch` if the schema needs other code.

    *applied* maps numbers to checksums. *code_version_min* returns the lowest code version that may use the schema;
    it is called only if a schema exists.
    """
    for migration in known:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise errors.SchemaMismatch(
                f"migration {migration.name} was applied in a different form than this code contains;"
                " the schema was created by a modified or unreleased version"
            )
    if applied and _parts(lowest := code_version_min()) > _parts(__version__):
        raise errors.SchemaMismatch(
            f"this database needs Holdfast {lowest} or later, and this is {__version__}; upgrade the package"
        )
    return [migration for migration in known if migration.number not in applied]


def not_migrated(pending: Sequence[Migration], schema: str) -> errors.SchemaMismatch:
    """Return the error for a *schema* that lacks the *pending* migrations and may not be migrated now."""
    if pending[0].number == 1:
        return errors.SchemaMismatch(f"this database has no {schema}; `holdfast migrate` creates it")
    return errors.SchemaMismatch(f"the {schema} of this database lacks {pending[0].name}; run `holdfast migrate`")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])
