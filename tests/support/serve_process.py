"""`holdfast serve` in a process of its own."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.service import TIMEOUT, Client


class ServeProcess:
    """A server in a process of its own. Its log is beside the file of the store unless *log* is given."""

    def __init__(self, store: Path | str, *arguments: str, port: int = 0, log: Path | None = None) -> None:
        self.errors = log or Path(store).with_suffix(".log")
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "holdfast",
                    "--url",
                    str(store),
                    "serve",
                    "--port",
                    str(port),
                    "--json",
                    *arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT)[0], "the server does not start"
        self.started = json.loads(self.process.stdout.readline())
        self.port = int(self.started["url"].rpartition(":")[2])

    def client(self, token: str | None = None) -> Client:
        """Return a client of the server."""
        return Client(self.port, token)

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """Kill the server if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(path: Path, *arguments: str, port: int = 0) -> Iterator[ServeProcess]:
    """Run a server for a block."""
    server = ServeProcess(path, *arguments, port=port)
    try:
        yield server
    finally:
        server.close()
