"""Sessions: the options with which an entry joins one, their validation, and the session as stored.

A session is a serial key: its entries are claimed in enqueue order, by one holder at a time. An entry is a job with
a few more options. Sessions belong to a tenant; two tenants may use the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from holdfast.domain import limits, strict_json, validation
from holdfast.domain.clock import Now
from holdfast.domain.errors import InvalidInput
from holdfast.domain.strict_json import Json

WorkClass: TypeAlias = Literal["turn", "command"]
Delivery: TypeAlias = Literal["earliest_safe_boundary", "after_current_turn_commit"]
Slot: TypeAlias = Literal["exclusive", "join"]

WORK_CLASSES: Final[tuple[WorkClass, ...]] = ("turn", "command")
DELIVERIES: Final[tuple[Delivery, ...]] = ("earliest_safe_boundary", "after_current_turn_commit")
SLOTS: Final[tuple[Slot, ...]] = ("exclusive", "join")
KIND_MERGES: Final = "default"
"""The merge key that represents the kind of the entry."""


class SessionOptions(TypedDict, total=False):
    """The options of `enqueue` that make a job an entry of a session."""

    session: str | None
    """The session it belongs to; its entries are claimed in order, by one holder, by session claims only."""
    work_class: WorkClass
    """`turn` (default), which may be joined with others, or `command`, which is always claimed alone."""
    delivery: Delivery
    """`earliest_safe_boundary` (default): also at a checkpoint; `after_current_turn_commit`: only between turns."""
    slot: Slot
    """`exclusive` (default): claimed alone; `join`: together with matching turns behind it."""
    merge_key: str
    """Which turns match: `default` (those of the same kind), `never`, or the name of a group."""
    source_key: str | None
    """Unique within the session: enqueueing it again returns the first entry, regardless of the content."""
    items: Sequence[Json]
    """Several items in one entry, instead of the payload."""


SESSION_OPTIONS: Final = frozenset(SessionOptions.__annotations__)
# The position of an entry is determined by its session alone; options that would move it, or merge it by other rules,
# are refused.
UNSUPPORTED_OPTIONS: Final = {
    "priority": "is not supported in a session: entries are claimed in enqueue order",
    "affinity": "is not supported in a session: entries are claimed in enqueue order",
    "dedupe_key": "cannot be combined with session; use a source_key",
    "dedupe_scope": "cannot be combined with session",
    "on_duplicate": "cannot be combined with session",
}


class SessionEntry(NamedTuple):
    """The session properties of a job that is an entry of one."""

    session: str
    work_class: WorkClass
    delivery: Delivery
    slot: Slot
    merge_key: str
    source_key: str | None
    items: int | None
    """The number of items if the payload is a list of them, or None if the payload is one item."""

    def to_json(self) -> str:
        """Return the stored form."""
        return strict_json.compact(list(self))

    @classmethod
    def from_json(cls, text: str) -> SessionEntry:
        """Return the entry that `to_json` stored."""
        return cls(*strict_json.decode(text))


def check_entry(options: Mapping[str, Any], payload: Json) -> tuple[SessionEntry, Json]:
    """Return the entry described by the options of `enqueue`, and its payload, or raise `InvalidInput`."""
    session = _check_session(options)
    work_class = validation.one_of(options.get("work_class", "turn"), "work_class", WORK_CLASSES)
    slot = validation.one_of(options.get("slot", "exclusive"), "slot", SLOTS)
    if work_class == "command" and slot == "join":
        raise InvalidInput("slot", "must be 'exclusive' for a command, which is never joined")
    items = options.get("items")
    entry = SessionEntry(
        session=session,
        work_class=work_class,
        delivery=validation.one_of(options.get("delivery", DELIVERIES[0]), "delivery", DELIVERIES),
        slot=slot,
        merge_key=validation.name(options.get("merge_key", KIND_MERGES), "merge_key"),
        source_key=validation.optional_name(options.get("source_key"), "source_key", limits.SOURCE_KEY_CHARS_MAX),
        items=None if items is None else _check_items(items, payload),
    )
    return entry, payload if items is None else list(items)


def _check_session(options: Mapping[str, Any]) -> str:
    if options.get("session") is None:
        option = min(SESSION_OPTIONS.intersection(options) - {"session"})
        raise InvalidInput(option, "requires a session")
    session = validation.name(options["session"], "session")
    for option, why in UNSUPPORTED_OPTIONS.items():
        if options.get(option) is not None:
            raise InvalidInput(option, why)
    return session


def _check_items(items: object, payload: Json) -> int:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise InvalidInput("items", f"must be a list, not {type(items).__name__}")
    if payload is not None:
        raise InvalidInput("items", "cannot be combined with a payload")
    if not 1 <= len(items) <= limits.SESSION_ENTRY_ITEMS_MAX:
        raise InvalidInput(
            "items", f"has {len(items)} entries; it must have from 1 to {limits.SESSION_ENTRY_ITEMS_MAX}"
        )
    return len(items)


def joins_session(options: Mapping[str, Any]) -> bool:
    """Return whether the options of `enqueue` name a session; an option that is None is ignored."""
    return any(options.get(option) is not None for option in SESSION_OPTIONS.intersection(options))


def entry_id(tenant: str, session: str, source_key: str | None, at_ms: int, nonce: str) -> str:
    """Return the id of an entry whose caller chose none: the same for the same arguments.

    A source key identifies an entry within its session; without one the nonce does.
    """
    values = [tenant, session, source_key, at_ms, nonce if source_key is None else ""]
    return f"entry-{digest(*values)}"


def digest(*values: Json) -> str:
    """Return a short digest of the values, for identifiers that must be the same for the same arguments."""
    return hashlib.blake2b(strict_json.canonical(list(values)), digest_size=16).hexdigest()


# --- the session as stored ------------------------------------------------------------------------------------------


class Session(NamedTuple):
    """One session: its counters, the lease of its runtime, its newest claim, and its claimable head."""

    number: int
    tenant: str
    name: str
    enqueue_seq: int
    """The position of its newest entry."""
    fence: int
    """The fencing token of its newest claim; it only increases."""
    generation: int
    """Incremented whenever the session is opened by a runtime."""
    lease_token: str | None
    lease_worker: str | None
    lease_incarnation: str | None
    lease_until_ms: int | None
    claim_id: str | None
    claim_worker: str | None
    claim_nonce: str | None
    claim_token: str | None
    head_route: int | None
    head_class: WorkClass | None
    head_fair_key: str | None
    head_seq: int | None
    """The number of the entry that can be claimed next, if any."""

    @property
    def head(self) -> Head | None:
        """The head that any worker can claim."""
        if self.head_seq is None:
            return None
        return Head(self.head_route, self.head_class, self.head_fair_key, self.head_seq)

    def leased(self, now: Now) -> bool:
        """Return whether a runtime holds its lease."""
        return self.lease_until_ms is not None and self.lease_until_ms > now.lease_ms


class Head(NamedTuple):
    """The position of a session among claimable ones: route, work class, fairness key, and the number of its head."""

    route: int | None
    work_class: WorkClass | None
    turn: str | None
    seq: int | None


NO_HEAD: Final = Head(None, None, None, None)
