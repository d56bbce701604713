"""Processor time of each call on SQLite: a part of the bench, also as `python -m bench.call_cost`.

A bare loop, which inserts the same payload, encoded for each row, into a table with an index on the state, by one
commit per row and by one commit for all, runs in the same rounds. So do the statements of each single call without
Holdfast (`statement_cost`), and single enqueues of the peers in Python that are installed. Durability is relaxed, so
that only processor time counts. Each figure is the lower quartile of its rounds, in microseconds per call or job; the
targets are factors of the bare loop, because those in microseconds hold for one machine only.

After the rounds, each call runs again for the pages that it writes to the log: with full durability, a commit waits
until they are on the disk.
"""

from __future__ import annotations

import argparse
import gc
import json
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench import minimal, peer_candidates
from bench.candidates import PythonSession
from bench.seed import KINDS
from bench.statement_cost import Statements
from holdfast import Claim, Done, NewJob, Queue
from holdfast.client.connect import queue_on
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.sqlite.connection import CHECKPOINT_PAGES
from holdfast.storage.sqlite.store import SqliteStore

PAYLOAD = {"prompt": "x" * 150, "n": 1}
LARGE = {"prompt": "x" * 8_000}
RESULT = {"ok": 1}
LANES = ["default", "other", "third"]
BATCH = 500
PLAIN_SHARE_MIN = 0.9
FORMS = ("enqueue", "claim", "settle")
STATEMENTS = "statements alone: "
MINIMAL = "minimal client: drain"
HANDLED = "drain, payloads read"
EMPTY = "transaction without statements"
_WRITTEN = 100
"""Calls whose pages are counted; fewer than a checkpoint needs, as are those of a batch."""
_WAL_HEADER, _FRAME_HEADER = 32, 24
PAGES_HEAD = ("call", "pages", "bytes", "of the bare loop")
PARTS_HEAD = ("call", "statements", "writers and group commit", "the call itself")


class CallTarget(NamedTuple):
    """A target, as a factor of one of the two bare loops."""

    name: str
    bare: str
    most: float


# The microseconds of the target divided by those of the bare loop on the machine for which they were set.
TARGETS = (
    CallTarget("single enqueue", "bare single", 60 / 19.5),
    CallTarget("claim one", "bare single", 70 / 19.5),
    CallTarget("settle one", "bare single", 70 / 19.5),
    CallTarget("settle and claim one", "bare single", 110 / 19.5),
    CallTarget("bulk enqueue", "bare bulk", 11 / 3.7),
    CallTarget("drain", "bare bulk", 14 / 3.7),
    CallTarget("drain, 100 tenants", "bare bulk", 18 / 3.7),
    CallTarget("drain, 8 KB payloads", "bare bulk", 35 / 3.7),
)


class CallCosts(NamedTuple):
    """The results."""

    microseconds: dict[str, float]
    """By call, the bare loops included."""
    plain_shares: dict[str, float]
    """The share of plain enqueues, claims and settlements of a worker with 20 kinds, 3 lanes and 100 tenants."""
    pages: dict[str, float]
    """The pages that each call, or each job of a call for many, writes to the log, the bare loops included."""
    frame_bytes: int
    """The bytes that a page takes there."""

    def beside(self) -> list[str]:
        """Return the names of figures without a target: the limits of single calls, and peers."""
        targets = {target.name for target in TARGETS}
        return [name for name in self.microseconds if name not in targets and not name.startswith("bare")]

    def factor(self, name: str) -> str:
        """Return a figure as a factor of its bare loop."""
        call = name.removeprefix(STATEMENTS)
        bare = next((target.bare for target in TARGETS if target.name == call), "bare single")
        bare = "bare bulk" if name in {MINIMAL, HANDLED} else bare
        return f"{self.microseconds[name] / self.microseconds[bare]:.1f}x"

    def pages_written(self) -> Iterable[Sequence[str]]:
        """Return the rows of the table of pages."""
        bare_of = {target.name: target.bare for target in TARGETS}
        for name, pages in self.pages.items():
            beside = f"{pages / self.pages[bare_of[name]]:.1f}x" if name in bare_of else ""
            yield name, f"{pages:.2f}", f"{pages * self.frame_bytes:,.0f}", beside

    def parts(self) -> Iterable[Sequence[str]]:
        """Return the microseconds of the parts of each call whose statements are measured alone.

        What the queue of writers and group commit take is what a transaction without statements takes beyond the
        same lock, begin and commit without Holdfast; a drain shares it among the jobs of a batch.
        """
        found = self.microseconds
        commit = found[EMPTY] - found[STATEMENTS + EMPTY]
        for target in TARGETS:
            name = target.name
            if STATEMENTS + name in found:
                alone, shared = found[STATEMENTS + name], commit / (BATCH if name == "drain" else 1)
                parts = (alone, shared, found[name] - alone - shared)
                yield name, *(f"{part:.1f}" for part in parts)


