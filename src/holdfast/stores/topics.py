"""The topics that commits notify and callers listen to."""

from __future__ import annotations


def job_topic(job_id: str) -> str:
    """Return the topic signalled when the job has finished."""
    return f"job:{job_id}"


def lane_topic(lane: str) -> str:
    """Return the topic signalled when the lane may have something to claim."""
    return f"lane:{lane}"


def sessions_topic(lane: str) -> str:
    """Return the topic signalled when a session may have something to claim in the lane."""
    return f"sessions:{lane}"


def session_topic(tenant: str, session: str) -> str:
    """Return the topic signalled when this session may have something to claim."""
    return f"session:{tenant}/{session}"


def worker_topic(worker: str) -> str:
    """Return the topic signalled when somebody asks for a job that the worker holds to be cancelled."""
    return f"worker:{worker}"
