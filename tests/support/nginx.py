"""nginx, as a proxy before a server of a test."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres_server import free_port
from tests.support.service import TIMEOUT

PROGRAM = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@contextmanager
def proxy(folder: Path, settings: str) -> Iterator[int]:
    """Run a proxy with these settings of its server for a block, and give its port."""
    assert PROGRAM is not None
    port = free_port()
    (folder / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        {settings}
    }}
}}
""")
    command = [PROGRAM, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            _wait_for(folder / "nginx.pid", process)
            yield port
        finally:
            process.kill()


def _wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + TIMEOUT
    while not file.exists():
        assert process.poll() is None, "nginx does not start"
        assert time.monotonic() < until, "nginx does not start"
        time.sleep(0.01)
