"""`python -m bench.dashboard`: how long the pages of the dashboard take, and how large they are, in a large store.

The store has a million jobs, of which 100,000 have failed in 500 ways; one client reads all pages again and again.
With `--walk` a real browser opens each of them too.
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
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import sync_playwright
from tests.browser.conftest import CHROMIUM, FLAGS, Visitor
from tests.browser.test_walk import AXE
from tests.support.dashboard_data import report

import holdfast
from bench import seed
from bench.postgres.server import Arena
from holdfast.client.queue_state import state_of
from holdfast.dashboard.visits import SHARED_SECONDS
from holdfast.domain import limits, rollups
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import SyncRunner

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
    """Fill a store with *jobs* jobs by the calls of programs and workers; return the names that the filters use."""
    failed = int(jobs * FAILED_SHARE)
    with holdfast.connect(url) if "://" in url else holdfast.connect(url, durability="relaxed") as queue:
        queue.migrate()
        queue.lanes.set("strict", order="strict")
        queue.limits.set("calls", kinds=["call"], key="tenant", concurrency=2)
        _finish(queue, int(jobs * 0.65))
        _wait(queue, int(jobs * 0.05), int(jobs * 0.2))
        _fail(queue, failed)
        for batch in _batches(failed // 4):
            queue.enqueue_many([{"kind": "chat.turn", "session": _SESSION} for _ in range(batch)])
        tree = queue.enqueue("tree.root", lane="trees")
        for _ in range(max(1, failed // 4 // _BATCH)):
            # Each generation has a job that has the next one.
            claim = queue.claim(lanes=["trees"])
            if claim is None:
                raise RuntimeError("there is no job of the tree")
            children = [holdfast.NewJob("tree.child", lane="trees") for _ in range(_BATCH)]
            queue.settle(claim, holdfast.Done(follow_ups=children))
        _work(queue)
        group = max(queue.admin.failures(limit=FINGERPRINTS), key=lambda one: one.count)
    if "://" in url:
        # Autovacuum would run before a store reaches this size.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(b"vacuum analyze")
    return {"fingerprint": group.fingerprint, "tree": tree.id}


def _batches(count: int) -> Iterator[int]:
    return (min(_BATCH, count - start) for start in range(0, count, _BATCH))


def _finish(queue: holdfast.Queue, count: int) -> None:
    """Enqueue jobs that are done: most settled by 500, as a busy worker does, and some one by one."""
    for number, batch in enumerate(_batches(count)):
        queue.enqueue_many([{"kind": seed.KINDS[n % 20], "payload": {"n": n}} for n in range(batch)])
        at_once = 1 if number % 100 == 99 else 500
        while claims := queue.claim_many(limit=at_once):
            queue.settle_many([(claim, holdfast.Done()) for claim in claims])


def _wait(queue: holdfast.Queue, future: int, ready: int) -> None:
    """Enqueue scheduled jobs, and ready ones of many lanes, kinds and tenants."""
    for batch in _batches(future):
        queue.enqueue_many([{"kind": seed.KINDS[n % 20], "delay": seed.FAR_SECONDS + n} for n in range(batch)])
    template = [*seed.unserved(), *seed.served()]
    for copy, batch in enumerate(_batches(ready)):
        queue.enqueue_many([_of_next_tenant(one, copy) for one in template[:batch]])


def _of_next_tenant(job: dict[str, Any], copy: int) -> dict[str, Any]:
    tenant: str = job.get("tenant", "")
    if not tenant.startswith("tenant-"):
        return job
    number = (int(tenant.removeprefix("tenant-")) + copy * seed.TENANTS_IN_TEMPLATE) % seed.TENANTS
    return {**job, "tenant": f"tenant-{number}"}


def _work(queue: holdfast.Queue) -> None:
    """Let workers hold jobs, some of them at a limit, and let the flow of this minute be that of an hour."""
    queue.enqueue_many([{"kind": "call", "lane": "calls", "tenant": f"tenant-{n % 200}"} for n in range(_BATCH)])
    for number in range(20):
        name = f"worker-{number}"
        report(
            queue,
            name,
            concurrency=32,
            running=10,
            lanes=("default", "calls", "placed"),
            kinds=(*seed.KINDS, "call"),
            loaded=(f"model-{number % 10}",),
            switches=3,
        )
        for lane in ("default", "calls"):
            queue.claim_many(worker=name, incarnation=f"{name}-a", lanes=[lane], limit=5, lease=3_600)
    SyncRunner(state_of(queue).store).write(_an_hour)


async def _an_hour(tx: StoreTransaction) -> None:
    now = await tx.now()
    counted = [rollups.decode(row.data) for row in await tx.newest_rollups(0, limits.ROLLUPS_READ_MAX)]
    data = rollups.encode(rollups.merge([*counted, tx.rollups.take()]))
    minute_ms = limits.ROLLUP_MINUTE_MS
    first_ms = now.wall_ms // minute_ms * minute_ms - 60 * minute_ms
    await tx.append_rollups(minute_ms, {first_ms + n * minute_ms: data for n in range(60)})


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


@contextmanager
def _serving(url: str) -> Iterator[tuple[int, str]]:
    """Yield the process id and the address of a server."""
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
        yield process.pid, json.loads((process.stdout or sys.stdin).readline())["url"].removeprefix("http://")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def measure(url: str, names: dict[str, str], rounds: int) -> list[PageFigure]:
    """Read every page some times, from a server process."""
    with _serving(url) as (process, address), closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        reads: dict[str, list[_Read]] = {path: [] for path in paths(names, _newest_failed(url))}
        for _ in range(rounds):
            # All pages in turn: viewers share some reads for a second, and none of these is measured.
            began = time.monotonic()
            for path, found in reads.items():
                found.append(_read(process, connection, path))
            time.sleep(max(0.0, began + SHARED_SECONDS + 0.1 - time.monotonic()))
        return [_figure(path, found) for path, found in reads.items()]


def _newest_failed(url: str) -> int:
    with holdfast.connect(url) as queue:
        return queue.jobs(state="failed", limit=1)[0].number


class _Read(NamedTuple):
    took_ms: float
    cpu_ms: float
    bytes: int


def _read(process: int, connection: http.client.HTTPConnection, path: str) -> _Read:
    before = _cpu_ms(process)
    started = time.perf_counter()
    connection.request("GET", f"/dashboard{path}")
    answer = connection.getresponse()
    content = answer.read()
    took_ms = 1_000 * (time.perf_counter() - started)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {content.decode()[-600:]}")
    return _Read(took_ms, _cpu_ms(process) - before, len(content))


def _figure(path: str, reads: list[_Read]) -> PageFigure:
    took = [one.took_ms for one in reads]
    cpu_ms = statistics.fmean(one.cpu_ms for one in reads)
    return PageFigure(path, statistics.median(took), max(took), cpu_ms, reads[-1].bytes / 1_000)


def _cpu_ms(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return 1_000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the walk ------------------------------------------------------------------------------------------------------

MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark, 390 px": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
    "without script": {"java_script_enabled": False},
}


def walk(url: str, names: dict[str, str]) -> list[str]:
    """Open every page in Chromium in each mode, then ten tabs at once; return what is wrong with them."""
    found: list[str] = []
    with _serving(url) as (_, address), holdfast.connect(url) as queue, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        server: Any = SimpleNamespace(port=int(address.rpartition(":")[2]), queue=queue)
        for mode, options in MODES.items():
            visitor = Visitor(browser, server, **options)
            for path in paths(names, _newest_failed(url)):
                page = visitor.go(path)
                overflow = 0
                if options.get("java_script_enabled", True):
                    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                    overflow = page.evaluate(wide)
                    problems = Axe().run(page, options=AXE).response["violations"]
                    found += [f"{mode} {path}: {one['id']} {one['nodes'][0]['html']}" for one in problems]
                if overflow > 0:
                    found.append(f"{mode} {path}: {overflow} pixels too wide")
            found += [f"{mode}: {one}" for one in visitor.complaints]
            visitor.context.close()
        visitor = Visitor(browser, server)
        for tab in [visitor.open() for _ in range(10)]:
            tab.goto(f"{visitor.base}/")
            tab.locator("#needs").wait_for()
        found += [f"ten tabs: {one}" for one in visitor.complaints]
        browser.close()
    return found


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
    parser.add_argument("--walk", action="store_true", help="also open every page in Chromium, with axe")
    parser.add_argument("--folder", type=Path, help="directory for the store")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name).resolve()
        with _store(options.engine, folder) as url:
            names = fill(url, options.jobs)
            figures = measure(url, names, options.rounds)
            wrong = walk(url, names) if options.walk else None
    for one in figures:
        sys.stdout.write(
            f"{options.engine}  {one.median_ms:7.1f} ms (slowest {one.slowest_ms:7.1f}, cpu {one.cpu_ms:6.1f})"
            f"  {one.kilobytes:5.1f} kB  {'met' if one.met else 'MISSED':7} {one.path}\n"
        )
    if wrong is not None:
        walked = f"{len(figures)} pages, {len(MODES)} modes, ten tabs"
        sys.stdout.write("\n".join([f"{options.engine}  walked {walked}: {len(wrong)} problems", *wrong]) + "\n")
    if options.json is not None:
        found: list[dict[str, Any]] = [one._asdict() for one in figures]
        options.json.write_text(json.dumps({options.engine: found}, indent=1) + "\n", encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()
