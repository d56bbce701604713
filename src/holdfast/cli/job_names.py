"""Names of jobs on the command line: an id, or the number that tables show."""

from holdfast import Job, JobNotFound, Queue


def find_job(queue: Queue, job_id: str) -> Job:
    """Return the job with this id, or with this number as `1042` or `#1042`."""
    try:
        return queue.get(job_id)
    except JobNotFound:
        number = job_id.removeprefix("#")
        if not (number.isascii() and number.isdigit() and 0 < len(number) < 19 and int(number)):
            raise
    try:
        return queue.get(int(number))
    except JobNotFound:
        raise JobNotFound(job_id) from None


def id_of(queue: Queue, job_id: str) -> str:
    """Return the id of the named job. If it does not exist, return *job_id*, which the caller may still know."""
    try:
        return find_job(queue, job_id).id
    except JobNotFound:
        return job_id
