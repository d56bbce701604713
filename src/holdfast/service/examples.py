"""Examples of requests and responses for the OpenAPI document; tests send them too."""

from typing import Any, Final

JOB_ID_EXAMPLE: Final = "0198c0de-0000-7000-8000-000000000001"
NEW_EXAMPLE: Final = {
    "kind": "email.send",
    "payload": {"to": "ada@example.org"},
    "lane": "mail",
    "tags": {"order": "42"},
}
PROOF_EXAMPLE: Final = {"epoch": 1, "lease_token": "9f2c1d"}

JOB_EXAMPLE: Final[dict[str, Any]] = {
    "id": JOB_ID_EXAMPLE,
    "number": 1,
    "state": "ready",
    "kind": "email.send",
    "lane": "mail",
    "tenant": "default",
    "priority": 0,
    "affinity": None,
    "requires": [],
    "payload": {"to": "ada@example.org"},
    "result": None,
    "failure": None,
    "headers": {},
    "tags": {"order": "42"},
    "enqueued_at_ms": 1_790_000_000_000,
    "due_at_ms": 1_790_000_000_000,
    "deadline_at_ms": None,
    "started_at_ms": None,
    "finished_at_ms": None,
    "lease_until_ms": None,
    "attempt": 0,
    "max_attempts": 5,
    "backoff": {"base_ms": 60_000, "factor": 2.0, "cap_ms": 3_600_000, "jitter": 0.2},
    "epoch": 0,
    "worker": None,
    "incarnation": None,
    "outcome": None,
    "phase": None,
    "percent": None,
    "cancel_requested": False,
    "suspect": False,
    "deferrals": 0,
    "releases": 0,
    "dedupe_key": None,
    "dedupe_scope": None,
    "events": "terminal",
    "parent": None,
    "root": JOB_ID_EXAMPLE,
    "entry": None,
}
RUNNING_EXAMPLE: Final = {
    **JOB_EXAMPLE,
    "state": "running",
    "attempt": 1,
    "epoch": 1,
    "worker": "curl-1",
    "incarnation": "http",
}
RENEWAL_EXAMPLE: Final = {"lease_until_ms": 1_790_000_030_000, "cancel_requested": False}
