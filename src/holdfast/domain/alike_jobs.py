"""Jobs of one call that differ only in id and payload: validated together, and each made when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.domain import limits, new_job, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, job_of
from holdfast.domain.strict_json import Json


class AlikeNewJobs(Sequence[new_job.CheckedJob]):
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
            return AlikeNewJobs(self.model, self.ids[index], self.payloads[index])
        return self.model._replace(id=self.ids[index], payload_json=self.payloads[index])

    def stored(self, seqs: Sequence[int], fair_key: str, now: Now) -> Sequence[Job]:
        """Return the jobs as they are stored at *now* with these numbers."""
        return _NewAlike(self, seqs, fair_key, now)


class _NewAlike(Sequence[Job]):
    """Such jobs after they were stored; each is made when it is first read."""

    __slots__ = ("_fair_key", "_made", "_new", "_now", "_seqs")

    def __init__(self, new: AlikeNewJobs, seqs: Sequence[int], fair_key: str, now: Now) -> None:
        self._new = new
        self._seqs = seqs
        self._fair_key = fair_key
        self._now = now
        self._made: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._seqs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if (made := self._made.get(place)) is None:
            row = new_job.NewRow(self._new[place], self._seqs[place], self._fair_key, self._now)
            # Another thread may make it at the same time.
            made = self._made.setdefault(place, job_of(row))
        return made


def check_alike(kind: str, payloads: Sequence[Json], fresh_ids: Sequence[str]) -> AlikeNewJobs | None:
    """Return jobs of one kind without options as `check_new` does, in less time; None if one needs a closer look."""
    texts = strict_json.encode_usual(payloads, limits.PAYLOAD_BYTES_MAX)
    return None if texts is None else AlikeNewJobs(new_job.check_new(kind, None, ""), fresh_ids, texts)


def as_alike(jobs: Sequence[new_job.CheckedJob]) -> AlikeNewJobs | None:
    """Return validated jobs together; None if they differ in more than id and payload, or one is not plain."""
    if isinstance(jobs, AlikeNewJobs):
        return jobs
    settings = jobs[0].settings
    # Most alike jobs share the object, because validated settings are cached.
    if not all((new.settings is settings or new.settings == settings) and new_job.is_plain(new) for new in jobs):
        return None
    return AlikeNewJobs(jobs[0], [new.id for new in jobs], [new.payload_json for new in jobs])
