"""The options of a task that its worker publishes in the catalog of kinds."""

import dataclasses
from datetime import datetime
from typing import Any

from holdfast.domain import backoff as backoffs, job_options, limits, new_job, strict_json, validation


def published_options(options: job_options.JobOptions) -> str:
    """Return the options of a task that its worker publishes, as JSON.

    Tenant, headers, dedupe keys and session options belong to each call, absolute times to one moment.
    """
    published: dict[str, strict_json.Json] = {}
    value: Any
    for option, value in options.items():
        if value is None or option not in new_job.PUBLISHED or isinstance(value, datetime):
            continue
        match option:
            case "backoff":
                stored = backoffs.from_json(backoffs.to_json(value))
                published[option] = dataclasses.asdict(stored)
            case "delay" | "deadline":
                published[option] = validation.duration_ms(value, option) / 1000
            case "requires":
                published[option] = list(value)
            case "tags":
                published[option] = dict(value)
            case _:
                published[option] = value
    return strict_json.encode(published, "options", limits.PAYLOAD_BYTES_MAX)
