"""`queue.admin.tokens`: tokens of the HTTP service."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Unpack

from holdfast.client import ids, validate_calls
from holdfast.client.async_api.namespace import AsyncNamespace
from holdfast.domain import limits, validation
from holdfast.domain.access import NewToken, Role, Token, TokenOptions, check_grants, hash_secret
from holdfast.domain.validation import Duration
from holdfast.operations import access as access_operations


class AsyncTokens(AsyncNamespace):
    """Creates, lists, rotates and revokes tokens of the HTTP service: `queue.admin.tokens`."""

    async def create(
        self, name: str, *, roles: Sequence[Role], actor: str | None = None, **options: Unpack[TokenOptions]
    ) -> NewToken:
        """Create a token for the HTTP service; its text is returned here and nowhere else.

        *name* says what it is for. *roles* are `produce`, `work`, `read` and `admin`; see `TokenOptions` for scopes,
        ceilings and expiry. *actor*, by default `user@host` of this process, is recorded in the audit log.
        """
        name = validation.name(name, "name")
        grants = check_grants(roles, options)
        expires_in = options.get("expires_in")
        expires_ms = None if expires_in is None else validation.duration_ms(expires_in, "expires_in", 1)
        token_id, secret = ids.token_id(), ids.token_secret()
        token = await self._runner.write(
            access_operations.create_token,
            token_id,
            hash_secret(secret),
            name,
            grants,
            expires_ms,
            validate_calls.actor(actor),
        )
        return NewToken(token, f"hf_{token_id}_{secret}")

    async def rotate(
        self,
        token_id: str,
        *,
        overlap: Duration = 86_400.0,
        actor: str | None = None,
    ) -> NewToken:
        """Create a token with the same grants; the old one expires after *overlap* seconds, by default a day.

        Raises `TokenNotFound`, and `Conflict` if the old one has expired or was revoked. *actor*, by default
        `user@host` of this process, is recorded in the audit log.
        """
        token_id = validation.name(token_id, "token_id")
        overlap_ms = validation.duration_ms(overlap, "overlap")
        new_id, secret = ids.token_id(), ids.token_secret()
        token = await self._runner.write(
            access_operations.rotate_token,
            token_id,
            new_id,
            hash_secret(secret),
            overlap_ms,
            validate_calls.actor(actor),
        )
        return NewToken(token, f"hf_{new_id}_{secret}")

    async def revoke(self, token_id: str, *, actor: str | None = None) -> Token:
        """Revoke a token at once and return it; servers end its streams within a second. Raises `TokenNotFound`.

        *actor*, by default `user@host` of this process, is recorded in the audit log.
        """
        token_id = validation.name(token_id, "token_id")
        return await self._runner.write(access_operations.revoke_token, token_id, validate_calls.actor(actor))

    async def list(self, *, limit: int = 100) -> builtins.list[Token]:
        """Return the tokens that were created last, up to *limit*, without their secrets."""
        return await self._runner.read(
            access_operations.tokens, validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        )
