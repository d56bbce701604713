"""`python -m bench.dashboard`: how long the pages of the dashboard take, and how large they are, in a large store.

The store has a million jobs, of which 100,000 have failed in 500 ways; one client reads each page again and again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import holdfast
from bench import seed
from bench.postgres.server import Arena

JOBS = 1_000_000
FAILED_SHARE = 0.1
FINGERPRINTS = 500
MEDIAN_MS_MAX = 100.0
KILOBYTES_MAX = 60.0
_BATCH = 1_000
_SESSION = "long"

FILTERS = (
    "",
    "state:ready",
    "state:failed",
    "state:failed tenant:nobody",
    "state:done kind:kind-3",
    "kind:none",
    "lane:strict age>1h",
    "tag:team=sales",
    "tag:team=sales kind:none",
    f"session:{_SESSION}",
    f"session:{_SESSION} state:failed",
    "fingerprint:{fingerprint}",
    "fingerprint:{fingerprint} tenant:nobody",
    "root:{tree}",
)


class PageFigure(NamedTuple):
    """One page: how long it took, and how large it is."""

    path: str
    median_ms: float
    slowest_ms: float
    cpu_ms: float
    """Processor time of the server process, which on PostgreSQL is not all."""
    kilobytes: float

    @property
    def met(self) -> bool:
        """Whether the page is as fast and as small as it must be."""
        return self.median_ms <= MEDIAN_MS_MAX and self.kilobytes <= KILOBYTES_MAX


# --- the store -----------------------------------------------------------------------------------------------------


def fill(url: str, jobs: int) -> dict[str, str]:
    """Fill a store with *jobs* jobs; return the names that the filters use."""
    failed = int(jobs * FAILED_SHARE)
    if "://" in url:
        from bench.postgres import seed as postgres_seed  # noqa: PLC0415

        postgres_seed.fill_base(url, finished=int(jobs * 0.65), future=int(jobs * 0.05))
        postgres_seed.fill_ready(url, int(jobs * 0.2))
    else:
        path = Path(url)
        base = path.with_name("base.db")
        seed.make_base(base, finished=int(jobs * 0.65), future=int(jobs * 0.05))
        seed.add_ready(base, path, int(jobs * 0.2))
        base.unlink()
    with holdfast.connect(url) if "://" in url else holdfast.connect(url, durability="relaxed") as queue:
        _fail(queue, failed)
        for start in range(0, failed // 4, _BATCH):
            entries = [{"kind": "chat.turn", "session": _SESSION} for _ in range(min(_BATCH, failed // 4 - start))]
            queue.enqueue_many(entries)
        tree = queue.enqueue("tree.root", lane="trees")
        for _ in range(max(1, failed // 4 // _BATCH)):
            # Each generation has a job that has the next one.
            claim = queue.claim(lanes=["trees"])
            if claim is None:
                raise RuntimeError("there is no job of the tree")
            children = [holdfast.NewJob("tree.child", lane="trees") for _ in range(_BATCH)]
            queue.settle(claim, holdfast.Done(follow_ups=children))
        group = max(queue.admin.failures(limit=FINGERPRINTS), key=lambda one: one.count)
        return {"fingerprint": group.fingerprint, "tree": tree.id}


def _fail(queue: holdfast.Queue, count: int) -> None:
    """Enqueue jobs that fail in some hundreds of ways, one of them most often."""
    done = 0
    while done < count:
        batch = min(_BATCH, count - done)
        jobs = [{"kind": f"failing-{n % 20}", "lane": "failing", "tags": {"team": "sales"}} for n in range(batch)]
        queue.enqueue_many(jobs)
        claims = queue.claim_many(lanes=["failing"], limit=batch)
        outcomes = []
        for n, claim in enumerate(claims):
            way = 0 if n % 2 else (done + n) // 2 % FINGERPRINTS
            failure = holdfast.Failed(f"it is broken: {chr(97 + way // 26)}{chr(97 + way % 26)}", permanent=True)
            outcomes.append((claim, failure))
        queue.settle_many(outcomes)
        done += batch


# --- the pages -----------------------------------------------------------------------------------------------------


def paths(names: dict[str, str], number: int) -> Iterator[str]:
    """Return the pages that are read."""
    yield "/"
    for line in FILTERS:
        yield f"/jobs?q={quote(line.format(**names))}"
    yield f"/jobs/{number}"
    yield from ("/failures", f"/failures?fingerprint={names['fingerprint']}", "/flow", "/workers", "/sessions")
    yield f"/sessions/one?name={_SESSION}"
    yield from ("/webhooks", "/system")


def measure(url: str, names: dict[str, str], rounds: int) -> list[PageFigure]:
    """Read every page some times, from a server process."""
    command = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "--url",
        url,
        "--json",
        "serve",
        "--port",
        "0",
        "--tokens",
        "off",
    ]
    process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        started = json.loads((process.stdout or sys.stdin).readline())
        with holdfast.connect(url) as queue:
            number = queue.jobs(state="failed", limit=1)[0].number
        with closing(http.client.HTTPConnection(started["url"].removeprefix("http://"), timeout=120)) as connection:
            return [_read(process.pid, connection, path, rounds) for path in paths(names, number)]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _read(process: int, connection: http.client.HTTPConnection, path: str, rounds: int) -> PageFigure:
    took, content = [], b""
    before = _cpu_ms(process)
    for _ in range(rounds):
        started = time.perf_counter()
        connection.request("GET", f"/dashboard{path}")
        answer = connection.getresponse()
        content = answer.read()
        took.append(1_000 * (time.perf_counter() - started))
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content.decode()[-600:]}")
    cpu_ms = (_cpu_ms(process) - before) / rounds
    return PageFigure(path, statistics.median(took), max(took), cpu_ms, len(content) / 1_000)


def _cpu_ms(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return 1_000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the run -------------------------------------------------------------------------------------------------------


@contextmanager
def _store(engine: str, folder: Path) -> Iterator[str]:
    if engine == "sqlite":
        yield str(folder / "jobs.db")
        return
    with Arena(folder) as arena, arena.fresh() as url:
        yield str(url)


def main(arguments: list[str] | None = None) -> list[PageFigure]:
    """Fill a store, read the pages, print the figures, and return them."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=11, help="how often each page is read (default 11)")
    parser.add_argument("--folder", type=Path, help="directory for the store")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name).resolve()
        with _store(options.engine, folder) as url:
            figures = measure(url, fill(url, options.jobs), options.rounds)
    for one in figures:
        sys.stdout.write(
            f"{options.engine}  {one.median_ms:7.1f} ms (slowest {one.slowest_ms:7.1f}, cpu {one.cpu_ms:6.1f})"
            f"  {one.kilobytes:5.1f} kB  {'met' if one.met else 'MISSED':7} {one.path}\n"
        )
    if options.json is not None:
        found: list[dict[str, Any]] = [one._asdict() for one in figures]
        options.json.write_text(json.dumps({options.engine: found}, indent=1) + "\n", encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()
