"""What a worker takes: the words of its claims, which follow tasks that are declared while it runs."""

from __future__ import annotations

import logging

from holdfast.client.tasks import TaskRegistry
from holdfast.domain.claim import ClaimOptions
from holdfast.domain.errors import Misconfigured

log = logging.getLogger("holdfast.worker")


class Subscription:
    """By default the kinds that the queue has tasks for, in the lanes these name; else what the worker was told."""

    def __init__(self, tasks: TaskRegistry, words: ClaimOptions) -> None:
        self._tasks = tasks
        self._given = words
        self._known = len(tasks)
        for kind in words.get("kinds") or ():
            tasks.get(kind)
        self._words = self._completed()

    def words(self) -> ClaimOptions:
        """Return the words of a claim as of now."""
        if len(self._tasks) != self._known:
            self._know_more()
        return self._words

    def _know_more(self) -> None:
        self._known = len(self._tasks)
        before, self._words = self._words, self._completed()
        lanes = self._words.get("lanes", ())
        for kind in self._words.get("kinds") or ():
            if kind in (before.get("kinds") or ()):
                continue
            [lane] = self._tasks.lanes([kind])
            if lane in lanes:
                log.info("takes jobs of kind %s as well, which was declared meanwhile", kind)
            else:
                log.warning("kind %s was declared for lane %s, which this worker does not take from", kind, lane)

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
