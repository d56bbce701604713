"""The claim options of a worker; they include tasks that are declared while it runs."""

import logging
from typing import Any, Final

from holdfast.domain import claims, errors, session_claims
from holdfast.tasks import definition, session_tasks

log = logging.getLogger("holdfast.worker")

# The claim options that a claim of any session shares.
_SESSION_OPTIONS: Final = ("tenant", "capabilities", "worker", "incarnation", "lease")


class Subscription:
    """The kinds and lanes of a worker: those given, or by default those of the queue's tasks."""

    def __init__(self, tasks: definition.TaskTable, options: claims.ClaimOptions) -> None:
        self._tasks = tasks
        self._given = options
        self._known = len(tasks)
        for kind in options.get("kinds") or ():
            tasks.get(kind)
        self.options: claims.ClaimOptions
        """The claim options for jobs and sessions together."""
        self.jobs: claims.ClaimOptions | None
        """The options of a claim of jobs; None if the worker only handles sessions."""
        self.sessions: session_claims.AnySessionOptions | None
        """The options of a claim of any session; None if the worker handles no sessions."""
        self._update_options()

    def refresh(self) -> bool:
        """Include tasks that were declared since the last call; return whether there were any."""
        if len(self._tasks) == self._known:
            return False
        self._add_kinds()
        return True

    def _add_kinds(self) -> None:
        self._known = len(self._tasks)
        before = self.options
        self._update_options()
        lanes = self.options.get("lanes", ())
        for kind in self.options.get("kinds") or ():
            if kind in (before.get("kinds") or ()):
                continue
            [lane] = self._tasks.lanes([kind])
            if lane in lanes:
                log.info("now claims jobs of kind %s too, which was declared after the worker's start", kind)
            else:
                log.warning("kind %s was declared for lane %s, which this worker does not claim from", kind, lane)

    def _update_options(self) -> None:
        options = self.options = self._resolve_options()
        limits_by_kind = {
            task.kind: task.limit for task in self._tasks if isinstance(task, session_tasks.SessionTaskDefinition)
        }
        kinds = options.get("kinds") or ()
        job_kinds = [kind for kind in kinds if kind not in limits_by_kind]
        # An exclusive worker's first claim takes back the jobs of its previous run, even if it claims no kind.
        self.jobs = {**options, "kinds": job_kinds} if job_kinds or options.get("exclusive") else None
        session_limits = {kind: limit for kind, limit in limits_by_kind.items() if kind in kinds}
        if not session_limits:
            self.sessions = None
            return
        shared: Any = {name: value for name, value in options.items() if name in _SESSION_OPTIONS}
        self.sessions = shared | {
            "lanes": options.get("lanes", ()),
            "kinds": list(session_limits),
            "limit": session_limits,
        }

    def _resolve_options(self) -> claims.ClaimOptions:
        kinds = self._given.get("kinds")
        if kinds is None:
            kinds = self._tasks.kinds()
        if not kinds:
            raise errors.Misconfigured(
                "the queue has no tasks; declare some with @queue.task, in a module that is imported"
            )
        lanes = self._given.get("lanes") or self._tasks.lanes(kinds)
        return {**self._given, "kinds": list(kinds), "lanes": list(lanes)}


def affinities_of(options: claims.ClaimOptions) -> tuple[str, ...]:
    """Return the affinities that a claim with these options prefers."""
    affinity = options.get("affinity")
    return (affinity,) if isinstance(affinity, str) else tuple(affinity or ())
