"""What an enqueue does if its id or its dedupe key exists already."""

import hashlib
from collections.abc import Set
from typing import Literal, TypeAlias

from holdfast.domain import errors, new_job
from holdfast.domain.job import JobRow


def same_request(original: JobRow, repeated: new_job.CheckedJob) -> JobRow:
    """Return *original* if *repeated* is the same request, else raise `Conflict`."""
    # A client of the service may have chosen the digest.
    if original.digest != repeated.digest or original.tenant != repeated.settings.tenant:
        raise errors.Conflict(f"job {original.id!r} exists with different content", job_id=original.id)
    return original


DuplicateAction: TypeAlias = Literal["keep", "replace", "succeed", "replace_successor"]


def resolve_duplicate(new: new_job.CheckedJob, holder: JobRow, successor: JobRow | None) -> DuplicateAction:
    """Return what an enqueue does if *holder*, an unfinished job, has the same key, or raise `Conflict`."""
    action = _action_of(new, holder, successor)
    replaced = {"replace": holder, "replace_successor": successor}.get(action)
    if replaced is not None and replaced.kind != new.settings.route.kind:
        # A key that is unique within the tenant: the handler of the other kind would get the content of this one.
        raise errors.Conflict(
            f"job {replaced.id!r} with this dedupe key is of kind {replaced.kind!r}; its content can only be replaced"
            " by a job of the same kind",
            job_id=replaced.id,
        )
    return action


def _action_of(new: new_job.CheckedJob, holder: JobRow, successor: JobRow | None) -> DuplicateAction:
    if new.debounce is not None and holder.epoch == 0:
        return "replace"
    if new.debounce is not None:
        return "succeed" if successor is None else "replace_successor"
    match new.settings.on_duplicate:
        case "replace":
            if holder.epoch > 0 or holder.state == "blocked":
                raise errors.Conflict(
                    f"job {holder.id!r} with this dedupe key was already claimed and cannot be replaced",
                    job_id=holder.id,
                )
            return "replace"
        case "run_again" if holder.state == "running":
            return "succeed" if successor is None else "replace_successor"
        case _:
            return "keep"


def replace_content(job: JobRow, new: new_job.CheckedJob) -> JobRow:
    """Return *job* with the payload, headers and tags of *new*; its position in the claim order stays."""
    settings = new.settings
    return job._replace(
        payload_json=new.payload_json, headers_json=settings.headers_json, tags_json=settings.tags_json
    )


def key_numbers(keys: Set[new_job.DedupeKey], ids: Set[str]) -> list[int]:
    """Return a 32-bit number for each dedupe key and each chosen id, sorted, for the locks of a store."""
    names = [*("\0".join(("key", *key)) for key in keys), *(f"id\0{job_id}" for job_id in ids)]
    return sorted({_number(name) for name in names})


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big", signed=True)
