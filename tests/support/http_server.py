"""A server process for the conformance suite: it serves one SQLite file after the other.

Standard input has a line for each: the path of the file to serve, limits to change while it is served, or nothing to
close it. An answer follows each; the first is the port. Starting a server for every test would take longer than most
of the tests.
"""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

import holdfast
from holdfast.domain import limits
from holdfast.service import server
from holdfast.service.app import make_app
from holdfast.service.protocol import watched
from holdfast.service.settings import ServiceSettings
from holdfast.webhooks import sender

SETTINGS = ServiceSettings(tokens=False)


class Current:
    """The application of the current file."""

    def __init__(self) -> None:
        self.app: Starlette | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)


async def obey(current: Current) -> None:
    """Serve the files that standard input names until it ends."""
    while path := (await asyncio.to_thread(sys.stdin.readline)).strip():
        queue = holdfast.connect_async(path)
        app = make_app(queue, SETTINGS)
        async with app.router.lifespan_context(app):
            current.app = app
            print("serving", flush=True)
            with pytest.MonkeyPatch.context() as patches:
                while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                    patches.undo()
                    for name, value in json.loads(line).items():
                        patches.setattr(limits, name, value)
                    print("changed", flush=True)
        await queue.close()
        print("closed", flush=True)


async def main() -> None:
    """Listen, and obey. The server sends no webhooks, as without the extra: tests claim deliveries themselves."""
    sender.is_installed = lambda: False
    current = Current()
    listener = server.listen("127.0.0.1", 0)
    config = uvicorn.Config(
        current, http=watched(SETTINGS), ws="none", lifespan="off", log_config=None, access_log=False
    )
    serving = uvicorn.Server(config)
    print(listener.getsockname()[1], flush=True)
    task = asyncio.create_task(serving.serve(sockets=[listener]))
    await obey(current)
    serving.should_exit = True
    await task


if __name__ == "__main__":
    asyncio.run(main())