def measure(*, rounds: int, calls: int) -> CallCosts:
    """Run all calls in each round, *calls* of each."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        store = SqliteStore(str(path), relaxed=True)
        with queue_on(store) as queue, sqlite3.connect(Path(folder) / "bare.db", isolation_level=None) as bare:
            _prepare(queue, bare)
            peers = _peers(Path(folder))
            statements = Statements(str(path), PAYLOAD, RESULT)
            for _ in range(rounds):
                limits = _statements_round(statements, calls)
                own = [*_one_round(queue, bare, calls), (EMPTY, _timed(calls, partial(_write_nothing, store, calls)))]
                for name, microseconds in [*own, *limits, *_peers_round(peers, calls)]:
                    found.setdefault(name, []).append(microseconds)
            statements.close()
            for session in peers.values():
                session.close()
            before: Counter[str] = Counter(store.forms)
            _drain(queue, _varied(calls), 8, {"lanes": LANES, "kinds": KINDS})
            after: Counter[str] = Counter(store.forms)
            taken = after - before
            pages = {**_bare_pages(bare, path.with_name("bare.db")), **_pages(queue, path)}
            [page_bytes] = bare.execute("pragma page_size").fetchone()
    lowest = {name: quantiles(values, n=4)[0] if rounds > 1 else values[0] for name, values in found.items()}
    shares = {call: taken[f"{call} plain"] / (taken[f"{call} plain"] + taken[f"{call} full"]) for call in FORMS}
    return CallCosts(lowest, shares, pages, page_bytes + _FRAME_HEADER)


def _peers(folder: Path) -> dict[str, PythonSession]:
    """Return a session of each peer in Python that does not sync each enqueue; syncs take processor time too."""
    opened: dict[str, PythonSession] = {}
    for candidate in peer_candidates.candidates():
        if candidate.durability != "relaxed":
            continue
        place = folder / candidate.label
        place.mkdir()
        session = candidate.open(place)
        if isinstance(session, PythonSession):
            opened[f"single enqueue of {candidate.label}"] = session
    return opened


def _prepare(queue: Queue, bare: sqlite3.Connection) -> None:
    bare.execute("pragma journal_mode = wal")
    bare.execute("pragma synchronous = normal")
    bare.execute("create table job (seq integer primary key, state text not null, payload text not null)")
    bare.execute("create index job_state on job (state, seq)")
    _drain(queue, [NewJob("kind", PAYLOAD)], 1, {})


_BARE_INSERT = "insert into job (state, payload) values ('ready', ?)"


def _bare_single(bare: sqlite3.Connection, calls: int) -> None:
    for _ in range(calls):
        bare.execute("begin immediate")
        bare.execute(_BARE_INSERT, (json.dumps(PAYLOAD),))
        bare.execute("commit")


def _bare_bulk(bare: sqlite3.Connection, calls: int) -> None:
    bare.execute("begin immediate")
    bare.executemany(_BARE_INSERT, [(json.dumps(PAYLOAD),) for _ in range(calls)])
    bare.execute("commit")


def _one_round(queue: Queue, bare: sqlite3.Connection, calls: int) -> Iterable[tuple[str, float]]:
    yield "bare single", _timed(calls, partial(_bare_single, bare, calls))
    yield "bare bulk", _timed(calls, partial(_bare_bulk, bare, calls))
    yield "single enqueue", _timed(calls, lambda: [queue.enqueue("kind", PAYLOAD) for _ in range(calls)])
    held: list[Claim | None] = []
    yield "claim one", _timed(calls, lambda: held.extend(queue.claim(worker="w") for _ in range(calls)))
    claims = [claim for claim in held if claim is not None]
    yield "settle one", _timed(calls, lambda: [queue.settle(claim, Done(RESULT)) for claim in claims])
    queue.enqueue_many([NewJob("kind", PAYLOAD)] * calls)
    yield "settle and claim one", _timed(calls, lambda: _drain(queue, (), 1, {}))
    jobs = [NewJob("kind", PAYLOAD)] * calls
    yield "bulk enqueue", _timed(calls, lambda: queue.enqueue_many(jobs))
    yield "drain", _timed(calls, lambda: _drain(queue, (), BATCH, {}))
    queue.enqueue_many(jobs)
    yield HANDLED, _timed(calls, lambda: _drain(queue, (), BATCH, {}, _handle))
    queue.enqueue_many(_of_tenants(calls))
    yield "drain, 100 tenants", _timed(calls, lambda: _drain(queue, (), BATCH, {}))
    queue.enqueue_many([NewJob("kind", LARGE)] * calls)
    yield "drain, 8 KB payloads", _timed(calls, lambda: _drain(queue, (), BATCH, {}))


def _of_tenants(count: int) -> list[NewJob]:
    return [NewJob("kind", PAYLOAD, tenant=f"tenant-{number % 100}") for number in range(count)]


def _write_nothing(store: SqliteStore, calls: int) -> None:
    async def notify(tx: StoreTransaction) -> None:
        tx.topics.add("job:none")

    for _ in range(calls):
        store.write(notify)


def _pages(queue: Queue, path: Path) -> dict[str, float]:
    """Return the pages of each call of Holdfast. No job is ready."""
    pages: dict[str, float] = {}

    def count(name: str, calls: int, work: Callable[[], object]) -> None:
        pages[name] = written_pages(path, work) / calls

    def fill(jobs: list[NewJob]) -> None:
        queue.enqueue_many(jobs)

    held: list[Claim | None] = []
    jobs = [NewJob("kind", PAYLOAD)] * _WRITTEN
    count("single enqueue", _WRITTEN, lambda: [queue.enqueue("kind", PAYLOAD) for _ in range(_WRITTEN)])
    count("claim one", _WRITTEN, lambda: held.extend(queue.claim(worker="w") for _ in range(_WRITTEN)))
    claims = [claim for claim in held if claim is not None]
    count("settle one", _WRITTEN, lambda: [queue.settle(claim, Done(RESULT)) for claim in claims])
    # The first call claims only, and the last settles only.
    fill(jobs)
    count("settle and claim one", _WRITTEN, lambda: _drain(queue, (), 1, {}))
    jobs = [NewJob("kind", PAYLOAD)] * BATCH
    count("bulk enqueue", BATCH, lambda: fill(jobs))
    count("drain", BATCH, lambda: _drain(queue, (), BATCH, {}))
    fill(_of_tenants(BATCH))
    count("drain, 100 tenants", BATCH, lambda: _drain(queue, (), BATCH, {}))
    fill([NewJob("kind", LARGE)] * BATCH)
    count("drain, 8 KB payloads", BATCH, lambda: _drain(queue, (), BATCH, {}))
    return pages


def _bare_pages(bare: sqlite3.Connection, path: Path) -> dict[str, float]:
    return {
        "bare single": written_pages(path, partial(_bare_single, bare, _WRITTEN)) / _WRITTEN,
        "bare bulk": written_pages(path, partial(_bare_bulk, bare, BATCH)) / BATCH,
    }


def written_pages(path: Path, work: Callable[[], object]) -> int:
    """Return how many pages *work* appends to the log of the database at *path*, which no one reads."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("pragma wal_checkpoint(truncate)").fetchall()
        [page_bytes] = other.execute("pragma page_size").fetchone()
        work()
    frames = (path.with_name(f"{path.name}-wal").stat().st_size - _WAL_HEADER) // (page_bytes + _FRAME_HEADER)
    if not 0 < frames < CHECKPOINT_PAGES:
        raise RuntimeError(f"the log has {frames} pages: it was not empty before, or a checkpoint has reset it")
    return int(frames)


