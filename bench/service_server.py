"""The server of `bench.service`: `holdfast serve` with one more route, whose handler is empty."""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import sys
from dataclasses import replace

from starlette.responses import Response

import holdfast
from holdfast.service import app, server
from holdfast.service.call import Call, Endpoint, reply_text
from holdfast.service.routes import ROUTES
from holdfast.service.settings import ServiceSettings

# As long as the answer to an enqueue.
_ANSWER = json.dumps({"created": True, "job": "x" * 815}, separators=(",", ":"))


async def _empty(_call: Call) -> Response:
    return reply_text(_ANSWER)


def _empty_route() -> Endpoint:
    """Return the route that enqueues a job with an empty handler: token, body and schema are checked, it answers."""
    [create] = [route for route in ROUTES if route.name == "create_job"]
    return replace(create, path="/v1/empty", name="empty", handler=_empty, idempotent=False)


async def main(url: str) -> None:
    """Serve the queue at *url* until SIGTERM; print the port and the text of a token."""
    vars(app)["ROUTES"] = (_empty_route(), *ROUTES)
    queue = holdfast.connect_async(url)
    token = await queue.admin.tokens.create("bench", roles=["admin"])
    listener = server.listen("127.0.0.1", 0)
    settings = ServiceSettings(streams_per_token_max=2_000, connections_max=4_000)
    sys.stdout.write(f"{listener.getsockname()[1]} {token.text}\n")
    sys.stdout.flush()
    await server.serve(queue, listener, settings)


if __name__ == "__main__":
    # The profile of the server, to read with pstats.
    if path := os.environ.get("HOLDFAST_BENCH_PROFILE"):
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, main(sys.argv[1]))
        profile.dump_stats(path)
    else:
        asyncio.run(main(sys.argv[1]))
