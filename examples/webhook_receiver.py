"""A receiver of webhooks that verifies signatures: `WEBHOOK_SECRET=whsec_… python webhook_receiver.py 8000`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if len(sys.argv) != 2 or not os.environ.get("WEBHOOK_SECRET"):
    sys.exit("usage: WEBHOOK_SECRET=whsec_… python webhook_receiver.py PORT")
KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
seen: set[str] = set()


def verified(headers: dict[str, str], body: bytes) -> bool:
    """Return whether the body was signed with our secret, less than five minutes ago."""
    delivery, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > 300:
        return False
    digest = hmac.digest(KEY, f"{delivery}.{sent_at}.".encode() + body, hashlib.sha256)
    expected = "v1," + base64.b64encode(digest).decode()
    # While a secret is rotated there are two signatures.
    return any(hmac.compare_digest(expected, one) for one in headers.get("webhook-signature", "").split(" "))


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not verified(headers, body):
            return self.answer(401)
        # The same delivery may arrive twice. A program that must not act twice stores the id with its effect.
        if headers["webhook-id"] not in seen:
            seen.add(headers["webhook-id"])
            event = json.loads(body)
            print(event["type"], event["data"].get("job_id", ""), flush=True)
        return self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print(f"listening at port {server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