def _statements_round(statements: Statements, calls: int) -> Iterable[tuple[str, float]]:
    yield STATEMENTS + EMPTY, _timed(calls, lambda: statements.commit_nothing(calls))
    yield STATEMENTS + "single enqueue", _timed(calls, lambda: statements.enqueue(calls))
    yield STATEMENTS + "claim one", _timed(calls, lambda: statements.claim(calls))
    yield STATEMENTS + "settle one", _timed(calls, lambda: statements.settle(calls))
    statements.enqueue(calls + 1)
    statements.claim(1)
    yield STATEMENTS + "settle and claim one", _timed(calls, lambda: statements.settle_and_claim(calls))
    statements.settle(1)
    statements.enqueue_many(calls)
    yield STATEMENTS + "drain", _timed(calls, lambda: statements.drain(BATCH))
    statements.enqueue_many(calls)
    yield MINIMAL, _timed(calls, lambda: minimal.drain(statements, BATCH, _handle))


def _handle(body: object) -> object:
    """Return the result of a job: the bench measures the queue."""
    del body
    return RESULT


def _peers_round(peers: dict[str, PythonSession], calls: int) -> Iterable[tuple[str, float]]:
    for name, session in peers.items():
        yield name, _timed(calls, partial(_enqueue_each, session, calls))


