"""Access over HTTP: tokens, their roles, scopes and ceilings, and the audit log of operator actions.

A token is written `hf_<id>_<secret>`. The store keeps the SHA-256 of the secret only: it has 256 random bits, which
cannot be guessed however fast the hash is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict, cast

from holdfast.domain import errors, limits, strict_json, validation
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration

Role: TypeAlias = Literal["produce", "work", "read", "admin"]
"""What a token may do; `admin` includes the others."""
ROLES: Final[tuple[Role, ...]] = ("produce", "work", "read", "admin")
TokenState: TypeAlias = Literal["active", "expired", "revoked"]
"""Whether a token can be used."""

_TOKEN: Final = re.compile(r"hf_([a-z2-7]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_ID: Final = re.compile(r"[a-z2-7]{16}", re.ASCII)
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
# Compared with the secret of a token that does not exist, so that the time does not tell whether it does.
_NO_HASH: Final = "0" * 64


class TokenOptions(TypedDict, total=False):
    """The options of `tokens.create`: scopes, ceilings and expiry of the token."""

    tenant: str | None
    """Its tenant; None for any tenant."""
    lanes: Sequence[str] | None
    """The lanes that it may use; None for any."""
    kinds: Sequence[str] | None
    """The kinds that it may use; None for any."""
    priority_max: int | None
    """The highest priority with which it may enqueue."""
    payload_bytes_max: int | None
    """The size of the largest payload that it may enqueue."""
    claim_max: int | None
    """The largest number of jobs that it may claim at once."""
    expires_in: Duration | None
    """Seconds until it expires."""


@dataclass(frozen=True, slots=True)
class Grants:
    """What a token may do."""

    roles: tuple[Role, ...]
    """`admin` includes the others."""
    tenant: str | None = None
    """None for any tenant."""
    lanes: tuple[str, ...] | None = None
    """None for any lane."""
    kinds: tuple[str, ...] | None = None
    """None for any kind."""
    priority_max: int | None = None
    """The highest priority of a new job."""
    payload_bytes_max: int | None = None
    """The size of the largest payload."""
    claim_max: int | None = None
    """The largest number of jobs in one claim."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token for the HTTP service, without its secret."""

    id: str
    """Its id, which is a part of its text and no secret."""
    name: str
    """What it is for, as text for people."""
    grants: Grants
    """What it may do."""
    created_at: datetime
    """When it was created."""
    expires_at: datetime | None = None
    """When it expires; None if it does not."""
    last_used_at: datetime | None = None
    """When it was used last, to within a minute; None if it never was."""
    revoked_at: datetime | None = None
    """When it was revoked; None if it was not."""

    def state(self, now: datetime) -> TokenState:
        """Return whether it can be used at *now*: `active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created. `text` is its only copy: the store has a hash."""

    token: Token
    """The token without its secret."""
    text: str = field(repr=False)
    """What its holder sends: `hf_<id>_<secret>`."""


class StoredToken(NamedTuple):
    """A token and the hash of its secret."""

    token: Token
    hash: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action of an operator, recorded before it was carried out."""

    number: int
    """Its number; later entries have greater ones."""
    at: datetime
    """When it was recorded."""
    actor: str
    """`user@host` on the command line, `token:<id>` over HTTP."""
    action: str
    """Such as `jobs.cancel`."""
    target: str
    """What it was done to."""
    detail: Mapping[str, Json]
    """Options of the action."""


# --- tokens --------------------------------------------------------------------------------------------------------


def check_grants(roles: Sequence[Role], options: TokenOptions) -> Grants:
    """Return the grants of a new token, or raise `InvalidInput`."""
    unknown = options.keys() - TokenOptions.__annotations__.keys()
    if unknown:
        valid = ", ".join(sorted(TokenOptions.__annotations__))
        raise errors.InvalidInput(min(unknown), f"unknown option; valid options are {valid}")
    chosen = validation.names(roles, "roles", len(ROLES))
    if not chosen:
        raise errors.InvalidInput("roles", f"must contain a role: {', '.join(ROLES)}")
    for index, role in enumerate(chosen):
        validation.one_of(role, f"roles[{index}]", ROLES)
    return Grants(
        cast("tuple[Role, ...]", chosen),
        validation.optional_name(options.get("tenant"), "tenant"),
        _names(options.get("lanes"), "lanes", limits.CLAIM_LANES_MAX),
        _names(options.get("kinds"), "kinds", limits.CLAIM_KINDS_MAX),
        _ceiling(options.get("priority_max"), "priority_max", -limits.PRIORITY_MAX, limits.PRIORITY_MAX),
        _ceiling(options.get("payload_bytes_max"), "payload_bytes_max", 1, limits.PAYLOAD_BYTES_MAX),
        _ceiling(options.get("claim_max"), "claim_max", 1, limits.CLAIM_MAX),
    )


def _names(values: Sequence[str] | None, option: str, count_max: int) -> tuple[str, ...] | None:
    if values is None:
        return None
    names = validation.names(values, option, count_max)
    if not names:
        raise errors.InvalidInput(option, "must contain a name; leave it out for any")
    return names


def _ceiling(value: int | None, option: str, low: int, high: int) -> int | None:
    return None if value is None else validation.integer(value, option, low, high)


def hash_secret(secret: str) -> str:
    """Return the hash of a secret, as the store keeps it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def check_new_id(token_id: str) -> str:
    """Return the id of a token that a client has generated, or raise `InvalidInput`."""
    if not _ID.fullmatch(token_id):
        raise errors.InvalidInput("id", "must be 16 characters of a to z and 2 to 7")
    return token_id


