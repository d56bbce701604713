"""Real PostgreSQL servers for tests: one for each worker of a run, and private ones for faults.

`server_url` returns that of the worker: the server named by HOLDFAST_TEST_POSTGRES if that is set, otherwise one that
is started from an installation (`postgres_installations`), once for the worker and the processes that its tests
start. It ends with the last of them, even if the run is killed (`postgres_watchdog`). Workers cannot share one: a
transaction open anywhere on a server delays the event logs of all its databases. `database_url` returns a database in
it that only this worker uses.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.support import postgres_watchdog
from tests.support.postgres_installations import Installation, preferred

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES"
# The folder of the servers of one run. Set by the run's first process, inherited by its workers.
RUN_VARIABLE = "HOLDFAST_TEST_RUN"
PATIENCE_SECONDS = 120.0
# The server listens only on this machine, so it trusts all local users. It syncs, as the tests of faults need.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "Asia/Kathmandu",  # a quarter of an hour off any other, so that a moment without a zone is noticed
    "log_line_prefix": "%m [%p] %d ",
}
# The server of a worker is never crashed on purpose and is deleted at the end of the run, so it need not sync.
SHARED_SETTINGS = {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}


class ServerFailedError(Exception):
    """The server could not be created or started; contains its output."""


class Server:
    """A private PostgreSQL server, on a free port of 127.0.0.1; created from *installation*, not yet started.

    Run as root, the server is started as another user. It ends with the processes that use it, and the folder
    *beside* is removed with it. *settings* add to the defaults; its data is under *place* if its user can access
    that.
    """

    def __init__(
        self,
        installation: Installation | None = None,
        *,
        beside: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        place: Path | None = None,
    ) -> None:
        self.installation = installation or preferred()
        self.user = server_user()
        # By default where the files of tests are: `make test` keeps them in memory.
        folder = place or os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
        self.folder = fresh_folder(self.user, str(folder))
        self._settings = {**SETTINGS, **settings}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._held = postgres_watchdog.hold(self.folder)
        self._watchdog = postgres_watchdog.start(self.folder, *([beside] if beside else []))
        template = _template(self.installation)
        self._programs = template.programs
        subprocess.run(["cp", "-Rp", str(template.folder / "data"), str(self.folder / "data")], check=True)

    @property
    def url(self) -> str:
        """The URL of its first database, as its superuser."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    @property
    def log(self) -> str:
        """The server's log."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and return once it accepts connections."""
        settings = {**self._settings, "port": str(self.port)}
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = self._popen("postgres", "-D", str(self.folder / "data"), *arguments, output=log)
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise ServerFailedError(f"{self.installation.name} did not start:\n{self.log}")
            time.sleep(0.02)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop it and wait for that. *immediate* is a crash: nothing is written, and the next start recovers."""
        assert self._process is not None, "it was not started"
        self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def restart(self, *, immediate: bool = True) -> None:
        """Stop and start it; clients see their connections die."""
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Stop it and remove all its files."""
        if self._process is not None:
            self.stop(immediate=True)
        postgres_watchdog.let_go(self._held)
        self._watchdog.wait(PATIENCE_SECONDS)

    def leave(self) -> None:
        """Leave it running when this process ends, for the other processes that use it."""
        assert self._process is not None, "it was not started"
        postgres_watchdog.leave(self._process)

    @contextmanager
    def superuser(self, database: str = "postgres") -> Iterator[Connection]:
        """Connect as the superuser, in autocommit mode."""
        with psycopg.connect(self.database_url(database), autocommit=True) as connection:
            yield connection

    def terminate_backends(self, condition: str = "true", database: str = "postgres") -> int:
        """Kill the client connections for which *condition* holds in pg_stat_activity, and return how many."""
        return terminate_backends(self.database_url(database), condition)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _popen(self, program: str, *arguments: str, output: Any) -> subprocess.Popen[bytes]:
        # A separate process session: the interrupt that ends a run at the terminal must not reach the server.
        return subprocess.Popen(
            [str(self._programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **_manner(self.folder, self.user),
        )


# --- the template of servers ---------------------------------------------------------------------------------------


class _Template(NamedTuple):
    """A folder with the data of a new server, to be copied, and programs that the server's user may run."""

    folder: Path
    programs: Path


@functools.cache
def _template(installation: Installation) -> _Template:
    """Return the template that the processes of this run share, made by the first of them; removed with the last."""
    if RUN_VARIABLE not in os.environ:
        begin_run()
    key = hashlib.sha256(str(installation).encode()).hexdigest()[:12]
    meeting = Path(f"{os.environ[RUN_VARIABLE]}-template-{key}")
    meeting.mkdir(mode=0o700, exist_ok=True)
    with (meeting / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = meeting / "template"
        if note.exists():
            with suppress(FileNotFoundError):
                folder, programs = map(Path, note.read_text().splitlines())
                postgres_watchdog.hold(folder)
                return _Template(folder, programs)
        made = _make_template(installation, meeting)
        note.write_text(f"{made.folder}\n{made.programs}\n")
        return made


def _make_template(installation: Installation, meeting: Path) -> _Template:
    user = server_user()
    folder = fresh_folder(user)
    postgres_watchdog.hold(folder)
    postgres_watchdog.start(folder, meeting)
    programs = _reachable_programs(installation, folder, user)
    arguments = [
        "-D",
        str(folder / "data"),
        "-U",
        "postgres",
        "--auth=trust",
        "--no-sync",
        "--wal-segsize=1",  # megabyte: each server has a copy of the first segment, and keeps up to 64 of them
        "--encoding=UTF8",
        "--locale=C",
    ]
    # Use a linguistic collation if the build supports one: like most servers, and unlike Python.
    for locale in (["--locale-provider=icu", "--icu-locale=en-US"], []):
        made = subprocess.run(
            [str(programs / "initdb"), *arguments, "--encoding=UTF8", "--locale=C", *locale],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            **_manner(folder, user),
        )
        if made.returncode == 0:
            return _Template(folder, programs)
    raise ServerFailedError(f"initdb of {installation.name} failed:\n{made.stdout}")


def _reachable_programs(installation: Installation, folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Return a folder of the programs that *user* may run: a copy in *folder*, if they are not accessible."""
    programs = installation.programs
    if user is None or _can_run(programs / "postgres", user):
        return programs
    root = folder / "programs"
    shutil.copytree(programs.parent, root / "package" / programs.parent.name, symlinks=True)
    # A wheel keeps its libraries beside its package, where its programs look for them.
    for libraries in programs.parent.parent.parent.glob(f"{programs.parent.parent.name}.libs"):
        shutil.copytree(libraries, root / libraries.name, symlinks=True)
    return root / "package" / programs.parent.name / "bin"


def _manner(folder: Path, user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return how a program of the server is run."""
    manner: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}}
    if user is not None:
        manner |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return manner


def terminate_backends(url: str, condition: str = "true") -> int:
    """Kill the other client connections to the database at *url* for which *condition* holds, and return how many."""
    ended = f"""select count(pg_terminate_backend(pid)) from pg_stat_activity
                 where datname = current_database() and backend_type = 'client backend'
                   and pid <> pg_backend_pid() and ({condition})"""
    while True:
        # Another thread that does the same may end this connection, and with it only this attempt.
        with suppress(psycopg.errors.AdminShutdown), psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(ended.encode()).fetchone()
            assert row is not None
            return int(row[0])


# --- the server of the run -----------------------------------------------------------------------------------------


def begin_run() -> None:
    """Set the folder that the processes of this run share. Called in its first process; nothing is created yet."""
    os.environ[RUN_VARIABLE] = str(Path(tempfile.gettempdir()) / f"holdfast-run-{uuid.uuid4().hex}")


@functools.cache
def server_url() -> str:
    """Return the URL of this worker's server; start it if necessary.

    Its user may create databases and schemas. Raises `NoServerFoundError` if no server is found.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    if RUN_VARIABLE not in os.environ:
        begin_run()
    folder = Path(f"{os.environ[RUN_VARIABLE]}-{_worker()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _join(folder / "server") or _start_shared(folder)


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


@functools.cache
def database_url() -> str:
    """Return the URL of a database that only this process uses: `holdfast_gw0` for the worker gw0.

    On a given server, the workers share it and must use separate databases.
    """
    name = f"holdfast_{_worker()}"
    if os.environ.get(URL_VARIABLE):
        # Others may use that server at the same time, and it is not deleted.
        name = f"{name}_{uuid.uuid4().hex[:8]}"
        atexit.register(_drop_database, name)
    _drop_database(name)
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return with_database(server_url(), name)


@contextmanager
def fresh_database() -> Iterator[str]:
    """Yield the URL of a database that exists only during the block."""
    name = f"holdfast_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield with_database(server_url(), name)
    finally:
        _drop_database(name)


def with_database(url: str, name: str) -> str:
    """Return *url* with another database."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


def _drop_database(name: str) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _start_shared(folder: Path) -> str:
    server = Server(beside=folder, settings=SHARED_SETTINGS)
    server.start()
    atexit.register(server.leave)
    (folder / "server").write_text(f"{server.folder}\n{server.url}\n")
    return server.url


def _join(note: Path) -> str | None:
    """Return the URL of the server that another worker started, and use it from now on."""
    if not note.exists():
        return None
    folder, url = note.read_text().split()
    try:
        postgres_watchdog.hold(Path(folder))
    except FileNotFoundError:
        return None  # all who used it were gone before this one came
    return url


# --- the machine ---------------------------------------------------------------------------------------------------


def server_user() -> pwd.struct_passwd | None:
    """Return the user to run the server as, because it refuses to run as root; None for the current user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody", "holdfast-postgres"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    subprocess.run(["useradd", "--system", "--no-create-home", "holdfast-postgres"], check=True, timeout=30)
    return pwd.getpwnam("holdfast-postgres")


def fresh_folder(user: pwd.struct_passwd | None, *wanted: str) -> Path:
    """Make a folder that the server's user can access and write, in one of those *wanted* if possible."""
    for parent in dict.fromkeys((*wanted, tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=parent))
        if user is None:
            return folder
        os.chown(folder, user.pw_uid, user.pw_gid)
        if _can_run(folder, user):
            return folder
        folder.rmdir()
    raise ServerFailedError(
        "no folder for temporary files can be reached by the user " + (user.pw_name if user else "")
    )


def _can_run(path: Path, user: pwd.struct_passwd) -> bool:
    asked = ["test", "-x", str(path)]
    manner: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return subprocess.run(asked, check=False, cwd="/", **manner).returncode == 0


def free_port() -> int:
    """Return a free port of this machine."""
    # Below the ephemeral ports, so that no client has it when the server is started again.
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
