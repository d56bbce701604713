"""Sessions: the options with which an entry joins one, their validation, and the session as stored.

A session is a serial key: its entries are claimed in enqueue order, by one holder at a time. An entry is a job with
a few more options. Sessions belong to a tenant; two tenants may use the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from holdfast.domain import errors, limits, strict_json, validation
from holdfast.domain.clock import Now
from holdfast.domain.strict_json import Json

EntryType: TypeAlias = Literal["message", "command"]
"""The type of a session entry."""
EntryDelivery: TypeAlias = Literal["checkpoint", "next_turn"]
"""When an entry may be claimed: also at a checkpoint of a running turn, or only between turns."""

ENTRY_TYPES: Final[tuple[EntryType, ...]] = ("message", "command")
DELIVERIES: Final[tuple[EntryDelivery, ...]] = ("checkpoint", "next_turn")


class SessionOptions(TypedDict, total=False):
    """The options of `enqueue` that make a job an entry of a session."""

    session: str | None
    """The session it belongs to; its entries are claimed in order, by one holder, by session claims only."""
    entry_type: EntryType
    """`message` (default), or `command`, which is always claimed alone."""
    join: bool | str
    """False (default): claimed alone; True: together with the joining messages of the same kind that follow; a name:
    with those of the same name."""
    delivery: EntryDelivery
    """`checkpoint` (default): also at a checkpoint of a running turn; `next_turn`: only between turns."""
    message_id: str | None
    """Unique within the session: enqueueing it again returns the first entry, regardless of the content."""
    messages: Sequence[Json]
    """Several messages in one entry, instead of the payload."""


SESSION_OPTIONS: Final = frozenset(SessionOptions.__annotations__)
# The position of an entry is determined by its session alone; options that would move it, or merge it by other rules,
# are refused.
UNSUPPORTED_OPTIONS: Final = {
    "priority": "is not supported in a session: entries are claimed in enqueue order",
    "affinity": "is not supported in a session: entries are claimed in enqueue order",
    "dedupe_key": "cannot be combined with session; use a message_id",
    "dedupe_scope": "cannot be combined with session",
    "dedupe_for": "cannot be combined with session; use a message_id",
    "on_duplicate": "cannot be combined with session",
    "debounce": "cannot be combined with session",
}


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """The session properties of a job that is an entry of one."""

    session: str
    """The name of the session."""
    entry_type: EntryType
    """`message`, or `command`, which is claimed alone."""
    join: bool | str
    """Whether it is claimed together with others: of its kind if True, of this name if a string."""
    delivery: EntryDelivery
    """`checkpoint`: also at a checkpoint of a running turn; `next_turn`: only between turns."""
    message_id: str | None
    """The id given by the caller, unique within the session."""
    messages: int | None
    """The number of messages if the payload is a list of them, or None if the payload is one message."""


def entry_to_json(entry: SessionEntry) -> str:
    """Return the stored form of *entry*."""
    return strict_json.compact([getattr(entry, name) for name in entry.__slots__])


def entry_from_json(text: str) -> SessionEntry:
    """Return the entry that `entry_to_json` stored."""
    return SessionEntry(*strict_json.decode(text))


def check_entry(options: Mapping[str, Any], payload: Json) -> tuple[SessionEntry, Json]:
    """Return the entry described by the options of `enqueue`, and its payload, or raise `InvalidInput`."""
    session = _check_session(options)
    entry_type = validation.one_of(options.get("entry_type", "message"), "entry_type", ENTRY_TYPES)
    join = _check_join(options.get("join", False))
    if entry_type == "command" and join is not False:
        raise errors.InvalidInput("join", "must be False for a command, which is always claimed alone")
    messages = options.get("messages")
    entry = SessionEntry(
        session=session,
        entry_type=entry_type,
        join=join,
        delivery=validation.one_of(options.get("delivery", DELIVERIES[0]), "delivery", DELIVERIES),
        message_id=validation.optional_name(options.get("message_id"), "message_id", limits.MESSAGE_ID_CHARS_MAX),
        messages=None if messages is None else _check_messages(messages, payload),
    )
    return entry, payload if messages is None else list(messages)


def _check_session(options: Mapping[str, Any]) -> str:
    if options.get("session") is None:
        option = min(SESSION_OPTIONS.intersection(options) - {"session"})
        raise errors.InvalidInput(option, "requires a session")
    session = validation.name(options["session"], "session")
    for option, why in UNSUPPORTED_OPTIONS.items():
        if options.get(option) is not None:
            raise errors.InvalidInput(option, why)
    return session


def _check_join(join: object) -> bool | str:
    if isinstance(join, bool):
        return join
    if not isinstance(join, str):
        raise errors.InvalidInput("join", f"must be True, False or a name, not {type(join).__name__}")
    return validation.name(join, "join")


def _check_messages(messages: object, payload: Json) -> int:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise errors.InvalidInput("messages", f"must be a list, not {type(messages).__name__}")
    if payload is not None:
        raise errors.InvalidInput("messages", "cannot be combined with a payload")
    limit = limits.SESSION_ENTRY_MESSAGES_MAX
    if not 1 <= len(messages) <= limit:
        problem = f"has {len(messages)} messages; it must have from 1 to {limit}"
        raise errors.InvalidInput("messages", problem, limit if messages else 1)
    return len(messages)


def joins_session(options: Mapping[str, Any]) -> bool:
    """Return whether the options of `enqueue` name a session; an option that is None is ignored."""
    return any(options.get(option) is not None for option in SESSION_OPTIONS.intersection(options))


def entry_id(tenant: str, session: str, message_id: str | None, at_ms: int, fresh_id: str) -> str:
    """Return the id of an entry whose caller chose none: the same for the same arguments.

    A message id identifies an entry within its session; without one *fresh_id* does.
    """
    values = [tenant, session, message_id, at_ms, fresh_id if message_id is None else ""]
    return f"entry-{digest(*values)}"


def digest(*values: Json) -> str:
    """Return a short digest of the values, for identifiers that must be the same for the same arguments."""
    return hashlib.blake2b(strict_json.canonical(list(values)), digest_size=16).hexdigest()


# --- the session as stored ------------------------------------------------------------------------------------------


class Session(NamedTuple):
    """One session: its counters, the lease of its owner, its newest claim, and its claimable head."""

    number: int
    tenant: str
    name: str
    enqueue_seq: int
    """The position of its newest entry."""
    fence: int
    """The fencing token of its newest claim; it only increases."""
    generation: int
    """Incremented whenever the session is opened by an owner."""
    lease_token: str | None
    lease_worker: str | None
    lease_incarnation: str | None
    lease_until_ms: int | None
    claim_id: str | None
    head_route: int | None
    head_entry_type: EntryType | None
    head_fair_key: str | None
    head_seq: int | None
    """The number of the entry that can be claimed next, if any."""

    @property
    def head(self) -> Head | None:
        """The head that any worker can claim."""
        if self.head_seq is None:
            return None
        return Head(self.head_route, self.head_entry_type, self.head_fair_key, self.head_seq)

    def leased(self, now: Now) -> bool:
        """Return whether an owner holds its lease."""
        return self.lease_until_ms is not None and self.lease_until_ms > now.lease_ms


class Head(NamedTuple):
    """The position of a session among claimable ones: route, entry type, fairness key, and the number of its head."""

    route: int | None
    entry_type: EntryType | None
    fair_key: str | None
    seq: int | None


NO_HEAD: Final = Head(None, None, None, None)
