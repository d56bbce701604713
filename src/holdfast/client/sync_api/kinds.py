# Generated from client/async_api/kinds.py by scripts/make-sync; do not edit.
"""`queue.kinds`: the catalog of kinds, and retiring them."""

from __future__ import annotations

import builtins

from holdfast.client.sync_api.namespace import Namespace
from holdfast.domain import errors, validation
from holdfast.domain.kinds import Kind
from holdfast.operations import admin as admin_operations


class Kinds(Namespace):
    """Lists, retires and restores the kinds of a queue's jobs: `queue.kinds`."""

    def list(self) -> builtins.list[Kind]:
        """Return every kind that has jobs, was published by a worker, or is retired, sorted by name."""
        return self._runner.read(admin_operations.kinds)

    def get(self, kind: str) -> Kind:
        """Return one kind with its published options and schema, or raise `UnknownKind`."""
        found = self._runner.read(admin_operations.kind, validation.name(kind, "kind"))
        if found is None:
            raise errors.UnknownKind(kind, "has no jobs, and is neither published nor retired")
        return found

    def retire(self, kind: str) -> int:
        """Refuse new jobs of a kind and retire its waiting ones, in bounded chunks; return how many.

        A running job is retired if its attempt ends without finishing it.
        """
        kind = validation.name(kind, "kind")
        routes, total = self._runner.write(admin_operations.retire_kind, kind)
        after = 0
        while waiting := self._runner.read(admin_operations.waiting_seqs, routes, after):
            total += self._runner.write(admin_operations.retire_jobs, waiting)
            after = waiting[-1]
        return total

    def restore(self, kind: str) -> None:
        """Accept new jobs of a retired kind again, or raise `UnknownKind` if it is not retired.

        Retired jobs stay retired.
        """
        if not self._runner.write(admin_operations.restore_kind, validation.name(kind, "kind")):
            raise errors.UnknownKind(kind, "is not retired")
