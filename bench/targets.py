"""Performance targets and whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench import call_cost
from bench.candidates import Durability, Engine
from bench.isolation import TARGET_MS as ISOLATION_MS_MAX
from bench.results import Results, ratio
from bench.rounds import Cell
from bench.worker import SLEEPING

MEMORY_MEGABYTES_MAX = 64
SINGLE_LEAST = 0.65
ONE_BY_ONE_LEAST = 0.8
PICKUP_MS_MAX = 0.8
CLAIM_GROWTH_MAX = 1.5
PINNED_GROWTH_MAX = 1.3
WORKERS_SHARE_MIN = 0.8
WORKER_LEAST = 0.7
SLEEPING_LEAST = 0.8
IDLE_MOST = 0.01
# Jobs per second on the machine for which the targets were set: two cores, no other work.
WORKER_RATES: dict[Engine, dict[str, int]] = {
    "sqlite": {"sync, no-op": 25_000, "async, no-op": 20_000, SLEEPING: 20_000},
    "postgres": {"sync, no-op": 20_000, "async, no-op": 20_000},
}


class Verdict(NamedTuple):
    """One target, the measured value, and whether it is met."""

    path: str
    target: str
    found: float | None
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """Return every target of the engine with the measured value."""
    if results.engine == "postgres":
        own = [*_postgres_scenarios(results), *_postgres_pickup(results), *_claims(results), *_pinned(results)]
    else:
        own = [*_scenarios(results), *_threads(results), *_pickup(results), *_claims(results), *_memory(results)]
        own += _calls(results)
    return [*own, *_worker(results), *_isolation(results), *_sessions(results)]


def _at_least(path: str, against: str, least: float, found: float | None) -> Verdict:
    return Verdict(path, f"at least {least:g}x {against}", found, None if found is None else found >= least)


def _beside(
    results: Results, path: str, scenario: str, peer: str, durability: Durability, *, least: float
) -> Verdict:
    found = ratio(results.cell(scenario, "holdfast", durability), results.cell(scenario, peer, durability))
    against = peer if results.engine == "postgres" else f"{peer} ({durability})"
    return _at_least(path, against, least, found)


def _reported(path: str, against: str, ours: Cell | None, theirs: Cell | None) -> Verdict:
    return Verdict(path, f"none; the ratio to {against}", ratio(ours, theirs), None)


def _scenarios(results: Results) -> Iterator[Verdict]:
    single = results.cell("single", "holdfast", "full")
    bare = results.cell("single", "bare sqlite3", "full")
    yield _at_least("single enqueue, FULL", "the bare loop", SINGLE_LEAST, ratio(single, bare))
    # Holdfast commits twice for each job; huey once, and loses a job whose worker crashes.
    yield _beside(results, "one job at a time, FULL", "one-by-one", "huey", "full", least=ONE_BY_ONE_LEAST)
    peers: list[tuple[str, Durability, str]] = [("huey", "full", "FULL"), ("plainjob", "full", "FULL")]
    for peer, durability, mode in [*peers, ("plainjob", "relaxed", "NORMAL")]:
        ours, theirs = (results.cell("drain", name, durability) for name in ("holdfast", peer))
        yield _reported(f"drain, {mode}", peer, ours, theirs)


def _threads(results: Results) -> Iterator[Verdict]:
    single = results.cell("single", "holdfast", "full")
    for threads in (8, 64):
        many = results.cell(f"threads-{threads}", "holdfast", "full")
        yield _reported(f"enqueue by {threads} threads, FULL", "one caller", many, single)


def _pickup(results: Results) -> Iterator[Verdict]:
    ours = results.latency("holdfast", "relaxed")
    found = None if ours is None else ours.percentile(0.5) * 1e3
    met = None if found is None else found <= PICKUP_MS_MAX
    yield Verdict("pick-up p50 across processes, NORMAL", f"at most {PICKUP_MS_MAX:g} ms", found, met)


def _claims(results: Results) -> Iterator[Verdict]:
    if results.costs:
        growth = {cost.filter: max(cost.seconds.values()) / cost.seconds[min(cost.seconds)] for cost in results.costs}
        worst = max(growth, key=lambda name: growth[name])
        most = max(results.costs[0].seconds)
        path = f"claim at {most:,} ready jobs, worst filter ({worst})"
        yield Verdict(path, "at most 1.5x the claim at 1,000", growth[worst], growth[worst] <= CLAIM_GROWTH_MAX)


def _sessions(results: Results) -> Iterator[Verdict]:
    if results.session_costs:
        costs = results.session_costs
        growth = {cost.filter: max(cost.seconds.values()) / cost.seconds[min(cost.seconds)] for cost in costs}
        worst = max(growth, key=lambda name: growth[name])
        path = f"sessions at {max(costs[0].seconds):,} entries, worst ({worst})"
        yield Verdict(path, "at most 1.5x that at 1,000", growth[worst], growth[worst] <= CLAIM_GROWTH_MAX)
    if results.crew is not None:
        path = f"{results.crew.workers} workers on {results.crew.sessions} sessions"
        yield _at_least(path, f"{results.crew.workers} times one worker", WORKERS_SHARE_MIN, results.crew.share)


def _memory(results: Results) -> Iterator[Verdict]:
    if results.memory is not None:
        megabytes = results.memory.peak_bytes / 1e6
        path = f"memory of a process that enqueues and drains {results.memory.jobs:,} jobs"
        yield Verdict(path, f"at most {MEMORY_MEGABYTES_MAX} MB", megabytes, megabytes <= MEMORY_MEGABYTES_MAX)


def _calls(results: Results) -> Iterator[Verdict]:
    if results.calls is None:
        return
    found = results.calls.microseconds
    for target in call_cost.TARGETS:
        factor = found[target.name] / found[target.bare]
        path = f"processor time: {target.name}"
        yield Verdict(path, f"at most {target.most:.1f}x the {target.bare} loop", factor, factor <= target.most)
    for call, share in results.calls.plain_shares.items():
        least = call_cost.PLAIN_SHARE_MIN
        yield _at_least(f"plain form of {call}, 20 kinds", "all calls", least, share)


def _worker(results: Results) -> Iterator[Verdict]:
    found = results.worker
    if found is None:
        return
    for handlers, rate, against, bound in found.compared():
        least = WORKER_LEAST if against == "the raw engine" else SLEEPING_LEAST
        # Rates of one machine say little about another, so the verdict is on the ratio.
        aimed = WORKER_RATES[results.engine].get(handlers)
        shown = f"{against}; here {rate:,.0f}/s" + ("" if aimed is None else f", aimed at {aimed:,}/s")
        yield _at_least(f"worker: {handlers}", shown, least, rate / bound)
    share = found.idle_share
    yield Verdict("worker: idle", f"at most {IDLE_MOST:g} of a core", share, share <= IDLE_MOST)


def _isolation(results: Results) -> Iterator[Verdict]:
    if results.isolation is not None:
        cost_ms = results.isolation.cost_ms
        path = "added time per isolated job, median"
        yield Verdict(path, f"at most {ISOLATION_MS_MAX:g} ms", cost_ms, cost_ms <= ISOLATION_MS_MAX)


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


def _postgres_scenarios(results: Results) -> Iterator[Verdict]:
    for peer, least in (("graphile-worker", 1.5), ("pgqueuer", 3.0), ("awa-pg", 5.0)):
        yield _beside(results, "drain", "drain", peer, "full", least=least)
    yield _beside(results, "bulk enqueue", "bulk", "pgqueuer", "full", least=1.4)
    yield _beside(results, "single enqueue", "single", "pgbench", "full", least=0.8)


def _postgres_pickup(results: Results) -> Iterator[Verdict]:
    ours, theirs = results.latency("holdfast", "full"), results.latency("pgqueuer", "full")
    found = None if ours is None or theirs is None else ours.percentile(0.99) / theirs.percentile(0.99)
    yield Verdict("pick-up p99", "at most 0.5x pgqueuer", found, None if found is None else found <= 1 / 2)


def _pinned(results: Results) -> Iterator[Verdict]:
    if results.pinned is not None:
        found = results.pinned.after / results.pinned.before
        path = f"claim after {results.pinned.jobs:,} jobs under a pinned snapshot"
        yield Verdict(path, f"at most {PINNED_GROWTH_MAX:g}x the claim before", found, found <= PINNED_GROWTH_MAX)