def check_hash(secret_hash: str) -> str:
    """Return the hash of a secret that a client has generated, or raise `InvalidInput`."""
    if not _HASH.fullmatch(secret_hash):
        raise errors.InvalidInput("secret_hash", "must be a SHA-256 as 64 hexadecimal digits")
    return secret_hash


def parse_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token, or None if *text* is not one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], found[2])


def is_genuine(stored: StoredToken | None, secret: str) -> bool:
    """Return whether *secret* is that of the stored token, in a time that does not depend on either."""
    genuine = hmac.compare_digest(hash_secret(secret), _NO_HASH if stored is None else stored.hash)
    return genuine and stored is not None


# --- decisions -----------------------------------------------------------------------------------------------------


def check_role(grants: Grants, roles: Collection[Role]) -> None:
    """Raise `Forbidden` unless the token has one of *roles*; `admin` includes the others."""
    if "admin" not in grants.roles and set(roles).isdisjoint(grants.roles):
        needed = " or ".join(role for role in ROLES if role in {*roles, "admin"})
        raise errors.Forbidden(f"this needs the role {needed}; the token has {', '.join(grants.roles)}")


def check_any_tenant(grants: Grants) -> None:
    """Raise `Forbidden` if the token is for one tenant only."""
    if grants.tenant is not None:
        raise errors.Forbidden("this concerns all tenants; the token is for one")


def check_any_job(grants: Grants) -> None:
    """Raise `Forbidden` if the token is for some lanes or kinds only."""
    if grants.lanes is not None or grants.kinds is not None:
        raise errors.Forbidden("this concerns all lanes and kinds; the token is for some")


def tenant_for(grants: Grants, asked: str | None, path: str = "tenant") -> str | None:
    """Return the tenant that a call acts for, None for any; raise `Forbidden` if *asked* is not the token's."""
    if grants.tenant is not None and asked not in {None, grants.tenant}:
        raise errors.Forbidden(f"the token is for tenant {grants.tenant!r}", field=path)
    return asked if grants.tenant is None else grants.tenant


def covers(grants: Grants, lane: str, kind: str) -> bool:
    """Return whether a lane and a kind are within the token's scopes."""
    return (grants.lanes is None or lane in grants.lanes) and (grants.kinds is None or kind in grants.kinds)


def check_lane(grants: Grants, lane: str | None, path: str) -> str | None:
    """Return the lane of a new job, or raise `Forbidden`.

    A token with scopes never leaves the lane to the published options of the kind: the lane is its only one, or must
    be given.
    """
    if grants.lanes is None:
        return lane
    if lane is None and len(grants.lanes) == 1:
        return grants.lanes[0]
    if lane not in grants.lanes:
        raise errors.Forbidden(f"the token is for the lanes {', '.join(grants.lanes)}", field=path)
    return lane


def check_kind(grants: Grants, kind: str, path: str) -> None:
    """Raise `Forbidden` if the token is for other kinds."""
    if grants.kinds is not None and kind not in grants.kinds:
        raise errors.Forbidden(f"the token is for the kinds {', '.join(grants.kinds)}", field=path)


def check_job_ceilings(grants: Grants, priority: int, payload_bytes: int, path: str) -> None:
    """Raise `Forbidden` if a new job exceeds a ceiling of the token; *path* is that of the job, with a dot."""
    _check_ceiling(priority, grants.priority_max, f"{path}priority")
    _check_ceiling(payload_bytes, grants.payload_bytes_max, f"{path}payload")


def check_claim_size(grants: Grants, limit: int) -> None:
    """Raise `Forbidden` if a claim exceeds the token's ceiling."""
    _check_ceiling(limit, grants.claim_max, "limit")


def _check_ceiling(value: int, ceiling: int | None, path: str) -> None:
    if ceiling is not None and value > ceiling:
        raise errors.Forbidden(f"is {value}; the limit of the token is {ceiling}", field=path, limit=ceiling)


def scoped_names(
    asked: Sequence[str] | None, granted: tuple[str, ...] | None, path: str
) -> tuple[str, ...] | Sequence[str] | None:
    """Return the lanes or kinds of a claim: those asked for, else those granted; raise `Forbidden` for others."""
    if asked is None or granted is None:
        return granted if asked is None else asked
    for index, name in enumerate(asked):
        if name not in granted:
            raise errors.Forbidden(f"the token is for {', '.join(granted)}", field=f"{path}[{index}]")
    return asked


# --- stored form ---------------------------------------------------------------------------------------------------


def grants_to_json(grants: Grants) -> tuple[str, str, str]:
    """Return roles, scopes and ceilings as JSON."""
    scopes = {"lanes": grants.lanes, "kinds": grants.kinds}
    ceilings = {
        name: getattr(grants, name)
        for name in ("priority_max", "payload_bytes_max", "claim_max")
        if getattr(grants, name) is not None
    }
    granted = {name: list(values) for name, values in scopes.items() if values is not None}
    return strict_json.compact(list(grants.roles)), strict_json.compact(granted), strict_json.compact(ceilings)


def grants_from_json(tenant: str | None, roles_json: str, scopes_json: str, ceilings_json: str) -> Grants:
    """Return the grants of a stored token; ceilings of later versions are ignored."""
    scopes, ceilings = strict_json.decode(scopes_json), strict_json.decode(ceilings_json)
    lanes, kinds = (tuple(scopes[name]) if name in scopes else None for name in ("lanes", "kinds"))
    known = (ceilings.get(name) for name in ("priority_max", "payload_bytes_max", "claim_max"))
    return Grants(tuple(strict_json.decode(roles_json)), tenant, lanes, kinds, *known)
