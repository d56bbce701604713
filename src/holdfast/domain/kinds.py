"""The catalog of kinds: what workers publish about the tasks that they serve, and which kinds are retired.

A worker publishes the options and the JSON schema of each task. Producers that do not declare the task themselves
get these options as defaults and have their payloads checked by the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.domain import json_schema, limits, strict_json, validation
from holdfast.domain.strict_json import Json

_SCHEMAS_CACHED: Final = 1_024


class Publication(NamedTuple):
    """What a worker publishes about one task, in stored form."""

    options_json: str
    """The options of `enqueue` that the task sets, as an object."""
    timeout_ms: int
    session: bool
    """Whether it is a session task."""
    schema_json: str | None
    """The JSON schema of its payload, or of one message of a session task; None if it has none."""

    def check_payload(self, payload_json: str, messages: int | None) -> None:
        """Raise `InvalidInput` if the payload of a new job does not match the schema.

        *messages* is their number if the job is a session entry whose payload is a list of them.
        """
        if self.schema_json is None:
            return
        schema, payload = _decoded(self.schema_json), strict_json.decode(payload_json)
        if messages is not None:
            for index, message in enumerate(payload if self.session else ()):
                json_schema.check(schema, message, f"messages[{index}]")
        elif payload is None and not self.session:
            # Null means no arguments.
            json_schema.check(schema, {}, "payload")
        else:
            json_schema.check(schema, payload, "payload")


@lru_cache(_SCHEMAS_CACHED)
def _decoded(schema_json: str) -> Json:
    return strict_json.decode(schema_json)


class KindRow(NamedTuple):
    """A kind as stored in the catalog: published, retired, or both."""

    name: str
    publication: Publication | None
    published_by: str | None
    published_at_ms: int | None
    retired_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that has jobs, is published or is retired."""

    name: str
    """Its name."""
    retired_at: datetime | None = None
    """Since when it accepts no new jobs; None if it accepts them."""
    published_by: str | None = None
    """The worker that published its task last; None if no worker has."""
    published_at: datetime | None = None
    """When its task was published last; None if it never was."""
    lane: str | None = None
    """The default lane of its jobs, as published."""
    max_attempts: int | None = None
    """The default number of attempts of its jobs, as published."""
    timeout: float | None = None
    """How many seconds an attempt may take, as published."""
    session: bool = False
    """Whether its task is a session task."""
    options: Mapping[str, Json] | None = None
    """All published options of `enqueue`, which are defaults for its jobs. Durations are seconds."""
    schema: Json = None
    """The JSON schema of a payload, or of one message of a session task; None if no worker published one."""

    @property
    def retired(self) -> bool:
        """Whether it accepts no new jobs."""
        return self.retired_at is not None


def kind_of(row: KindRow) -> Kind:
    """Return the kind that *row* describes."""
    retired_at = validation.optional_datetime_of(row.retired_at_ms)
    if row.publication is None:
        return Kind(row.name, retired_at)
    options_json, timeout_ms, session, schema_json = row.publication
    options = strict_json.decode(options_json)
    return Kind(
        row.name,
        retired_at,
        row.published_by,
        validation.optional_datetime_of(row.published_at_ms),
        options.get("lane", "default"),
        options.get("max_attempts", limits.MAX_ATTEMPTS_DEFAULT),
        timeout_ms / 1000,
        session,
        options,
        None if schema_json is None else strict_json.decode(schema_json),
    )
