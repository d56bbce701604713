"""Jobs of one call that differ only in id and payload: validated together, and each made when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.domain import limits, new_job, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, JobRow, job_of
from holdfast.domain.lazy_rows import LazyRow, UsualColumns
from holdfast.domain.strict_json import Json


class AlikeJobs(Sequence[new_job.CheckedJob]):
    """Validated plain jobs that have everything but id and payload in common with *model*."""

    __slots__ = ("ids", "model", "payloads")

    def __init__(self, model: new_job.CheckedJob, ids: Sequence[str], payloads: Sequence[str]) -> None:
        self.model = model
        self.ids = ids
        self.payloads = payloads
        """The payloads in stored form."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[new_job.CheckedJob]:
        settings, others, new = self.model.settings, self.model[3:], tuple.__new__
        for job_id, payload in zip(self.ids, self.payloads, strict=True):
            yield new(new_job.CheckedJob, (job_id, settings, payload, *others))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return AlikeJobs(self.model, self.ids[index], self.payloads[index])
        return self.model._replace(id=self.ids[index], payload_json=self.payloads[index])

    def stored(self, seqs: Sequence[int], fair_key: str, now: Now) -> list[Job]:
        """Return the jobs as they are stored at *now* with these numbers."""
        shared = (self.model, fair_key, now)
        rows = zip(self.ids, self.payloads, seqs, strict=True)
        return [job_of(_AlikeRow(job_id, payload, seq, shared)) for job_id, payload, seq in rows]


class _AlikeRow(LazyRow):
    """The row of a new job, made from what it has in common with others: one of them, its fairness key, the time."""

    __slots__ = ("_shared", "id", "payload_json", "seq")

    def __init__(self, job_id: str, payload_json: str, seq: int, shared: tuple[new_job.CheckedJob, str, Now]) -> None:
        self.id = job_id
        self.payload_json = payload_json
        self.seq = seq
        self._shared = shared

    kind = property(lambda self: self._shared[0].settings.route.kind)
    lane = property(lambda self: self._shared[0].settings.route.lane)
    tenant = property(lambda self: self._shared[0].settings.tenant)

    def _row(self) -> new_job.NewRow:
        model, fair_key, now = self._shared
        return new_job.NewRow(model._replace(id=self.id, payload_json=self.payload_json), self.seq, fair_key, now)

    def make(self) -> JobRow:
        """Return the row."""
        return self._row().make()

    def usual(self) -> UsualColumns | None:
        """Return the columns of a job without options."""
        return self._row().usual()


def check_alike(kind: str, payloads: Sequence[Json], fresh_ids: Sequence[str]) -> AlikeJobs | None:
    """Return jobs of one kind without options as `check_new` does, in less time; None if one needs a closer look."""
    texts = strict_json.encode_usual(payloads, limits.PAYLOAD_BYTES_MAX)
    return None if texts is None else AlikeJobs(new_job.check_new(kind, None, ""), fresh_ids, texts)


def as_alike(jobs: Sequence[new_job.CheckedJob]) -> AlikeJobs | None:
    """Return validated jobs together; None if they differ in more than id and payload, or one is not plain."""
    if isinstance(jobs, AlikeJobs):
        return jobs
    settings = jobs[0].settings
    # Most alike jobs share the object, because validated settings are cached.
    if not all((new.settings is settings or new.settings == settings) and new_job.is_plain(new) for new in jobs):
        return None
    return AlikeJobs(jobs[0], [new.id for new in jobs], [new.payload_json for new in jobs])
