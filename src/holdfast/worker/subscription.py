"""What a worker takes: the words of its claims, which follow tasks that are declared while it runs."""

from __future__ import annotations

import logging
from typing import Any, Final

from holdfast.domain.claims import ClaimOptions
from holdfast.domain.errors import Misconfigured
from holdfast.domain.session_claims import AnySessionOptions
from holdfast.tasks.session_tasks import BaseSessionTask
from holdfast.tasks.task import TaskRegistry

log = logging.getLogger("holdfast.worker")

# The words of a claim that mean the same to a claim of any session.
_SESSION_WORDS: Final = ("tenant", "capabilities", "worker", "incarnation", "lease")


class Subscription:
    """By default the kinds that the queue has tasks for, in the lanes these name; else what the worker was told."""

    def __init__(self, tasks: TaskRegistry, words: ClaimOptions) -> None:
        self._tasks = tasks
        self._given = words
        self._known = len(tasks)
        for kind in words.get("kinds") or ():
            tasks.get(kind)
        self._words: ClaimOptions
        self._jobs: ClaimOptions | None
        self._sessions: AnySessionOptions | None
        self._complete()

    def words(self) -> ClaimOptions:
        """Return what this worker takes as of now, jobs and sessions alike, in the words of a claim."""
        if len(self._tasks) != self._known:
            self._know_more()
        return self._words

    def jobs(self) -> ClaimOptions | None:
        """Return the words of a claim of jobs as of now; none if it only serves sessions."""
        self.words()
        return self._jobs

    def sessions(self) -> AnySessionOptions | None:
        """Return the words of a claim of any session as of now; none if it serves none."""
        self.words()
        return self._sessions

    def _know_more(self) -> None:
        self._known = len(self._tasks)
        before = self._words
        self._complete()
        lanes = self._words.get("lanes", ())
        for kind in self._words.get("kinds") or ():
            if kind in (before.get("kinds") or ()):
                continue
            [lane] = self._tasks.lanes([kind])
            if lane in lanes:
                log.info("takes jobs of kind %s as well, which was declared meanwhile", kind)
            else:
                log.warning("kind %s was declared for lane %s, which this worker does not take from", kind, lane)

    def _complete(self) -> None:
        words = self._words = self._completed()
        answers = {task.kind: task.limit for task in self._tasks if isinstance(task, BaseSessionTask)}
        kinds = words.get("kinds") or ()
        plain = [kind for kind in kinds if kind not in answers]
        # The first claim of an exclusive worker takes back what its start before held, though it asks for nothing.
        self._jobs = {**words, "kinds": plain} if plain or words.get("exclusive") else None
        answered = {kind: limit for kind, limit in answers.items() if kind in kinds}
        if not answered:
            self._sessions = None
            return
        shared: Any = {word: value for word, value in words.items() if word in _SESSION_WORDS}
        self._sessions = shared | {"lanes": words.get("lanes", ()), "kinds": list(answered), "limit": answered}

    def _completed(self) -> ClaimOptions:
        kinds = self._given.get("kinds")
        if kinds is None:
            kinds = self._tasks.kinds()
        if not kinds:
            raise Misconfigured("the queue has no tasks; declare some with @queue.task, in a module that is imported")
        lanes = self._given.get("lanes") or self._tasks.lanes(kinds)
        return {**self._given, "kinds": list(kinds), "lanes": list(lanes)}


def affinities_of(words: ClaimOptions) -> tuple[str, ...]:
    """Return the affinities that a claim with these words favours."""
    affinity = words.get("affinity")
    return (affinity,) if isinstance(affinity, str) else tuple(affinity or ())
