"""A mixed backlog, direct and through the gateway: how often does the model server load a model?

A small model server of this example holds one model in memory. Thirty requests for three models arrive in random
order, first at the server itself, then at `holdfast gateway` before it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODELS = ("llama", "mistral", "qwen")
LOAD_SECONDS = 0.05


class Server(ThreadingHTTPServer):
    """A server that accepts all requests of the backlog at once."""

    request_queue_size = 128


class ModelServer(BaseHTTPRequestHandler):
    """Answers as Ollama does, and counts the loads."""

    lock = threading.Lock()
    loaded = ""
    loads = 0

    def do_GET(self) -> None:
        """List the models."""
        names = [{"name": f"{name}:latest", "digest": name} for name in MODELS]
        self._send({"version": "0"} if self.path == "/api/version" else {"models": names})

    def do_POST(self) -> None:
        """Load the model if another one is loaded, and answer."""
        model = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"]
        with self.lock:
            if model != ModelServer.loaded:
                ModelServer.loaded = model
                ModelServer.loads += 1
                time.sleep(LOAD_SECONDS)
        self._send({"model": model, "message": {"role": "assistant", "content": "Hello"}, "done": True})

    def _send(self, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def loads_at(address: str) -> int:
    """Send the backlog to *address*, and return how often a model was loaded."""
    ModelServer.loaded, ModelServer.loads = "", 0
    backlog = [model for model in MODELS for _ in range(10)]
    random.Random(1).shuffle(backlog)

    def ask(model: str) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": False}
        request = urllib.request.Request(f"{address}/api/chat", json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            response.read()

    with ThreadPoolExecutor(len(backlog)) as callers:
        list(callers.map(ask, backlog))
    return ModelServer.loads


def main() -> None:
    server = Server(("127.0.0.1", 0), ModelServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    direct = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast", "--url", str(Path(folder) / "gateway.db"), "gateway", "--json"]
        gateway = subprocess.Popen([*command, "--upstream", direct, "--port", "0"], stdout=subprocess.PIPE)
        assert gateway.stdout is not None
        try:
            through = json.loads(gateway.stdout.readline())["url"]
            few, many = loads_at(through), loads_at(direct)
        finally:
            gateway.terminate()
            gateway.communicate()
    server.shutdown()
    server.server_close()
    # How often direct calls load a model depends on their order of arrival.
    print(f"direct   {'#' * many} {many}", file=sys.stderr)
    print(f"gateway  {'#' * few} {few}", file=sys.stderr)
    print("30 requests for 3 models, in random order")
    print("direct calls load a model for more than every third request:", many > 10)
    print("the gateway loads each model once:", few == 3)


if __name__ == "__main__":
    main()
