"""`python -m bench`: measure, show, store."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine
from bench.charts import draw_all
from bench.claim_cost import run_claim_cost
from bench.everyone import everyone
from bench.memory import run_memory
from bench.page import write_page
from bench.pickup import run_pickup
from bench.results import Results, store
from bench.rounds import run_roads, scaled
from bench.terminal import show

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("roads", "pickup", "claims", "memory")
_SIZES = (1_000, 100_000, 1_000_000)
_SIZE_HUGE = 10_000_000
_BESIDE = 1_000_000
_MEMORY_JOBS = 1_000_000
_PICKUPS = 100
_CLAIMS = 100


def main(arguments: list[str] | None = None) -> Results:
    """Run the parts that were asked for and return what they found."""
    asked = _arguments().parse_args(arguments)
    console = Console(log_path=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=asked.folder) as folder:
        results = measure(asked, Path(folder).resolve(), console)
    show(results, console)
    if asked.json is not None:
        store(results, asked.json)
    if asked.docs:
        draw_all(results, ROOT / "docs" / "images")
        write_page(results, ROOT / "docs" / "performance.md")
    return results


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Holdfast beside its peers.")
    parser.add_argument("--rounds", type=int, default=5, help="how often each candidate is measured (default 5)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of the full size, for a quick look (default 1)"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given several times")
    parser.add_argument("--huge", action="store_true", help="also claim among 10,000,000 ready jobs")
    parser.add_argument("--folder", type=Path, help="where to put the files that are measured; mind the disk")
    parser.add_argument("--json", type=Path, help="where to write the results as JSON")
    parser.add_argument("--docs", action="store_true", help="write charts and tables into the documentation")
    return parser


def measure(asked: argparse.Namespace, place: Path, console: Console) -> Results:
    """Measure the parts that were asked for."""
    parts = asked.only or PARTS
    candidates = everyone()
    method: dict[str, Any] = {"rounds": asked.rounds, "scale": asked.scale, "load before": f"{machine.load():.2f}"}
    results = Results(machine.facts(place), method, {one.label: one.settings for one in candidates})
    begun = time.monotonic()

    def say(what: str) -> None:
        console.log(what)

    if "roads" in parts:
        results.cells = run_roads(candidates, place, rounds=asked.rounds, scale=asked.scale, say=say)
    if "pickup" in parts:
        say("pick-up across processes")
        count = scaled(_PICKUPS, asked.scale)
        results.latencies = run_pickup(candidates, place, rounds=asked.rounds, count=count)
    if "claims" in parts:
        results.costs = _claims(asked, place, say)
    if "memory" in parts:
        say("memory")
        results.memory = run_memory(place, scaled(_MEMORY_JOBS, asked.scale))
    method["load after"] = f"{machine.load():.2f}"
    method["minutes"] = f"{(time.monotonic() - begun) / 60:.1f}"
    return results


def _claims(asked: argparse.Namespace, place: Path, say: Any) -> Any:
    sizes = [*_SIZES, _SIZE_HUGE] if asked.huge else [*_SIZES]
    # A template is a thousand rows, so that this is the smallest store there is.
    shrunk = sorted({max(1_000, scaled(size, asked.scale)) for size in sizes})
    claims = max(2, scaled(_CLAIMS, min(1.0, asked.scale * 4)))
    beside = max(1_000, scaled(_BESIDE, asked.scale))
    return run_claim_cost(place, sizes=shrunk, beside=beside, rounds=asked.rounds, claims=claims, say=say)


if __name__ == "__main__":
    main()
