# Generated from client/async_api/webhooks.py by scripts/make-sync; do not edit.
"""`queue.webhooks`: events of jobs, sent to URLs."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Sequence
from typing import Unpack

from holdfast.client import ids, validate_calls
from holdfast.client.sync_api.namespace import Namespace
from holdfast.domain import limits, validation, webhook_signatures, webhooks
from holdfast.domain.job import STATES, State
from holdfast.domain.results import Requeued
from holdfast.domain.validation import Duration
from holdfast.domain.webhooks import Delivery, NewWebhook, Webhook, WebhookOptions
from holdfast.operations import webhooks as webhook_operations


class Webhooks(Namespace):
    """Adds, lists, enables, rotates and removes webhooks, and sends deliveries again: `queue.webhooks`."""

    # --- read ------------------------------------------------------------------------------------------------------

    def list(self, *, tenant: str | None = None, limit: int = 100) -> builtins.list[Webhook]:
        """Return the webhooks that were added last, up to *limit*, by default 100, without their secrets."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return self._runner.read(webhook_operations.list_webhooks, validate_calls.tenant(tenant), limit)

    def get(self, webhook_id: str, *, tenant: str | None = None) -> Webhook:
        """Return a webhook. Raises `WebhookNotFound`."""
        webhook_id = validation.name(webhook_id, "webhook_id")
        return self._runner.read(webhook_operations.get_webhook, webhook_id, validate_calls.tenant(tenant))

    def deliveries(
        self,
        webhook_id: str,
        *,
        state: State | Sequence[State] | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> builtins.list[Delivery]:
        """Return the newest deliveries of a webhook; `state="failed"` returns those whose tries are used up."""
        webhook_id = validation.name(webhook_id, "webhook_id")
        given = (state,) if isinstance(state, str) else tuple(state or ())
        states = tuple(validation.one_of(one, "state", STATES) for one in given)
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return self._runner.read(
            webhook_operations.deliveries, webhook_id, validate_calls.tenant(tenant), states, limit
        )

    # --- change ----------------------------------------------------------------------------------------------------

    def add(self, url: str, *, actor: str | None = None, **options: Unpack[WebhookOptions]) -> NewWebhook:
        """Deliver events from now on to *url*; the secret of the webhook is returned here and nowhere else.

        See `WebhookOptions` for the events that are delivered. Deliveries are sent by any worker or server that has
        the extra `holdfast[webhooks]` installed.
        """
        checked = webhooks.check_webhook(url, options)
        secret = _secret(options.get("secret"))
        webhook = self._runner.write(
            webhook_operations.add_webhook, f"wh_{ids.token_id()}", checked, secret, validate_calls.actor(actor)
        )
        return NewWebhook(webhook, secret)

    def rotate(
        self,
        webhook_id: str,
        *,
        secret: str | None = None,
        overlap: Duration = 86_400,
        tenant: str | None = None,
        actor: str | None = None,
    ) -> NewWebhook:
        """Sign deliveries with a new secret, and for *overlap* seconds, by default a day, with the old one as well.

        Raises `WebhookNotFound`.
        """
        webhook_id = validation.name(webhook_id, "webhook_id")
        overlap_ms = validation.duration_ms(overlap, "overlap")
        new = _secret(secret)
        webhook = self._runner.write(
            webhook_operations.rotate_webhook,
            webhook_id,
            validate_calls.tenant(tenant),
            new,
            overlap_ms,
            validate_calls.actor(actor),
        )
        return NewWebhook(webhook, new)

    def enable(self, webhook_id: str, *, tenant: str | None = None, actor: str | None = None) -> Webhook:
        """Deliver events from now on to a webhook that was disabled; open a closed endpoint at once.

        Raises `WebhookNotFound`.
        """
        webhook_id = validation.name(webhook_id, "webhook_id")
        return self._runner.write(
            webhook_operations.enable_webhook, webhook_id, validate_calls.tenant(tenant), validate_calls.actor(actor)
        )

    def remove(self, webhook_id: str, *, tenant: str | None = None, actor: str | None = None) -> Webhook:
        """Delete a webhook; its deliveries that were not made yet fail. Raises `WebhookNotFound`."""
        webhook_id = validation.name(webhook_id, "webhook_id")
        return self._runner.write(
            webhook_operations.remove_webhook, webhook_id, validate_calls.tenant(tenant), validate_calls.actor(actor)
        )

    def test(self, webhook_id: str, *, tenant: str | None = None, actor: str | None = None) -> Delivery:
        """Deliver the event `webhook.test`. Raises `WebhookNotFound`, and `Conflict` if the webhook is disabled."""
        webhook_id = validation.name(webhook_id, "webhook_id")
        return self._runner.write(
            webhook_operations.send_test,
            webhook_id,
            validate_calls.tenant(tenant),
            f"test_{secrets.token_hex(8)}_{webhook_id}",
            validate_calls.actor(actor),
        )

    def replay(self, webhook_id: str, *, tenant: str | None = None, actor: str | None = None) -> Requeued:
        """Send the failed deliveries of a webhook again, with the ids they had.

        Raises `WebhookNotFound`, and `Conflict` if the webhook is disabled: enable it first.
        """
        webhook_id = validation.name(webhook_id, "webhook_id")
        owner, actor = validate_calls.tenant(tenant), validate_calls.actor(actor)
        total, after = Requeued([], []), None
        while True:
            part, after = self._runner.write(webhook_operations.replay, webhook_id, owner, after, actor)
            total.requeued.extend(part.requeued)
            total.skipped.extend(part.skipped)
            if after is None:
                return total


def _secret(given: str | None) -> str:
    """Return the given secret if it is valid, or a new one."""
    if given is None:
        return webhook_signatures.secret_of(secrets.token_bytes(webhook_signatures.SECRET_BYTES))
    return webhook_signatures.check_secret(given, "secret")
