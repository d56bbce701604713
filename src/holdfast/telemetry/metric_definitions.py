"""Definitions of all metrics: name, type, labels and description.

Tests compare docs/telemetry.md and the dashboard with this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """The definition of one Prometheus metric."""

    name: str
    """Its name."""
    kind: Literal["gauge", "counter", "histogram"]
    """Its type."""
    labels: tuple[str, ...]
    """The names of its labels."""
    description: str
    """What it measures."""
    source: Literal["store", "worker"]
    """`store` if it is read from the store and the same in every process, `worker` if one worker measures it."""


LABELS: Final = ("lane", "kind")
# Waits and runs take from milliseconds to hours.
BUCKETS_SECONDS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

STORE_UP: Final = Metric("holdfast_store_up", "gauge", (), "1 if the store answered, else 0", "store")
READY: Final = Metric("holdfast_jobs_ready", "gauge", LABELS, "Jobs that can be claimed now", "store")
OLDEST: Final = Metric(
    "holdfast_oldest_ready_age_seconds", "gauge", LABELS, "How long the oldest ready job has been due", "store"
)
TARGET_AGE: Final = Metric(
    "holdfast_lane_target_age_seconds",
    "gauge",
    ("lane",),
    "How long the oldest ready job of the lane should be due at most; only lanes with a target",
    "store",
)
LATE: Final = Metric(
    "holdfast_lane_late",
    "gauge",
    ("lane",),
    "1 if the lane misses its target age, else 0; only lanes with a target",
    "store",
)
SCHEDULED: Final = Metric("holdfast_jobs_scheduled", "gauge", (), "Jobs that wait for their due time", "store")
BLOCKED: Final = Metric("holdfast_jobs_blocked", "gauge", (), "Jobs that wait for a predecessor to end", "store")
DEPENDENT: Final = Metric("holdfast_jobs_dependent", "gauge", (), "Jobs that wait for others to end", "store")
PARKED: Final = Metric("holdfast_jobs_parked", "gauge", (), "Jobs that wait for room at a limit", "store")
RUNNING: Final = Metric("holdfast_jobs_running", "gauge", (), "Jobs under a lease", "store")
EXPIRED: Final = Metric(
    "holdfast_jobs_expired", "gauge", (), "Jobs whose lease has expired and that no claim has taken back yet", "store"
)
SUSPECT: Final = Metric(
    "holdfast_jobs_suspect", "gauge", (), "Ready jobs whose last attempt expired: they may kill workers", "store"
)
WORKERS: Final = Metric("holdfast_workers", "gauge", ("state",), "Workers in the registry", "store")

WAIT: Final = Metric("holdfast_job_wait_seconds", "histogram", LABELS, "Time from due to claimed", "worker")
RUN: Final = Metric("holdfast_job_run_seconds", "histogram", LABELS, "How long a handler ran", "worker")
ATTEMPTS: Final = Metric(
    "holdfast_attempts_total",
    "counter",
    (*LABELS, "outcome"),
    "Attempts that ended: done, failed, deferred, released, or lost with their lease",
    "worker",
)
FINISHED: Final = Metric(
    "holdfast_jobs_finished_total",
    "counter",
    (*LABELS, "state"),
    "Jobs that a settlement finished",
    "worker",
)
EXPIRED_ATTEMPTS: Final = Metric(
    "holdfast_expires_total", "counter", LABELS, "Expired attempts, counted when their job is claimed again", "worker"
)
SWITCHES: Final = Metric(
    "holdfast_affinity_switches_total", "counter", (), "How often the worker switched to another affinity", "worker"
)
LOAD_SECONDS: Final = Metric(
    "holdfast_affinity_load_seconds_total",
    "counter",
    (),
    "How long the worker took to load and unload affinities",
    "worker",
)
SLOTS: Final = Metric("holdfast_worker_slots", "gauge", (), "How many jobs the worker runs at once", "worker")
WORKER_JOBS: Final = Metric("holdfast_worker_jobs", "gauge", (), "Jobs that the worker holds", "worker")

METRICS: Final[tuple[Metric, ...]] = (
    STORE_UP,
    READY,
    OLDEST,
    TARGET_AGE,
    LATE,
    SCHEDULED,
    BLOCKED,
    DEPENDENT,
    PARKED,
    RUNNING,
    EXPIRED,
    SUSPECT,
    WORKERS,
    WAIT,
    RUN,
    ATTEMPTS,
    FINISHED,
    EXPIRED_ATTEMPTS,
    SWITCHES,
    LOAD_SECONDS,
    SLOTS,
    WORKER_JOBS,
)
"""All metrics."""
