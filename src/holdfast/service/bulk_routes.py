"""Rows of the route table for calls on many jobs at once, and for what only workers and operators need."""

from typing import Final

from holdfast.domain import job, limits, results
from holdfast.service import bulk, call, examples, schemas

_HELD: Final[schemas.Schema] = {"job_id": schemas.text(limits.JOB_ID_CHARS_MAX), **schemas.LEASE}
_HELD_EXAMPLE: Final = {"job_id": examples.JOB_ID_EXAMPLE, **examples.PROOF_EXAMPLE}
_JOB_IDS: Final = schemas.array(schemas.text(limits.JOB_ID_CHARS_MAX), limits.REQUEUE_MANY_MAX)
_SKIPPED: Final = {
    "type": "array",
    "items": schemas.shape(job_id=schemas.STRING, why=schemas.STRING, code=schemas.STRING),
}
_STRINGS: Final = {"type": "array", "items": schemas.STRING}
CANCELLED: Final = schemas.shape(cancelled=_STRINGS, stop_requested=_STRINGS, skipped=_SKIPPED)
_ANSWERS: Final = {"type": "array", "items": {"type": "object"}}
MANY_BYTES_MAX: Final = 32 << 20
_FAR: Final = 1 << 62

BULK: Final = (
    call.Endpoint(
        "POST",
        "/v1/settlements",
        "settle_many",
        "Record the outcomes of many attempts in one commit; each result is a job or an error",
        bulk.settle_many,
        ("work",),
        schemas.shape(settlements=_ANSWERS),
        {
            "settlements": [
                {
                    "job_id": examples.JOB_ID_EXAMPLE,
                    "state": "done",
                    "job": {**examples.RUNNING_EXAMPLE, "state": "done"},
                }
            ]
        },
        body=schemas.strict(
            ["settlements"], {"settlements": schemas.array(schemas.SETTLEMENT, limits.SETTLE_MANY_MAX)}
        ),
        body_example={"settlements": [{**_HELD_EXAMPLE, "outcome": "done"}]},
        body_bytes_max=MANY_BYTES_MAX,
    ),
    call.Endpoint(
        "POST",
        "/v1/heartbeats",
        "heartbeat_many",
        "Extend many leases, with progress, acknowledgements and output, in one commit",
        bulk.heartbeat_many,
        ("work",),
        schemas.shape(leases=_ANSWERS, output=_ANSWERS),
        {"leases": [examples.RENEWAL_EXAMPLE], "output": []},
        body=schemas.strict(
            ["leases", "output"],
            {
                "leases": schemas.array(
                    schemas.strict(
                        ["job_id", "epoch", "lease_token"],
                        {
                            **_HELD,
                            "lease": schemas.LEASE_SECONDS,
                            "acknowledge": {
                                **schemas.BOOLEAN,
                                "description": "Whether the work on the job has started.",
                            },
                            "phase": schemas.nullable(schemas.text(limits.PHASE_CHARS_MAX)),
                            "percent": schemas.nullable(schemas.number(0, 100)),
                        },
                    ),
                    limits.SETTLE_MANY_MAX,
                ),
                "output": schemas.array(
                    schemas.strict(
                        ["job_id", "epoch", "lease_token", "texts"],
                        {
                            **_HELD,
                            "part": schemas.nullable(schemas.integer(0, 10**15)),
                            "texts": schemas.array(
                                {"type": "string", "maxLength": limits.OUTPUT_CHUNK_BYTES_MAX}, limits.SETTLE_MANY_MAX
                            ),
                        },
                    ),
                    limits.SETTLE_MANY_MAX,
                ),
            },
        ),
        body_example={"leases": [{**_HELD_EXAMPLE, "lease": 30, "acknowledge": True}], "output": []},
        body_bytes_max=MANY_BYTES_MAX,
    ),
    call.Endpoint(
        "POST",
        "/v1/jobs/{job_id}/reprioritize",
        "reprioritize_job",
        "Change the priority of an unfinished job",
        bulk.reprioritize,
        (),
        schemas.ref("Job"),
        {**examples.JOB_EXAMPLE, "priority": 5},
        query={"tenant": schemas.TENANT},
        body=schemas.strict(["priority"], {"priority": schemas.integer(-limits.PRIORITY_MAX, limits.PRIORITY_MAX)}),
        body_example={"priority": 5},
        problems=(404, 409),
    ),
    call.Endpoint(
        "POST",
        "/v1/admin/cancel",
        "cancel_jobs",
        "Cancel many jobs in one commit",
        bulk.cancel_many,
        (),
        CANCELLED,
        {"cancelled": [examples.JOB_ID_EXAMPLE], "stop_requested": [], "skipped": []},
        any_job=True,
        query={"tenant": schemas.TENANT},
        body=schemas.strict(["job_ids"], {"job_ids": _JOB_IDS, "force": schemas.BOOLEAN}),
        body_example={"job_ids": [examples.JOB_ID_EXAMPLE]},
        body_bytes_max=MANY_BYTES_MAX,
    ),
    call.Endpoint(
        "POST",
        "/v1/admin/requeue",
        "requeue_jobs",
        "Make many failed or cancelled jobs ready again",
        bulk.requeue_many,
        (),
        schemas.shape(requeued=_STRINGS, skipped=_SKIPPED),
        {"requeued": [examples.JOB_ID_EXAMPLE], "skipped": []},
        any_job=True,
        query={"tenant": schemas.TENANT},
        body=schemas.strict(["job_ids"], {"job_ids": _JOB_IDS}),
        body_example={"job_ids": [examples.JOB_ID_EXAMPLE]},
        body_bytes_max=MANY_BYTES_MAX,
    ),
    call.Endpoint(
        "POST",
        "/v1/admin/prune",
        "prune",
        "Delete a chunk of finished jobs, events or message ids; repeat it until it deletes none",
        bulk.prune,
        (),
        schemas.shape(
            deleted=schemas.INTEGER, after={"type": "array", "items": schemas.INTEGER}, held_back=schemas.BOOLEAN
        ),
        {"deleted": 0, "after": [-1, -1], "held_back": False},
        any_tenant=True,
        any_job=True,
        body=schemas.strict(
            ["what", "age_ms"],
            {
                "what": schemas.choice("jobs", "failures", "events", "message_ids"),
                "age_ms": schemas.integer(
                    0, limits.PAUSE_MS_MAX, description="Since the end of the job, or since the event."
                ),
                "state": {**schemas.choice(*job.FINISHED), "description": "The state of the jobs, which jobs need."},
                "after": {
                    **schemas.array(schemas.integer(-1, _FAR), 2),
                    "minItems": 2,
                    "description": "Where the chunk of jobs before ended.",
                },
                "dry_run": {**schemas.BOOLEAN, "description": "For events: count those that would be deleted."},
            },
        ),
        body_example={"what": "jobs", "age_ms": 604_800_000, "state": "done"},
    ),
    call.Endpoint(
        "GET",
        "/v1/counts",
        "count_jobs",
        "Count the jobs by one property; this reads every job",
        bulk.counts,
        ("read",),
        schemas.shape(jobs={"type": "object", "additionalProperties": schemas.INTEGER}),
        {"jobs": {"ready": 1}},
        any_job=True,
        query={"by": schemas.choice(*results.COUNT_BY), "tenant": schemas.TENANT},
    ),
    call.Endpoint(
        "GET",
        "/v1/backlog",
        "backlog",
        "Count waiting and running jobs, each up to a limit",
        bulk.backlog,
        ("read", "work"),
        schemas.shape(
            ready=_ANSWERS,
            scheduled=schemas.INTEGER,
            blocked=schemas.INTEGER,
            running=schemas.INTEGER,
            expired=schemas.INTEGER,
            suspect=schemas.INTEGER,
            dependent=schemas.INTEGER,
        ),
        {"ready": [], "scheduled": 0, "blocked": 0, "running": 0, "expired": 0, "suspect": 0, "dependent": 0},
        any_tenant=True,
        any_job=True,
    ),
    call.Endpoint(
        "GET",
        "/v1/overview",
        "overview",
        "Read what needs an operator, the flow of jobs per minute, lanes and workers; all counts have a bound",
        bulk.overview,
        ("read",),
        schemas.shape(
            at_ms=schemas.INTEGER,
            activity=schemas.STRING,
            sentence=schemas.STRING,
            needs=_ANSWERS,
            needs_total=schemas.INTEGER,
            flow=_ANSWERS,
            oldest_age_seconds={"type": "number"},
            ready=schemas.INTEGER,
            running=schemas.INTEGER,
            scheduled=schemas.INTEGER,
            blocked=schemas.INTEGER,
            lanes=_ANSWERS,
            workers=_ANSWERS,
            models=_ANSWERS,
        ),
        {
            "at_ms": 1_790_000_000_000,
            "activity": "idle",
            "sentence": "Idle. Nothing needs you.",
            "needs": [],
            "needs_total": 0,
            "flow": [],
            "oldest_age_seconds": 0.0,
            "ready": 0,
            "running": 0,
            "scheduled": 0,
            "blocked": 0,
            "lanes": [],
            "workers": [],
            "models": [],
        },
        any_tenant=True,
        any_job=True,
    ),
    call.Endpoint(
        "GET",
        "/v1/failures",
        "list_failures",
        "List failed jobs in groups that failed in the same way, newest failure first",
        bulk.failures,
        ("read",),
        schemas.shape(failures=_ANSWERS),
        {"failures": []},
        query={
            "fingerprint": schemas.FINGERPRINT,
            "kind": schemas.text(),
            "tenant": schemas.TENANT,
            "limit": schemas.integer(1, limits.PAGE_MAX, limits.PAGE_DEFAULT),
        },
    ),
    call.Endpoint(
        "GET",
        "/v1/problems",
        "list_problems",
        "List expired, suspect and due jobs, and ready jobs that no live worker serves",
        bulk.findings,
        ("read", "work"),
        schemas.shape(findings=_ANSWERS, unserved=_ANSWERS),
        {"findings": [], "unserved": []},
        any_tenant=True,
        any_job=True,
    ),
    call.Endpoint(
        "POST",
        "/v1/kinds",
        "publish_kinds",
        "Publish the options and schemas of the tasks of a worker",
        bulk.publish_kinds,
        ("work",),
        schemas.shape(kinds=_STRINGS),
        {"kinds": ["email.send"]},
        any_tenant=True,
        body=schemas.strict(
            ["kinds", "published_by"],
            {
                "published_by": schemas.text(description="The worker."),
                "kinds": {
                    "type": "object",
                    "maxProperties": limits.CLAIM_KINDS_MAX,
                    "additionalProperties": schemas.strict(
                        ["options", "timeout_ms", "session", "schema"],
                        {
                            "options": {"type": "object", "description": "Options of the job, which are defaults."},
                            "timeout_ms": schemas.integer(0, limits.PAUSE_MS_MAX),
                            "session": schemas.BOOLEAN,
                            "schema": schemas.nullable(
                                {"type": "object", "description": "The JSON schema of a payload."}
                            ),
                        },
                    ),
                },
            },
        ),
        body_example={
            "published_by": "curl-1",
            "kinds": {"email.send": {"options": {"lane": "mail"}, "timeout_ms": 0, "session": False, "schema": None}},
        },
        body_bytes_max=MANY_BYTES_MAX,
    ),
    call.Endpoint(
        "PUT",
        "/v1/workers/{worker}",
        "register_worker",
        "Register one start of a worker, or renew it; the answer has what was requested of it",
        bulk.beat,
        ("work",),
        schemas.shape(requested=schemas.nullable(schemas.STRING)),
        {"requested": None},
        any_tenant=True,
        body=schemas.strict(
            ["incarnation", "host", "process", "version", "state", "concurrency", "running"],
            {
                "incarnation": schemas.text(),
                "host": schemas.text(),
                "process": schemas.integer(0, _FAR),
                "version": schemas.text(),
                "state": schemas.choice("active", "draining", "stopping"),
                "concurrency": schemas.integer(0, limits.CONCURRENCY_MAX),
                "running": schemas.integer(0, _FAR),
                "lanes": schemas.array(schemas.text(), limits.CLAIM_LANES_MAX),
                "kinds": schemas.array(schemas.text(), limits.CLAIM_KINDS_MAX),
                "capabilities": schemas.array(schemas.text(), limits.CAPABILITIES_MAX),
                "loaded": schemas.array(schemas.text(), limits.AFFINITIES_MAX),
                "switches": schemas.integer(0, _FAR),
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
    call.Endpoint(
        "POST",
        "/v1/workers/{worker}/leave",
        "remove_worker",
        "Remove one start of a worker from the registry",
        bulk.leave,
        ("work",),
        schemas.shape(worker=schemas.STRING),
        {"worker": "curl-1"},
        any_tenant=True,
        body=schemas.strict(["incarnation"], {"incarnation": schemas.text()}),
        body_example={"incarnation": "7c1f"},
    ),
    call.Endpoint(
        "GET",
        "/v1/audit",
        "list_audit",
        "List the newest entries of the audit log",
        bulk.audit_log,
        (),
        schemas.shape(entries=_ANSWERS),
        {"entries": []},
        any_tenant=True,
        any_job=True,
        query={"before": schemas.integer(0, _FAR), "limit": schemas.integer(1, limits.PAGE_MAX, limits.PAGE_DEFAULT)},
    ),
    call.Endpoint(
        "POST",
        "/v1/audit",
        "record_action",
        "Append an action to the audit log, in the name of the token",
        bulk.record_action,
        (),
        schemas.shape(actor=schemas.STRING),
        {"actor": "token:mvxgk3tdmfxgg2lb"},
        any_tenant=True,
        any_job=True,
        body=schemas.strict(
            ["action", "target"],
            {"action": schemas.text(), "target": schemas.text(limits.URL_CHARS_MAX), "detail": {"type": "object"}},
        ),
        body_example={"action": "mail.stop", "target": "newsletter"},
    ),
)
