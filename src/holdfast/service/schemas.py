"""The JSON schemas of requests and responses: validation and the OpenAPI document use the same ones."""

from typing import Any, Final, TypeAlias

from holdfast.domain import job, limits, sessions

Schema: TypeAlias = dict[str, Any]

_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
# Not blank, without control characters.
_NAME_PATTERN: Final = rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$"


def text(chars_max: int = limits.NAME_CHARS_MAX, description: str = "") -> Schema:
    """Return the schema of a name."""
    schema: Schema = {"type": "string", "minLength": 1, "maxLength": chars_max, "pattern": _NAME_PATTERN}
    return {**schema, "description": description} if description else schema


def number(low: float, high: float, description: str = "") -> Schema:
    """Return the schema of a number."""
    schema: Schema = {"type": "number", "minimum": low, "maximum": high}
    return {**schema, "description": description} if description else schema


def integer(low: int, high: int, default: int | None = None, description: str = "") -> Schema:
    """Return the schema of an integer."""
    schema: Schema = {"type": "integer", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return {**schema, "description": description} if description else schema


def choice(*values: str) -> Schema:
    """Return the schema of one of several strings."""
    return {"type": "string", "enum": list(values)}


def array(items: Schema, count_max: int) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "maxItems": count_max}


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def strict(required: list[str], properties: Schema) -> Schema:
    """Return the schema of a request: an object without other keys."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def shape(**properties: Schema) -> Schema:
    """Return the schema of a response: an object with all of these keys; later versions may add some."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def strings(count_max: int, chars_max: int) -> Schema:
    """Return the schema of a map of strings."""
    return {
        "type": "object",
        "maxProperties": count_max,
        "propertyNames": text(),
        "additionalProperties": {"type": "string", "maxLength": chars_max},
    }


ANY: Final[Schema] = {}
STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
FINGERPRINT: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{16}$",
    "description": "What failures have in common.",
}
TENANT: Final = text(description="Only this tenant; default: that of the token.")
WAIT_SECONDS_MAX: Final = 60
EPOCH_MAX: Final = (1 << 31) - 1
ACK_MS_MIN: Final = 100
ACK_MS_MAX: Final = 300_000
ACK_MS_DEFAULT: Final = 10_000
SECONDS_MAX: Final = limits.PAUSE_MS_MAX / 1000

BACKOFF: Final = strict(
    [],
    {
        "base": number(0, SECONDS_MAX),
        "factor": number(1, 100),
        "cap": number(0, SECONDS_MAX),
        "jitter": number(0, 1),
    },
)

DIGEST: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "The SHA-256 of the bytes, as hexadecimal digits.",
}
IDENTITY: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9a-f]{32}$",
    "description": "By what the client identifies the call, for one that encodes payloads and results: the same call,"
    " sent again, has the same. By default the server computes it from the content.",
}
ARTIFACTS: Final = array(
    {
        **strict(
            ["name"],
            {
                "name": text(),
                "media_type": text(),
                "data": {"type": "string", "contentEncoding": "base64"},
                "upload_id": text(description="A finished upload."),
                "digest": DIGEST,
            },
        ),
        "description": "Named bytes: `data`, or `upload_id` and `digest` of an upload.",
    },
    limits.ARTIFACTS_MAX,
)

