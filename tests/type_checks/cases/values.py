"""What an editor and mypy know of results. A line with `# E:` is wrong, and for that reason."""

from __future__ import annotations

from datetime import datetime
from typing import assert_type

import holdfast
from holdfast import Job
from holdfast.types import Event

queue = holdfast.connect(":memory:")
job = queue.get("one")

assert_type(job, Job)
assert_type(job.number, int)
assert_type(job.due_at, datetime)
assert_type(job.finished_at, datetime | None)
assert_type(job.cancel_requested, bool)
assert_type([one.id for one in queue.jobs()], list[str])
assert_type(list(queue.events()), list[Event])

for field in job:  # E: attr-defined
    print(field)
state, *rest = job  # E: misc
print(job[0])  # E: index
print(len(job))  # E: arg-type
print(job < queue.get("two"))  # E: operator
job.state = "done"  # E: misc
print(job.payload_json)  # E: attr-defined
print(job.due_at_ms)  # E: attr-defined
enqueued, created = queue.enqueue("email.send")  # E: misc
