"""Holdfast: a durable work queue with fenced leases, on a SQLite file or on PostgreSQL.

All error classes are in `holdfast.errors`; classes that programs read but do not construct are in `holdfast.types`.
Each public name is imported from its module on first use, which keeps `import holdfast` fast.
"""

import sys
from typing import TYPE_CHECKING

from holdfast.version import __version__

if sys.platform == "win32":
    raise ImportError(
        "Holdfast does not support Windows: it needs POSIX file locks and signals. "
        "Use Linux instead, for example in WSL 2 or in a container."
    )

if TYPE_CHECKING:
    from holdfast import errors, types
    from holdfast.client.async_api.queue import AsyncQueue, AsyncTransaction
    from holdfast.client.connect import connect, connect_async
    from holdfast.client.middleware import Middleware
    from holdfast.client.sync_api.queue import Queue, Transaction
    from holdfast.domain.artifacts import Artifact
    from holdfast.domain.backoff import Backoff
    from holdfast.domain.claims import Claim, Lease
    from holdfast.domain.codec import Codec
    from holdfast.domain.errors import (
        Conflict,
        HoldfastError,
        InvalidInput,
        JobFailed,
        JobNotFound,
        LeaseLost,
        Misconfigured,
        OutcomeUnknown,
        Refused,
        Unavailable,
        WaitTimeout,
    )
    from holdfast.domain.job import Job
    from holdfast.domain.new_job import NewJob
    from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released
    from holdfast.domain.session_claims import TurnLease
    from holdfast.tasks.context import Context
    from holdfast.tasks.control_flow import Cancelled, Defer, Fail, Retry
    from holdfast.tasks.decorators import AsyncTasks, Tasks
    from holdfast.tasks.session_context import AsyncSessionContext, SessionContext
    from holdfast.worker.warm_resources import WarmResources
    from holdfast.worker.worker import Worker

__all__ = [
    "Artifact",
    "AsyncQueue",
    "AsyncSessionContext",
    "AsyncTasks",
    "AsyncTransaction",
    "Backoff",
    "Cancelled",
    "Claim",
    "Codec",
    "Conflict",
    "Context",
    "Defer",
    "Deferred",
    "Done",
    "Fail",
    "Failed",
    "HoldfastError",
    "InvalidInput",
    "Job",
    "JobFailed",
    "JobNotFound",
    "Lease",
    "LeaseLost",
    "Middleware",
    "Misconfigured",
    "NewJob",
    "Outcome",
    "OutcomeUnknown",
    "Queue",
    "Refused",
    "Released",
    "Retry",
    "SessionContext",
    "Tasks",
    "Transaction",
    "TurnLease",
    "Unavailable",
    "WaitTimeout",
    "WarmResources",
    "Worker",
    "__version__",
    "connect",
    "connect_async",
    "errors",
    "types",
]

# The imports above at run time: the names of each module.
_NAMES_BY_MODULE = {
    "client.async_api.queue": "AsyncQueue AsyncTransaction",
    "client.connect": "connect connect_async",
    "client.middleware": "Middleware",
    "client.sync_api.queue": "Queue Transaction",
    "domain.artifacts": "Artifact",
    "domain.backoff": "Backoff",
    "domain.claims": "Claim Lease",
    "domain.codec": "Codec",
    "domain.errors": (
        "Conflict HoldfastError InvalidInput JobFailed JobNotFound "
        "LeaseLost Misconfigured OutcomeUnknown Refused Unavailable WaitTimeout"
    ),
    "domain.job": "Job",
    "domain.new_job": "NewJob",
    "domain.outcomes": "Deferred Done Failed Outcome Released",
    "domain.session_claims": "TurnLease",
    "tasks.context": "Context",
    "tasks.control_flow": "Cancelled Defer Fail Retry",
    "tasks.decorators": "AsyncTasks Tasks",
    "tasks.session_context": "AsyncSessionContext SessionContext",
    "worker.warm_resources": "WarmResources",
    "worker.worker": "Worker",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
_SUBMODULES = ("errors", "types")


# Hidden from type checkers: with a module __getattr__ they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES and name not in _SUBMODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        if name in _SUBMODULES:
            return import_module(f"{__name__}.{name}")
        import_module(f"{__name__}.{_MODULES[name]}")
        _adopt_names()
        return globals()[name]

    def _adopt_names() -> None:
        """Make the public names of all loaded modules attributes of this module, also in tracebacks and `help`."""
        for public, module in _MODULES.items():
            value = getattr(sys.modules.get(f"{__name__}.{module}"), public, None)
            if value is None:
                continue
            globals()[public] = value
            if module != "domain.errors" and hasattr(value, "__qualname__"):
                value.__module__ = __name__


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
