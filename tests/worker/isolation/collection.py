"""A collection of tasks that does not import its queue."""

from __future__ import annotations

import os
import sys
from typing import Any

from holdfast import Tasks

tasks = Tasks()


@tasks.task("included", isolate="process")
def included(secret: str) -> dict[str, Any]:
    program = sys.modules.get("tests.worker.isolation.within_middleware")
    return {"within": program and program.current.get(), "process": os.getpid(), "secret": secret}