NEW_JOB: Final = strict(
    ["kind"],
    {
        "kind": text(description="What the job does; workers choose their kinds."),
        "payload": {"description": "Any JSON value."},
        "lane": text(),
        "tenant": text(),
        "priority": integer(-limits.PRIORITY_MAX, limits.PRIORITY_MAX, 0, "Higher comes first."),
        "delay": number(0, SECONDS_MAX, "Seconds before it may be claimed."),
        "run_at": {**TIME, "description": "The earliest time at which it may be claimed; not together with delay."},
        "deadline": {
            "anyOf": [number(0, SECONDS_MAX), TIME],
            "description": "It fails unless started by then: seconds from now, or a time.",
        },
        "requires": array(text(), limits.REQUIRES_MAX),
        "affinity": nullable(text()),
        "headers": strings(limits.HEADERS_MAX, limits.HEADER_VALUE_CHARS_MAX),
        "tags": strings(limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX),
        "max_attempts": integer(1, limits.MAX_ATTEMPTS_MAX, limits.MAX_ATTEMPTS_DEFAULT),
        "backoff": nullable(BACKOFF),
        "job_id": nullable(text(limits.JOB_ID_CHARS_MAX, "An id chosen by the caller.")),
        "dedupe_key": nullable(text(limits.DEDUPE_KEY_CHARS_MAX)),
        "dedupe_scope": choice("kind", "tenant"),
        "dedupe_for": nullable(number(0.001, SECONDS_MAX, "Seconds for which the key finds the job, even finished.")),
        "debounce": nullable(number(0.001, SECONDS_MAX, "Seconds to wait for another enqueue of the dedupe key.")),
        "max_wait": nullable(number(0.001, SECONDS_MAX, "The longest wait, in seconds from the first enqueue.")),
        "on_duplicate": choice("keep", "replace", "run_again"),
        "events": choice("terminal", "all"),
        "artifacts": ARTIFACTS,
        "after": {
            **array(
                {"anyOf": [text(limits.JOB_ID_CHARS_MAX), integer(0, limits.ENQUEUE_MANY_MAX)]},
                limits.DEPENDENCIES_MAX,
            ),
            "description": "It runs after these jobs have ended: ids, or positions of earlier jobs of the request.",
        },
        "on_failed": choice("cancel", "run"),
        "limit_key": nullable(text(limits.LIMIT_KEY_CHARS_MAX, "Its key for limits whose key is given.")),
        "limit_weight": nullable(
            integer(1, limits.LIMIT_WEIGHT_MAX, description="What it counts at limits with a weight.")
        ),
        "webhook_url": nullable(text(limits.URL_CHARS_MAX, "Where each event of the job is sent.")),
        "declared": {
            **BOOLEAN,
            "description": "The producer declares the task itself: what workers have published does not apply.",
        },
        "digest": nullable(IDENTITY),
        "merge_tags": {**BOOLEAN, "description": "Add the tags to those which a worker has published for the kind."},
        "message_count": integer(
            1, limits.SESSION_ENTRY_MESSAGES_MAX, description="The number of messages in an encoded payload."
        ),
        "session": nullable(text(description="The session of which it is an entry.")),
        "entry_type": choice(*sessions.ENTRY_TYPES),
        "join": {
            "anyOf": [BOOLEAN, text()],
            "description": "Whether it shares a turn with others: of its kind, or of this name.",
        },
        "delivery": choice(*sessions.DELIVERIES),
        "message_id": nullable(
            text(limits.MESSAGE_ID_CHARS_MAX, "Unique within the session: sent again, the first entry is returned.")
        ),
        "messages": {
            **array(ANY, limits.SESSION_ENTRY_MESSAGES_MAX),
            "minItems": 1,
            "description": "Several messages in one entry, in place of the payload.",
        },
    },
)
CALLBACK: Final = strict(
    ["kind"],
    {
        option: NEW_JOB["properties"][option]
        for option in (
            *("kind", "payload", "lane", "priority", "delay", "deadline", "requires", "affinity", "headers", "tags"),
            *("max_attempts", "backoff", "events", "declared"),
        )
    },
)
NEW_JOB["properties"]["on_end"] = {**nullable(CALLBACK), "description": "A job that runs once it has ended."}