def _enqueue_each(session: PythonSession, count: int) -> None:
    for number in range(count):
        session.enqueue(number)


def _varied(count: int) -> list[NewJob]:
    # Each kind is in one lane, as the options of a task say.
    return [
        NewJob(KINDS[number % 20], lane=LANES[number % 20 % 3], tenant=f"tenant-{number % 100}")
        for number in range(count)
    ]


def _drain(
    queue: Queue,
    jobs: Iterable[NewJob],
    limit: int,
    options: Any,
    handler: Callable[[object], object] | None = None,
) -> None:
    """Enqueue *jobs*, and settle and claim until none is left; call *handler*, if any, with each payload."""
    queue.enqueue_many(list(jobs))
    claims = queue.claim_many(worker="w", limit=limit, **options)
    while claims:
        if handler is None:
            outcomes = [(claim, Done(RESULT)) for claim in claims]
        else:
            outcomes = [(claim, Done(handler(claim.job.payload))) for claim in claims]
        claims = queue.settle_and_claim(outcomes, worker="w", limit=limit, **options).claims


def _timed(count: int, work: Callable[[], object]) -> float:
    """Return the microseconds of processor time that *work* takes for each of *count* calls."""
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        work()
        return (time.process_time() - started) / count * 1e6
    finally:
        gc.enable()


def show(costs: CallCosts, console: Console) -> None:
    """Print each call beside its target."""
    table = Table("call", "µs", "of the bare loop", "target", "met")
    for name in ("bare single", "bare bulk"):
        table.add_row(name, f"{costs.microseconds[name]:.1f}", "", "", "")
    for target in TARGETS:
        microseconds = costs.microseconds[target.name]
        factor = microseconds / costs.microseconds[target.bare]
        met = "yes" if factor <= target.most else "no"
        table.add_row(target.name, f"{microseconds:.1f}", f"{factor:.1f}x", f"at most {target.most:.1f}x", met)
    for name in costs.beside():
        table.add_row(name, f"{costs.microseconds[name]:.1f}", costs.factor(name), "", "")
    for call, share in costs.plain_shares.items():
        met = "yes" if share >= PLAIN_SHARE_MIN else "no"
        table.add_row(f"plain form of {call}, 20 kinds", f"{share:.0%}", "", f"at least {PLAIN_SHARE_MIN:.0%}", met)
    console.print(table)
    for title, head, rows in (
        ("Parts of the processor time, in µs", PARTS_HEAD, costs.parts()),
        ("Pages written to the log", PAGES_HEAD, costs.pages_written()),
    ):
        table = Table(*head, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", type=int, default=2_000)
    options = parser.parse_args()
    show(measure(rounds=options.rounds, calls=options.calls), Console())


if __name__ == "__main__":
    main()
