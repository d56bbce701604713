from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from urllib.parse import urlencode

from tests.service.conftest import served, server
from tests.support.service import TIMEOUT, Answer

__all__ = ["served", "server"]


class Browser:
    """Sends requests as a browser does: cookies, forms, and the headers that say where they come from."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.cookies: dict[str, str] = {} if token is None else {"holdfast_token": token}

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Open a page."""
        return self.send("GET", path, None, headers or {})

    def post(self, path: str, form: Mapping[str, object] | None = None, **headers: str) -> Answer:
        """Send a form of a page of the dashboard; other headers replace those of a browser."""
        sent = {"Origin": f"http://127.0.0.1:{self.port}", "Sec-Fetch-Site": "same-origin"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, urlencode(form or {}), {name: value for name, value in sent.items() if value})

    def send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        """Send a request and keep the cookies of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        sent = {"Accept": "text/html", "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, "/dashboard" + path, body, {**sent, **headers})
            response = connection.getresponse()
            answer = Answer(response, response.read())
        finally:
            connection.close()
        for line in answer.headers.get_all("set-cookie") or []:
            found = re.match(r'([^=]+)="?([^;"]*)', line)
            assert found is not None
            self.cookies.pop(found[1], None)
            if "Max-Age=0" not in line:
                self.cookies[found[1]] = found[2]
        return answer


def text_of(answer: Answer) -> str:
    """Return the page as text."""
    return answer.content.decode()