LEASE: Final[Schema] = {
    "epoch": integer(0, EPOCH_MAX),
    "lease_token": text(limits.LEASE_TOKEN_CHARS_MAX),
}
LEASE_SECONDS: Final = number(
    limits.LEASE_MS_MIN / 1000, limits.LEASE_MS_MAX / 1000, "Seconds until the lease expires; default 30."
)
OUTCOME: Final[Schema] = {
    "outcome": choice("done", "failed", "deferred", "released"),
    "result": {"description": "The result of a job that is done: any JSON value."},
    "follow_ups": array(NEW_JOB, limits.FOLLOW_UPS_MAX),
    "artifacts": ARTIFACTS,
    "digest": nullable(IDENTITY),
    "message": STRING,
    "reason": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_.:-]*$", "maxLength": limits.REASON_CHARS_MAX},
    "permanent": BOOLEAN,
    "retry_after": number(0, SECONDS_MAX),
    "traceback": nullable(STRING),
    "backoff": nullable(BACKOFF),
    "after": number(0, SECONDS_MAX),
    "until": TIME,
    "closes": {**BOOLEAN, "description": "Whether no other job with its key for a limit starts until then either."},
    "usage": nullable(
        {
            "type": "object",
            "additionalProperties": integer(0, limits.LIMIT_WEIGHT_MAX),
            "maxProperties": limits.USAGES_MAX,
            "description": "What the attempt has used, such as tokens, to correct limits by key that count it.",
        }
    ),
}
SETTLE: Final = strict(["epoch", "lease_token", "outcome"], {**LEASE, **OUTCOME})
SETTLEMENT: Final = strict(
    ["job_id", "epoch", "lease_token", "outcome"], {"job_id": text(limits.JOB_ID_CHARS_MAX), **LEASE, **OUTCOME}
)
CLAIM: Final = strict(
    ["worker"],
    {
        "worker": text(description="The worker's name. To repeat a claim, give the same worker and lease_token."),
        "incarnation": text(description="Unique for one start of the worker; default `http`."),
        "lanes": array(text(), limits.CLAIM_LANES_MAX),
        "kinds": array(text(), limits.CLAIM_KINDS_MAX),
        "tenant": text(),
        "capabilities": array(text(), limits.CAPABILITIES_MAX),
        "affinity": array(text(), limits.AFFINITIES_MAX),
        "limit": integer(1, limits.CLAIM_MAX, 1),
        "wait": number(0, WAIT_SECONDS_MAX, "Seconds to wait for a job."),
        "ack_ms": integer(
            ACK_MS_MIN, ACK_MS_MAX, ACK_MS_DEFAULT, "The claim is released unless acknowledged or settled by then."
        ),
        "lease_token": text(limits.LEASE_TOKEN_CHARS_MAX, "Chosen by the caller: a repeated claim returns its jobs."),
        "settlements": array(SETTLEMENT, limits.SETTLE_MANY_MAX),
        "started": {
            **array(
                strict(["job_id", "epoch", "lease_token"], {"job_id": text(limits.JOB_ID_CHARS_MAX), **LEASE}), 1000
            ),
            "description": "Claims to acknowledge, if they are still held.",
        },
        "affinities_held": array(text(), limits.AFFINITIES_MAX),
        "affinities_max": integer(1, limits.AFFINITIES_MAX),
        "hold_left": number(0, SECONDS_MAX, "Seconds for which `affinity` may still be preferred."),
        "drain": {**choice("oldest", "listed"), "description": "listed: kinds listed first come first."},
        "exclusive": {
            **BOOLEAN,
            "description": "Revoke the claims of earlier starts of this worker; any tenant only.",
        },
        "cut_off": {
            **BOOLEAN,
            "description": "This start was alive but could not reach the server: its lost jobs are not suspect; any"
            " tenant only.",
        },
    },
)

