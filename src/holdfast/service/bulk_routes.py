"""Rows of the route table for calls on many jobs at once, and for what only workers and operators need."""

from __future__ import annotations

from typing import Final

from holdfast.domain import limits
from holdfast.domain.job import FINISHED
from holdfast.domain.results import COUNT_BY
from holdfast.service import bulk
from holdfast.service.call import Endpoint
from holdfast.service.examples import JOB_EXAMPLE, JOB_ID_EXAMPLE, PROOF_EXAMPLE, RENEWAL_EXAMPLE, RUNNING_EXAMPLE
from holdfast.service.schemas import (
    BOOLEAN,
    INTEGER,
    LEASE,
    LEASE_SECONDS,
    SETTLEMENT,
    STRING,
    TENANT,
    Schema,
    array,
    choice,
    integer,
    nullable,
    number,
    ref,
    shape,
    strict,
    text,
)

_HELD: Final[Schema] = {"job_id": text(limits.JOB_ID_CHARS_MAX), **LEASE}
_HELD_EXAMPLE: Final = {"job_id": JOB_ID_EXAMPLE, **PROOF_EXAMPLE}
_JOB_IDS: Final = array(text(limits.JOB_ID_CHARS_MAX), limits.REQUEUE_MANY_MAX)
_SKIPPED: Final = {"type": "array", "items": shape(job_id=STRING, why=STRING, code=STRING)}
_STRINGS: Final = {"type": "array", "items": STRING}
_ANSWERS: Final = {"type": "array", "items": {"type": "object"}}
_MANY_BYTES_MAX: Final = 32 << 20
_FAR: Final = 1 << 62

