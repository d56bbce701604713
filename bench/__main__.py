"""`python -m bench`: measure, print and store results."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import call_cost, claim_cost, machine, sessions, writers
from bench.candidates import Candidate, Engine
from bench.charts import draw_all
from bench.docs_writer import write_page
from bench.isolation import JOBS as ISOLATED_JOBS, run_isolation
from bench.memory import run_memory
from bench.pickup import run_pickup
from bench.postgres import claim_cost as postgres_claim_cost
from bench.postgres.holdfast_candidates import on_server
from bench.postgres.server import Arena
from bench.registry import absent, all_candidates
from bench.results import NAMES, Results, store
from bench.rounds import POSTGRES_PLANS, SQLITE_PLANS, Log, run_scenarios, scaled
from bench.terminal import show
from bench.worker import JOBS as WORKER_JOBS, on_files, run_worker

ROOT = Path(__file__).resolve().parents[1]
_SQLITE_ONLY = ("memory", "calls", "writers", "isolation")
PARTS = ("scenarios", "pickup", "claims", "pinned", "worker", "sessions", *_SQLITE_ONLY)
"""All parts; a pinned snapshot is measured on PostgreSQL only."""
ENGINES: dict[str, tuple[Engine, ...]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgres",),
    "all": ("sqlite", "postgres"),
}
_SIZES = (1_000, 100_000, 1_000_000)
_SIZE_HUGE = 10_000_000
_OTHER_JOBS = 1_000_000
_MEMORY_JOBS = 1_000_000
_PINNED_JOBS = 200_000
_PICKUPS = 100
_CLAIMS = 100
_TURNS = 10
_IDLE_SECONDS = 5.0
_QUICK_SCALE = 0.05
_CALLS = 2_000
_WRITER_SECONDS = 3.0


def main(arguments: list[str] | None = None) -> list[Results]:
    """Run the selected parts and return the results by engine."""
    options = _arguments().parse_args(arguments)
    console = Console(log_path=False)
    measures = {"sqlite": measure_sqlite, "postgres": measure_postgres}
    runs = []
    for engine in ENGINES[options.engine]:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as folder:
            results = _timed(measures[engine], options, Path(folder).resolve(), console)
        runs.append(results)
        show(results, console)
        # After each engine: if the next one fails, these results are not lost.
        if options.json is not None:
            store(runs, options.json)
        if options.docs:
            draw_all(results, ROOT / "docs" / "images")
            write_page(results, ROOT / "docs" / "performance.md")
    return runs


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare Holdfast with its peers.")
    parser.add_argument(
        "--engine", choices=tuple(ENGINES), default="all", help="the engines to measure (default all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements per candidate (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size (default 1)")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; repeatable")
    parser.add_argument("--candidate", action="append", help="one candidate by name; repeatable")
    parser.add_argument("--huge", action="store_true", help="also claim among 10,000,000 ready jobs")
    parser.add_argument("--folder", type=Path, help="directory for the measured files; its disk is measured")
    parser.add_argument("--json", type=Path, help="file for the results as JSON")
    parser.add_argument("--docs", action="store_true", help="write charts and tables into the documentation")
    return parser


def _timed(
    measure: Callable[[argparse.Namespace, Path, Log], Results],
    options: argparse.Namespace,
    place: Path,
    console: Console,
) -> Results:
    load_before, started = machine.load(), time.monotonic()
    results = measure(options, place, console.log)
    results.method = {
        "rounds": options.rounds,
        "scale": options.scale,
        "load before": f"{load_before:.2f}",
        "load after": f"{machine.load():.2f}",
        "minutes": f"{(time.monotonic() - started) / 60:.1f}",
    }
    return results


def measure_sqlite(options: argparse.Namespace, place: Path, log: Log) -> Results:
    """Measure the selected parts on files under *place*."""
    parts, rounds, scale = options.only or PARTS, options.rounds, options.scale

    @contextmanager
    def fresh() -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield Path(folder)

    candidates = _selected("sqlite", options)
    results = _empty("sqlite", candidates, machine.sqlite_facts(place))
    if "scenarios" in parts:
        results.cells = run_scenarios(
            candidates,
            SQLITE_PLANS,
            fresh,
            rounds=rounds,
            scale=scale,
            log=_of("sqlite", log),
            failures=results.absent,
            disk=place,
        )
    if "pickup" in parts:
        log("SQLite: pick-up across processes")
        count = scaled(_PICKUPS, scale)
        results.latencies = run_pickup(
            "sqlite", candidates, fresh, rounds=rounds, count=count, failures=results.absent
        )
    if "claims" in parts:
        results.costs = claim_cost.run_claim_cost(place, **_claims(options), log=_of("sqlite", log))
    if "sessions" in parts:
        results.session_costs = sessions.run_on_files(place, **_sessions(options), log=_of("sqlite", log))
        log("SQLite: several workers on 64 sessions")
        results.crew = sessions.run_workers_on_file(place, turns=scaled(_TURNS, scale))
    if "memory" in parts:
        log("SQLite: memory")
        results.memory = run_memory(place, scaled(_MEMORY_JOBS, scale))
    if "calls" in parts:
        log("SQLite: processor time of calls")
        count = max(20, scaled(_CALLS, scale))
        results.calls = call_cost.measure(rounds=max(2, 2 * rounds), calls=count)
    if "writers" in parts:
        log("SQLite: many writers")
        processes = max(2, scaled(writers.PROCESSES, min(1.0, scale)))
        seconds = max(0.1, _WRITER_SECONDS * min(1.0, scale))
        results.writers = writers.run_writers(processes, seconds, scaled(writers.ROUNDS, min(1.0, scale)))
    if "worker" in parts:
        log("SQLite: a worker")
        results.worker = run_worker(on_files(place), **_worker(options), minimal_in=place)
    if "isolation" in parts:
        log("SQLite: isolated handlers")
        results.isolation = run_isolation(place, rounds=rounds, jobs=scaled(ISOLATED_JOBS, scale))
    return results


def measure_postgres(options: argparse.Namespace, place: Path, log: Log) -> Results:
    """Measure the selected parts on a server whose data is under *place*, if its user can access that folder."""
    parts, rounds, scale = options.only or PARTS, options.rounds, options.scale
    candidates = _selected("postgres", options)
    with Arena(place) as arena:
        results = _empty("postgres", candidates, machine.postgres_facts(arena.folder, arena.version()))
        for name, reason in results.absent.items():
            log(f"PostgreSQL: {name} is NOT MEASURED: {reason}")
        if "scenarios" in parts:
            results.cells = run_scenarios(
                candidates,
                POSTGRES_PLANS,
                arena.fresh,
                rounds=rounds,
                scale=scale,
                log=_of("postgres", log),
                failures=results.absent,
            )
        if "pickup" in parts:
            log("PostgreSQL: pick-up across processes")
            count = scaled(_PICKUPS, scale)
            results.latencies = run_pickup(
                "postgres", candidates, arena.fresh, rounds=rounds, count=count, failures=results.absent
            )
        if "claims" in parts:
            results.costs = postgres_claim_cost.run_claim_cost(arena, **_claims(options), log=_of("postgres", log))
        if "sessions" in parts:
            results.session_costs = sessions.run_on_server(arena, **_sessions(options), log=_of("postgres", log))
            log("PostgreSQL: several workers on 64 sessions")
            results.crew = sessions.run_workers_on_server(arena, turns=scaled(_TURNS, scale))
        if "pinned" in parts:
            log("PostgreSQL: claims under a pinned snapshot")
            results.pinned = postgres_claim_cost.run_pinned(
                arena, jobs=scaled(_PINNED_JOBS, scale), claims=max(4, scaled(2 * _CLAIMS, scale))
            )
        if "worker" in parts:
            log("PostgreSQL: a worker")
            results.worker = run_worker(on_server(arena), **_worker(options))
    return results


def _selected(engine: Engine, options: argparse.Namespace) -> list[Candidate]:
    return [one for one in all_candidates(engine) if options.candidate is None or one.name in options.candidate]


def _empty(engine: Engine, candidates: list[Candidate], facts: dict[str, str]) -> Results:
    settings = {one.label if engine == "sqlite" else one.name: one.settings for one in candidates}
    return Results(engine, facts, {}, settings, absent=absent(engine))


def _of(engine: Engine, log: Log) -> Log:
    return lambda what: log(f"{NAMES[engine]}: {what}")


def _claims(options: argparse.Namespace) -> dict[str, Any]:
    sizes = [*_SIZES, _SIZE_HUGE] if options.huge else [*_SIZES]
    return {
        # A template has a thousand rows: the smallest store.
        "sizes": sorted({max(1_000, scaled(size, options.scale)) for size in sizes}),
        "beside": max(1_000, scaled(_OTHER_JOBS, options.scale)),
        "rounds": options.rounds,
        "claims": max(2, scaled(_CLAIMS, min(1.0, options.scale * 4))),
    }


def _sessions(options: argparse.Namespace) -> dict[str, Any]:
    claims = _claims(options)
    return {
        "sizes": [size for size in claims["sizes"] if size <= max(_SIZES)],
        "rounds": options.rounds,
        "claims": max(2, claims["claims"] // 4),
    }


def _worker(options: argparse.Namespace) -> dict[str, Any]:
    # A few hundred jobs would measure how a worker starts; only tests of the bench are smaller than a quick run.
    scale = max(options.scale, 1.0) if options.scale >= _QUICK_SCALE else options.scale
    return {
        "rounds": options.rounds,
        "jobs": max(100, scaled(WORKER_JOBS, scale)),
        "idle_seconds": max(0.05, _IDLE_SECONDS * min(1.0, options.scale)),
    }


if __name__ == "__main__":
    main()