_ENTRIES: Final = {
    **array(
        strict(["id", "epoch"], {"id": text(limits.JOB_ID_CHARS_MAX), "epoch": LEASE["epoch"]}), limits.CLAIM_MAX
    ),
    "minItems": 1,
    "description": "The id and the epoch of each entry of the turn, in order.",
}
TURN: Final[Schema] = {"tenant": text(), "lease_token": LEASE["lease_token"], "entries": _ENTRIES}
TURN_SETTLE: Final = strict(
    ["lease_token", "entries"],
    {**TURN, **OUTCOME, "outcomes": array(strict(["outcome"], OUTCOME), limits.CLAIM_MAX)},
)
SESSION_LEASE: Final[Schema] = {
    "tenant": text(),
    "generation": integer(1, EPOCH_MAX),
    "lease_token": LEASE["lease_token"],
}
_ENTRY_OPTIONS: Final[Schema] = {
    "only": choice(*sessions.ENTRY_TYPES),
    "kinds": array(text(), limits.CLAIM_KINDS_MAX),
    "capabilities": array(text(), limits.CAPABILITIES_MAX),
    "limit": integer(1, limits.CLAIM_MAX, limits.SESSION_CLAIM_DEFAULT, "The largest number of entries."),
    "wait": number(0, WAIT_SECONDS_MAX, "Seconds to wait for an entry."),
}
CHECKPOINT: Final = strict(["lease_token", "entries"], {**TURN, **_ENTRY_OPTIONS, "lease": LEASE_SECONDS})
TURN_CLAIM: Final = strict(
    ["worker"],
    {
        "worker": CLAIM["properties"]["worker"],
        "incarnation": CLAIM["properties"]["incarnation"],
        "session": text(description="The session; by default any that is ready."),
        "session_lease": strict(
            ["generation", "lease_token"],
            {name: SESSION_LEASE[name] for name in ("generation", "lease_token")},
        ),
        "lanes": array(text(), limits.CLAIM_LANES_MAX),
        "tenant": text(),
        **_ENTRY_OPTIONS,
        "limits": {
            "type": "object",
            "additionalProperties": integer(1, limits.CLAIM_MAX),
            "maxProperties": limits.CLAIM_KINDS_MAX,
            "description": "The largest number of entries by the kind of the first, for any session that is ready.",
        },
        "ack_ms": integer(
            ACK_MS_MIN,
            ACK_MS_MAX,
            ACK_MS_DEFAULT,
            "The turn is released unless renewed or settled by then.",
        ),
        "lease_token": CLAIM["properties"]["lease_token"],
    },
)

FAILURE: Final = shape(
    **{"class": choice("transient", "permanent")}, reason=STRING, message=STRING, traceback=nullable(STRING)
)
_MAYBE_TEXT: Final = nullable(STRING)
_MAYBE_TIME: Final = nullable(INTEGER)
JOB: Final = shape(
    id=STRING,
    number=INTEGER,
    state=choice(*job.STATES),
    kind=STRING,
    lane=STRING,
    tenant=STRING,
    priority=INTEGER,
    affinity=_MAYBE_TEXT,
    requires=array(STRING, limits.REQUIRES_MAX),
    payload=ANY,
    result=ANY,
    failure=nullable(ref("Failure")),
    headers={"type": "object"},
    tags={"type": "object"},
    enqueued_at_ms=INTEGER,
    due_at_ms=INTEGER,
    deadline_at_ms=_MAYBE_TIME,
    started_at_ms=_MAYBE_TIME,
    finished_at_ms=_MAYBE_TIME,
    lease_until_ms=_MAYBE_TIME,
    attempt=INTEGER,
    max_attempts=INTEGER,
    backoff={"type": "object"},
    epoch=INTEGER,
    worker=_MAYBE_TEXT,
    incarnation=_MAYBE_TEXT,
    outcome=_MAYBE_TEXT,
    phase=_MAYBE_TEXT,
    percent=nullable(NUMBER),
    cancel_requested=BOOLEAN,
    suspect=BOOLEAN,
    deferrals=INTEGER,
    releases=INTEGER,
    dedupe_key=_MAYBE_TEXT,
    dedupe_scope=_MAYBE_TEXT,
    events=choice("terminal", "all"),
    parent=_MAYBE_TEXT,
    root=STRING,
    entry=nullable({"type": "object"}),
)
ATTEMPT: Final = shape(
    epoch=INTEGER,
    number=INTEGER,
    worker=STRING,
    incarnation=STRING,
    started_at_ms=INTEGER,
    ended_at_ms=_MAYBE_TIME,
    outcome=_MAYBE_TEXT,
    failure=nullable(ref("Failure")),
)
EVENT: Final = shape(
    cursor=STRING,
    name=STRING,
    at_ms=INTEGER,
    job_id=STRING,
    number=INTEGER,
    kind=STRING,
    lane=STRING,
    tenant=STRING,
    tags={"type": "object"},
    details={"type": "object"},
)
PROBLEM: Final = {
    **shape(type=STRING, title=STRING, status=INTEGER, code=STRING, detail=STRING),
    "description": "RFC 9457. `code` is stable; `field` is the JSON path of the refused value, `limit` the limit.",
}

