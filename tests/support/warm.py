"""Importing this module loads the code that a process needs to use a queue, for processes forked from it.

Holdfast imports an engine when the first queue is opened, which takes a third of a second. A queue in memory is
opened, used and closed here; no file, connection or thread is left for the forked processes.
"""

from __future__ import annotations

import holdfast


def _use() -> None:
    with holdfast.connect(":memory:") as queue:
        made = queue.enqueue("warm", events="all")
        claim = queue.claim()
        assert claim is not None
        queue.settle(claim, holdfast.Done(follow_ups=[{"kind": "warm"}], artifacts=[holdfast.Artifact("a", b"b")]))
        queue.cancel(next(job.id for job in queue.jobs() if job.id != made.id))
        queue.attempts(made.id)
        queue.events()
        queue.counts()


_use()