BULK: Final = (
    Endpoint(
        "POST",
        "/v1/settlements",
        "settle_many",
        "Record the outcomes of many attempts in one commit; each result is a job or an error",
        bulk.settle_many,
        ("work",),
        shape(settlements=_ANSWERS),
        {"settlements": [{"job_id": JOB_ID_EXAMPLE, "state": "done", "job": {**RUNNING_EXAMPLE, "state": "done"}}]},
        body=strict(["settlements"], {"settlements": array(SETTLEMENT, limits.SETTLE_MANY_MAX)}),
        body_example={"settlements": [{**_HELD_EXAMPLE, "outcome": "done"}]},
        body_bytes_max=_MANY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        "/v1/heartbeats",
        "heartbeat_many",
        "Extend many leases, with progress, acknowledgements and output, in one commit",
        bulk.heartbeat_many,
        ("work",),
        shape(leases=_ANSWERS, output=_ANSWERS),
        {"leases": [RENEWAL_EXAMPLE], "output": []},
        body=strict(
            ["leases", "output"],
            {
                "leases": array(
                    strict(
                        ["job_id", "epoch", "lease_token"],
                        {
                            **_HELD,
                            "lease": LEASE_SECONDS,
                            "acknowledge": {**BOOLEAN, "description": "Whether the work on the job has started."},
                            "phase": nullable(text(limits.PHASE_CHARS_MAX)),
                            "percent": nullable(number(0, 100)),
                        },
                    ),
                    limits.SETTLE_MANY_MAX,
                ),
                "output": array(
                    strict(
                        ["job_id", "epoch", "lease_token", "texts"],
                        {
                            **_HELD,
                            "part": nullable(integer(0, 10**15)),
                            "texts": array(
                                {"type": "string", "maxLength": limits.OUTPUT_CHUNK_BYTES_MAX}, limits.SETTLE_MANY_MAX
                            ),
                        },
                    ),
                    limits.SETTLE_MANY_MAX,
                ),
            },
        ),
        body_example={"leases": [{**_HELD_EXAMPLE, "lease": 30, "acknowledge": True}], "output": []},
        body_bytes_max=_MANY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job_id}/reprioritize",
        "reprioritize_job",
        "Change the priority of an unfinished job",
        bulk.reprioritize,
        (),
        ref("Job"),
        {**JOB_EXAMPLE, "priority": 5},
        query={"tenant": TENANT},
        body=strict(["priority"], {"priority": integer(-limits.PRIORITY_MAX, limits.PRIORITY_MAX)}),
        body_example={"priority": 5},
        problems=(404, 409),
    ),
    Endpoint(
        "POST",
        "/v1/admin/cancel",
        "cancel_jobs",
        "Cancel many jobs in one commit",
        bulk.cancel_many,
        (),
        shape(cancelled=_STRINGS, stop_requested=_STRINGS, skipped=_SKIPPED),
        {"cancelled": [JOB_ID_EXAMPLE], "stop_requested": [], "skipped": []},
        any_job=True,
        query={"tenant": TENANT},
        body=strict(["job_ids"], {"job_ids": _JOB_IDS, "force": BOOLEAN}),
        body_example={"job_ids": [JOB_ID_EXAMPLE]},
        body_bytes_max=_MANY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        "/v1/admin/requeue",
        "requeue_jobs",
        "Make many failed or cancelled jobs ready again",
        bulk.requeue_many,
        (),
        shape(requeued=_STRINGS, skipped=_SKIPPED),
        {"requeued": [JOB_ID_EXAMPLE], "skipped": []},
        any_job=True,
        query={"tenant": TENANT},
        body=strict(["job_ids"], {"job_ids": _JOB_IDS}),
        body_example={"job_ids": [JOB_ID_EXAMPLE]},
        body_bytes_max=_MANY_BYTES_MAX,
    ),
    Endpoint(
        "POST",
        "/v1/admin/prune",
        "prune",
        "Delete a chunk of finished jobs, events or message ids; repeat it until it deletes none",
        bulk.prune,
        (),
        shape(deleted=INTEGER, after={"type": "array", "items": INTEGER}, held_back=BOOLEAN),
        {"deleted": 0, "after": [-1, -1], "held_back": False},
        any_tenant=True,
        any_job=True,
        body=strict(
            ["what", "age_ms"],
            {
                "what": choice("jobs", "events", "message_ids"),
                "age_ms": integer(
                    0, limits.PAUSE_MS_MAX, description="Since the end of the job, or since the event."
                ),
                "state": {**choice(*FINISHED), "description": "The state of the jobs, which jobs need."},
                "after": {
                    **array(integer(-1, _FAR), 2),
                    "minItems": 2,
                    "description": "Where the chunk of jobs before ended.",
                },
                "dry_run": {**BOOLEAN, "description": "For events: count those that would be deleted."},
            },
        ),
        body_example={"what": "jobs", "age_ms": 604_800_000, "state": "done"},
    ),
    Endpoint(
        "GET",
        "/v1/counts",
        "count_jobs",
        "Count the jobs by one property; this reads every job",
        bulk.counts,
        ("read",),
        shape(jobs={"type": "object", "additionalProperties": INTEGER}),
        {"jobs": {"ready": 1}},
        any_job=True,
        query={"by": choice(*COUNT_BY), "tenant": TENANT},
    ),
    Endpoint(
        "GET",
        "/v1/backlog",
        "backlog",
        "Count waiting and running jobs, each up to a limit",
        bulk.backlog,
        ("read", "work"),
        shape(ready=_ANSWERS, scheduled=INTEGER, blocked=INTEGER, running=INTEGER, expired=INTEGER, suspect=INTEGER),
        {"ready": [], "scheduled": 0, "blocked": 0, "running": 0, "expired": 0, "suspect": 0},
        any_tenant=True,
        any_job=True,
    ),
    Endpoint(
        "GET",
        "/v1/problems",
        "list_problems",
        "List expired, suspect and due jobs, and ready jobs that no live worker serves",
        bulk.findings,
        ("read", "work"),
        shape(findings=_ANSWERS, unserved=_ANSWERS),
        {"findings": [], "unserved": []},
        any_tenant=True,
        any_job=True,
    ),
    Endpoint(
        "POST",
        "/v1/kinds",
        "publish_kinds",
        "Publish the options and schemas of the tasks of a worker",
        bulk.publish_kinds,
        ("work",),
        shape(kinds=_STRINGS),
        {"kinds": ["email.send"]},
        any_tenant=True,
        body=strict(
            ["kinds", "published_by"],
            {
                "published_by": text(description="The worker."),
                "kinds": {
                    "type": "object",
                    "maxProperties": limits.CLAIM_KINDS_MAX,
                    "additionalProperties": strict(
                        ["options", "timeout_ms", "session", "schema"],
                        {
                            "options": {"type": "object", "description": "Options of the job, which are defaults."},
                            "timeout_ms": integer(0, limits.PAUSE_MS_MAX),
                            "session": BOOLEAN,
                            "schema": nullable({"type": "object", "description": "The JSON schema of a payload."}),
                        },
                    ),
                },
            },
        ),
        body_example={
            "published_by": "curl-1",
            "kinds": {"email.send": {"options": {"lane": "mail"}, "timeout_ms": 0, "session": False, "schema": None}},
        },
        body_bytes_max=_MANY_BYTES_MAX,
    ),
    Endpoint(
        "PUT",
        "/v1/workers/{worker}",
        "register_worker",
        "Register one start of a worker, or renew it; the answer has what was requested of it",
        bulk.beat,
        ("work",),
        shape(requested=nullable(STRING)),
        {"requested": None},
        any_tenant=True,
        body=strict(
            ["incarnation", "host", "process", "version", "state", "concurrency", "running"],
            {
                "incarnation": text(),
                "host": text(),
                "process": integer(0, _FAR),
                "version": text(),
                "state": choice("active", "draining", "stopping"),
                "concurrency": integer(0, limits.CONCURRENCY_MAX),
                "running": integer(0, _FAR),
                "lanes": array(text(), limits.CLAIM_LANES_MAX),
                "kinds": array(text(), limits.CLAIM_KINDS_MAX),
                "capabilities": array(text(), limits.CAPABILITIES_MAX),
                "loaded": array(text(), limits.AFFINITIES_MAX),
                "switches": integer(0, _FAR),
            },
        ),
        body_example={
            "incarnation": "7c1f",
            "host": "worker-1",
            "process": 4711,
            "version": "0.1.0",
            "state": "active",
            "concurrency": 10,
            "running": 0,
        },
    ),
    Endpoint(
        "POST",
        "/v1/workers/{worker}/leave",
        "remove_worker",
        "Remove one start of a worker from the registry",
        bulk.leave,
        ("work",),
        shape(worker=STRING),
        {"worker": "curl-1"},
        any_tenant=True,
        body=strict(["incarnation"], {"incarnation": text()}),
        body_example={"incarnation": "7c1f"},
    ),
    Endpoint(
        "GET",
        "/v1/audit",
        "list_audit",
        "List the newest entries of the audit log",
        bulk.audit_log,
        (),
        shape(entries=_ANSWERS),
        {"entries": []},
        any_tenant=True,
        any_job=True,
        query={"before": integer(0, _FAR), "limit": integer(1, limits.PAGE_MAX, limits.PAGE_DEFAULT)},
    ),
    Endpoint(
        "POST",
        "/v1/audit",
        "record_action",
        "Append an action to the audit log, in the name of the token",
        bulk.record_action,
        (),
        shape(actor=STRING),
        {"actor": "token:mvxgk3tdmfxgg2lb"},
        any_tenant=True,
        any_job=True,
        body=strict(
            ["action", "target"],
            {"action": text(), "target": text(limits.URL_CHARS_MAX), "detail": {"type": "object"}},
        ),
        body_example={"action": "mail.stop", "target": "newsletter"},
    ),
)
