"""`python -m bench`: measure, show, store."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import claim_cost, machine, sessions
from bench.candidates import Candidate, Engine
from bench.charts import draw_all
from bench.docs_writer import write_page
from bench.isolation import JOBS as ISOLATED_JOBS
from bench.isolation import run_isolation
from bench.memory import run_memory
from bench.pickup import run_pickup
from bench.postgres import claim_cost as postgres_claim_cost
from bench.postgres.holdfast_candidates import on_server
from bench.postgres.server import Arena
from bench.registry import absent, everyone
from bench.results import NAMES, Results, store
from bench.rounds import POSTGRES_PLANS, SQLITE_PLANS, Say, run_roads, scaled
from bench.terminal import show
from bench.worker import JOBS as WORKER_JOBS
from bench.worker import on_files, run_worker

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("roads", "pickup", "claims", "memory", "pinned", "worker", "sessions", "isolation")
"""All parts; memory and isolation are measured on SQLite only, a pinned snapshot on PostgreSQL only."""
ENGINES: dict[str, tuple[Engine, ...]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgres",),
    "all": ("sqlite", "postgres"),
}
_SIZES = (1_000, 100_000, 1_000_000)
_SIZE_HUGE = 10_000_000
_BESIDE = 1_000_000
_MEMORY_JOBS = 1_000_000
_PINNED_JOBS = 200_000
_PICKUPS = 100
_CLAIMS = 100
_TURNS = 10
_IDLE_SECONDS = 5.0


def main(arguments: list[str] | None = None) -> list[Results]:
    """Run the parts that were asked for and return what they found, engine by engine."""
    asked = _arguments().parse_args(arguments)
    console = Console(log_path=False)
    measures = {"sqlite": measure_sqlite, "postgres": measure_postgres}
    runs = []
    for engine in ENGINES[asked.engine]:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=asked.folder) as folder:
            runs.append(_timed(measures[engine], asked, Path(folder).resolve(), console))
    for results in runs:
        show(results, console)
    if asked.json is not None:
        store(runs, asked.json)
    for results in runs if asked.docs else []:
        draw_all(results, ROOT / "docs" / "images")
        write_page(results, ROOT / "docs" / "performance.md")
    return runs


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Holdfast beside its peers.")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="all", help="which half to run (default all)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each candidate is measured (default 5)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of the full size, for a quick look (default 1)"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given several times")
    parser.add_argument("--candidate", action="append", help="one candidate by name; may be given several times")
    parser.add_argument("--huge", action="store_true", help="also claim among 10,000,000 ready jobs")
    parser.add_argument("--folder", type=Path, help="where to put the files that are measured; mind the disk")
    parser.add_argument("--json", type=Path, help="where to write the results as JSON")
    parser.add_argument("--docs", action="store_true", help="write charts and tables into the documentation")
    return parser


def _timed(
    measure: Callable[[argparse.Namespace, Path, Say], Results],
    asked: argparse.Namespace,
    place: Path,
    console: Console,
) -> Results:
    load_before, begun = machine.load(), time.monotonic()
    results = measure(asked, place, console.log)
    results.method = {
        "rounds": asked.rounds,
        "scale": asked.scale,
        "load before": f"{load_before:.2f}",
        "load after": f"{machine.load():.2f}",
        "minutes": f"{(time.monotonic() - begun) / 60:.1f}",
    }
    return results


def measure_sqlite(asked: argparse.Namespace, place: Path, say: Say) -> Results:
    """Measure the parts that were asked for on files under *place*."""
    parts, rounds, scale = asked.only or PARTS, asked.rounds, asked.scale

    @contextmanager
    def fresh() -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield Path(folder)

    candidates = _asked_for("sqlite", asked)
    results = _empty("sqlite", candidates, machine.sqlite_facts(place))
    if "roads" in parts:
        results.cells = run_roads(
            candidates,
            SQLITE_PLANS,
            fresh,
            rounds=rounds,
            scale=scale,
            say=_of("sqlite", say),
            failures=results.absent,
            disk=place,
        )
    if "pickup" in parts:
        say("SQLite: pick-up across processes")
        count = scaled(_PICKUPS, scale)
        results.latencies = run_pickup(
            "sqlite", candidates, fresh, rounds=rounds, count=count, failures=results.absent
        )
    if "claims" in parts:
        results.costs = claim_cost.run_claim_cost(place, **_claims(asked), say=_of("sqlite", say))
    if "sessions" in parts:
        results.session_costs = sessions.run_on_files(place, **_sessions(asked), say=_of("sqlite", say))
        say("SQLite: a crew on 64 sessions")
        results.crew = sessions.run_crew_on_file(place, turns=scaled(_TURNS, scale))
    if "memory" in parts:
        say("SQLite: memory")
        results.memory = run_memory(place, scaled(_MEMORY_JOBS, scale))
    if "worker" in parts:
        say("SQLite: a worker")
        results.worker = run_worker(on_files(place), **_worker(asked))
    if "isolation" in parts:
        say("SQLite: isolated handlers")
        results.isolation = run_isolation(place, rounds=rounds, jobs=scaled(ISOLATED_JOBS, scale))
    return results


def measure_postgres(asked: argparse.Namespace, place: Path, say: Say) -> Results:
    """Measure the parts that were asked for on a server whose data lies under *place*, if its user can reach that."""
    parts, rounds, scale = asked.only or PARTS, asked.rounds, asked.scale
    candidates = _asked_for("postgres", asked)
    with Arena(place) as arena:
        results = _empty("postgres", candidates, machine.postgres_facts(arena.folder, arena.version()))
        for name, reason in results.absent.items():
            say(f"PostgreSQL: {name} is NOT MEASURED: {reason}")
        if "roads" in parts:
            results.cells = run_roads(
                candidates,
                POSTGRES_PLANS,
                arena.fresh,
                rounds=rounds,
                scale=scale,
                say=_of("postgres", say),
                failures=results.absent,
            )
        if "pickup" in parts:
            say("PostgreSQL: pick-up across processes")
            count = scaled(_PICKUPS, scale)
            results.latencies = run_pickup(
                "postgres", candidates, arena.fresh, rounds=rounds, count=count, failures=results.absent
            )
        if "claims" in parts:
            results.costs = postgres_claim_cost.run_claim_cost(arena, **_claims(asked), say=_of("postgres", say))
        if "sessions" in parts:
            results.session_costs = sessions.run_on_server(arena, **_sessions(asked), say=_of("postgres", say))
            say("PostgreSQL: a crew on 64 sessions")
            results.crew = sessions.run_crew_on_server(arena, turns=scaled(_TURNS, scale))
        if "pinned" in parts:
            say("PostgreSQL: claims under a pinned snapshot")
            results.pinned = postgres_claim_cost.run_pinned(
                arena, jobs=scaled(_PINNED_JOBS, scale), claims=max(4, scaled(2 * _CLAIMS, scale))
            )
        if "worker" in parts:
            say("PostgreSQL: a worker")
            results.worker = run_worker(on_server(arena), **_worker(asked))
    return results


def _asked_for(engine: Engine, asked: argparse.Namespace) -> list[Candidate]:
    return [one for one in everyone(engine) if asked.candidate is None or one.name in asked.candidate]


def _empty(engine: Engine, candidates: list[Candidate], facts: dict[str, str]) -> Results:
    settings = {one.label if engine == "sqlite" else one.name: one.settings for one in candidates}
    return Results(engine, facts, {}, settings, absent=absent(engine))


def _of(engine: Engine, say: Say) -> Say:
    return lambda what: say(f"{NAMES[engine]}: {what}")


def _claims(asked: argparse.Namespace) -> dict[str, Any]:
    sizes = [*_SIZES, _SIZE_HUGE] if asked.huge else [*_SIZES]
    return {
        # A template is a thousand rows, so that this is the smallest store there is.
        "sizes": sorted({max(1_000, scaled(size, asked.scale)) for size in sizes}),
        "beside": max(1_000, scaled(_BESIDE, asked.scale)),
        "rounds": asked.rounds,
        "claims": max(2, scaled(_CLAIMS, min(1.0, asked.scale * 4))),
    }


def _sessions(asked: argparse.Namespace) -> dict[str, Any]:
    claims = _claims(asked)
    return {
        "sizes": [size for size in claims["sizes"] if size <= max(_SIZES)],
        "rounds": asked.rounds,
        "claims": max(2, claims["claims"] // 4),
    }


def _worker(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "rounds": asked.rounds,
        "jobs": max(100, scaled(WORKER_JOBS, asked.scale)),
        "idle_seconds": max(0.05, _IDLE_SECONDS * min(1.0, asked.scale)),
    }


if __name__ == "__main__":
    main()
