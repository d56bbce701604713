"""A real pgbouncer in transaction mode, if the program is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.support import postgres_server, postgres_watchdog

MISSING = "pgbouncer is not installed (Debian: apt-get install pgbouncer); the same was tested without a pooler only"
# Few connections for many clients, so that a client really gets a connection that another has just used.
SERVER_CONNECTIONS = 2
_SETTINGS = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
server_round_robin = 1
pidfile = {folder}/data/postmaster.pid
logfile = {folder}/log
"""


def program() -> str | None:
    """Return the program, if it is installed. Debian puts it where only root's PATH looks."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class Pooler:
    """A pgbouncer in front of the server at *url*, running until closed."""

    def __init__(self, url: str) -> None:
        found = program()
        assert found is not None, MISSING
        self._parts = urlsplit(url)
        self._port = postgres_server.free_port()
        user = postgres_server.server_user()
        self._folder = postgres_server.fresh_folder(user)
        self._held = postgres_watchdog.hold(self._folder)
        self._watchdog = postgres_watchdog.start(self._folder)
        manner: dict[str, Any] = {}
        if user is not None:
            manner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process = self._start(found, manner)
        self._await_answer()

    @property
    def url(self) -> str:
        user = self._parts.username or "postgres"
        return f"postgresql://{user}@127.0.0.1:{self._port}{self._parts.path}"

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        """Stop it and remove its files."""
        self._process.kill()
        self._process.wait()
        postgres_watchdog.let_go(self._held)
        self._watchdog.wait(postgres_server.PATIENCE_SECONDS)

    def _start(self, found: str, manner: dict[str, Any]) -> subprocess.Popen[bytes]:
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(self._settings())
        users = self._folder / "users.txt"
        users.write_text(f'"{self._parts.username}" ""\n')
        # Its process id is stored like that of a server, for the watchdog.
        data = self._folder / "data"
        data.mkdir()
        for path in (settings, users, data):
            if "user" in manner:
                shutil.chown(path, manner["user"], manner["group"])
        return subprocess.Popen(
            [found, "-q", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=Path("/"),
            **manner,
        )

    def _settings(self) -> str:
        return _SETTINGS.format(
            host=self._parts.hostname,
            port=self._parts.port,
            own_port=self._port,
            connections=SERVER_CONNECTIONS,
            folder=self._folder,
        )

    def _await_answer(self) -> None:
        until = time.monotonic() + postgres_server.PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError as problem:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise postgres_server.ServerFailedError(f"pgbouncer did not start:\n{self.log}") from problem
                time.sleep(0.02)
            else:
                return