_LANE: Final = dict.fromkeys(("name", "state", "order", "events", "backoff"), STRING)
COMPONENTS: Final[dict[str, Schema]] = {
    "Job": JOB,
    "Failure": FAILURE,
    "Attempt": ATTEMPT,
    "Artifact": shape(
        name=STRING,
        media_type=STRING,
        size=INTEGER,
        digest=STRING,
        input=BOOLEAN,
        epoch=INTEGER,
        created_at_ms=INTEGER,
    ),
    "OutputChunk": shape(number=INTEGER, attempt=INTEGER, epoch=INTEGER, at_ms=INTEGER, text=STRING),
    "Upload": shape(
        id=STRING,
        tenant=STRING,
        chunks=INTEGER,
        size=INTEGER,
        digest=nullable(STRING),
        expires_at_ms=_MAYBE_TIME,
    ),
    "Enqueued": shape(created=BOOLEAN, job=ref("Job")),
    "Event": EVENT,
    "Lane": shape(**_LANE, max_waiting=nullable(INTEGER), target_age=nullable({"type": "number"}), late=BOOLEAN),
    "Kind": shape(
        name=STRING,
        retired=BOOLEAN,
        retired_at_ms=_MAYBE_TIME,
        published_by=_MAYBE_TEXT,
        published_at_ms=_MAYBE_TIME,
        lane=_MAYBE_TEXT,
        max_attempts=nullable(INTEGER),
        timeout=nullable(NUMBER),
        session=nullable(BOOLEAN),
        options=nullable({"type": "object"}),
        schema=ANY,
    ),
    "Worker": shape(
        worker=STRING,
        incarnation=STRING,
        host=STRING,
        process=INTEGER,
        version=STRING,
        state=STRING,
        concurrency=INTEGER,
        running=INTEGER,
        lanes={"type": "array", "items": STRING},
        kinds={"type": "array", "items": STRING},
        capabilities={"type": "array", "items": STRING},
        loaded={"type": "array", "items": STRING},
        switches=INTEGER,
        switches_saved=INTEGER,
        hold_left=nullable(NUMBER),
        requested=_MAYBE_TEXT,
        started_at_ms=INTEGER,
        beat_at_ms=INTEGER,
        held=INTEGER,
    ),
    "Tally": shape(lane=STRING, kind=STRING, state=STRING, jobs=INTEGER),
    "Claim": shape(job=ref("Job"), epoch=INTEGER, lease_token=STRING, lease_until_ms=INTEGER, acknowledged=BOOLEAN),
    "Turn": shape(
        session=STRING,
        tenant=STRING,
        entry_type=choice(*sessions.ENTRY_TYPES),
        claim_id=STRING,
        fencing_token=INTEGER,
        generation=nullable(INTEGER),
        lease_token=STRING,
        lease_until_ms=INTEGER,
        acknowledged=BOOLEAN,
        entries={"type": "array", "items": ref("Job")},
    ),
    "Session": shape(
        session=STRING,
        tenant=STRING,
        entries=INTEGER,
        fencing_token=INTEGER,
        ready=BOOLEAN,
        generation=INTEGER,
        owner=_MAYBE_TEXT,
        lease_until_ms=_MAYBE_TIME,
    ),
    "SessionLease": shape(
        session=STRING, tenant=STRING, generation=INTEGER, worker=STRING, lease_token=STRING, lease_until_ms=INTEGER
    ),
    "Webhook": shape(
        id=STRING,
        url=STRING,
        tenant=_MAYBE_TEXT,
        types={"type": "array", "items": STRING},
        kinds=nullable({"type": "array", "items": STRING}),
        lanes=nullable({"type": "array", "items": STRING}),
        tags={"type": "object"},
        include_results=BOOLEAN,
        concurrency=INTEGER,
        per_job=BOOLEAN,
        state=choice("active", "disabled"),
        reason=_MAYBE_TEXT,
        last_answer=_MAYBE_TEXT,
        created_at_ms=INTEGER,
        since_ms=INTEGER,
        last_success_at_ms=_MAYBE_TIME,
        failing_since_ms=_MAYBE_TIME,
        closed_until_ms=_MAYBE_TIME,
    ),
    "Schedule": shape(
        name=STRING,
        tenant=STRING,
        kind=STRING,
        payload=ANY,
        options={"type": "object"},
        cron=_MAYBE_TEXT,
        every=nullable(NUMBER),
        zone=STRING,
        missed=choice("one", "skip"),
        overlap=choice("allow", "skip"),
        owner=_MAYBE_TEXT,
        paused=BOOLEAN,
        last_job_id=_MAYBE_TEXT,
        problem=_MAYBE_TEXT,
        next_at_ms=_MAYBE_TIME,
        last_at_ms=_MAYBE_TIME,
        set_at_ms=INTEGER,
        declared_at_ms=_MAYBE_TIME,
    ),
    "Group": shape(
        name=STRING,
        tenant=STRING,
        state=choice("open", "running", "done", "failed"),
        members=INTEGER,
        unfinished=INTEGER,
        done=INTEGER,
        failed=INTEGER,
        cancelled=INTEGER,
        retired=INTEGER,
        callbacks={"type": "object"},
        problem=_MAYBE_TEXT,
        created_at_ms=INTEGER,
        ended_at_ms=_MAYBE_TIME,
    ),
    "Limit": shape(
        name=STRING,
        kinds=nullable({"type": "array", "items": STRING}),
        lanes=nullable({"type": "array", "items": STRING}),
        key=STRING,
        concurrency=nullable(INTEGER),
        rate=nullable(INTEGER),
        per=nullable(NUMBER),
        burst=nullable(INTEGER),
        weight=_MAYBE_TEXT,
    ),
    "KeyUse": shape(
        limit=STRING,
        key=STRING,
        running=nullable(INTEGER),
        parked=INTEGER,
        concurrency=nullable(INTEGER),
        opens_at_ms=_MAYBE_TIME,
        closed=BOOLEAN,
        left=nullable(INTEGER),
    ),
    "Why": shape(
        job_id=STRING,
        state=choice(*job.STATES),
        summary=STRING,
        reasons={
            "type": "array",
            "items": shape(code=STRING, text=STRING, blocks=BOOLEAN, until_ms=_MAYBE_TIME, detail={"type": "object"}),
        },
    ),
    "Delivery": shape(
        id=STRING,
        webhook_id=STRING,
        type=STRING,
        state=STRING,
        tries=INTEGER,
        problem=_MAYBE_TEXT,
        created_at_ms=INTEGER,
        next_try_at_ms=_MAYBE_TIME,
    ),
    "Renewal": shape(lease_until_ms=INTEGER, cancel_requested=BOOLEAN),
    "Problem": PROBLEM,
    "NewJob": NEW_JOB,
}
