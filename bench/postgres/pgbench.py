"""An upper bound for any queue on this server: inserts by pgbench."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
from tests.support.postgres_installations import preferred

from bench.candidates import Candidate, CandidateFailedError, Scenario, Session, as_text

_CLIENTS: dict[Scenario, int] = {"single": 1, "threads-8": 8, "threads-32": 32}
_SCHEMA = b"""
create table job (
    seq bigint generated always as identity primary key, id uuid not null unique, state text not null,
    epoch integer not null, payload text not null
);
create index job_ready on job (seq) where state = 'ready';
"""
_INSERT = "insert into job (id, state, epoch, payload) values (gen_random_uuid(), 'ready', 0, '{body}');\n"
_RATE = re.compile(r"tps = ([\d.]+) \(without initial connection time\)")


class PgbenchSession(Session):
    """One table, one partial index, prepared inserts, and one client per caller of the scenario."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_SCHEMA)
        self._insert(1, 100)

    def measure(self, scenario: Scenario, count: int) -> float:
        """Return the seconds for *count* inserts by pgbench's own rate, without connecting."""
        return count / self._insert(_CLIENTS[scenario], count)

    def close(self) -> None:
        """Do nothing."""

    def _insert(self, clients: int, count: int) -> float:
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(_INSERT.format(body=as_text(0)))
            script.flush()
            each = max(1, count // clients)
            options = ["-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-t", str(each)]
            command = [str(_program()), *options, "-f", script.name, "-d", self._url]
            run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        found = _RATE.search(run.stdout)
        if run.returncode or found is None:
            raise CandidateFailedError(f"pgbench failed:\n{run.stdout}{run.stderr}")
        return float(found[1])


def _program() -> Path | None:
    beside = preferred().programs / "pgbench"
    if beside.exists():
        return beside
    elsewhere = shutil.which("pgbench")
    return None if elsewhere is None else Path(elsewhere)


def candidates() -> list[Candidate]:
    """Return pgbench, if it is installed."""
    if _program() is None:
        return []
    settings = "one table, one index, one prepared insert per transaction; 1, 8 and 32 clients; without a queue"
    return [Candidate("pgbench", "full", settings, frozenset(_CLIENTS), PgbenchSession)]


def absent() -> dict[str, str]:
    """Return pgbench with the reason, if it is not installed."""
    return {"pgbench": "neither next to the server's programs nor on PATH"} if _program() is None else {}
