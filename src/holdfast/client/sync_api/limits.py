# Generated from client/async_api/limits.py by scripts/make-sync; do not edit.
"""`queue.limits`: how many jobs of one key run at once, or start per time."""

from __future__ import annotations

import builtins
from typing import Unpack

from holdfast.client import validate_calls
from holdfast.client.sync_api.namespace import Namespace
from holdfast.domain import gates
from holdfast.domain.gates import KeyUse, Limit, LimitOptions
from holdfast.operations import flow_limits


class Limits(Namespace):
    """Sets, lists, shows and removes limits by key: `queue.limits`."""

    # --- read ------------------------------------------------------------------------------------------------------

    def list(self) -> builtins.list[Limit]:
        """Return all limits in order of their names."""
        return self._runner.read(flow_limits.list_limits)

    def get(self, name: str) -> Limit:
        """Return a limit. Raises `LimitNotFound`."""
        return self._runner.read(flow_limits.get_limit, gates.check_name(name))

    def show(self, key: str) -> builtins.list[KeyUse]:
        """Return how a key uses each limit; a limit that the key does not use is missing."""
        return self._runner.read(flow_limits.show_key, gates.check_key(key))

    # --- change ----------------------------------------------------------------------------------------------------

    def set(self, name: str, *, actor: str | None = None, **options: Unpack[LimitOptions]) -> Limit:
        """Set a limit, or change the one of this name: `set("llm", kinds=["llm.call"], key="tenant", concurrency=2)`.

        See `LimitOptions`. It applies to every claim from now on, also of jobs that wait already. Jobs that run are
        counted and not stopped. Raises `Conflict` if another limit of the same sort concerns the same jobs.
        """
        limit = gates.check_limit(name, options)
        return self._runner.write(flow_limits.set_limit, limit, validate_calls.actor(actor))

    def remove(self, name: str, *, actor: str | None = None) -> Limit:
        """Delete a limit and return it; jobs that wait for room become ready. Raises `LimitNotFound`."""
        return self._runner.write(flow_limits.remove_limit, gates.check_name(name), validate_calls.actor(actor))
