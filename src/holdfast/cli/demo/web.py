"""The dashboard of the demo's queue, in a thread."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

import holdfast
from holdfast.cli import serving

_STOP_SECONDS: Final = 15.0


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """Serve the dashboard of a queue on a free port of this machine, without tokens; return its address."""
    try:
        from holdfast.dashboard import application  # noqa: PLC0415
        from holdfast.service import server  # noqa: PLC0415
        from holdfast.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise serving.missing_extra("dashboard", "server", error) from None
    # Each request would be a line between those of the demo.
    logging.getLogger("holdfast").setLevel(logging.WARNING)
    listener = server.listen("127.0.0.1", 0)
    started: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        queue = holdfast.connect_async(url)
        settings = ServiceSettings(tokens=False)
        await server.serve(queue, listener, settings, started.set_result, application.mounted())

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="dashboard", daemon=True)
    thread.start()
    stop = started.result()
    try:
        yield f"{server.url_of(listener)}/dashboard"
    finally:
        stop()
        thread.join(_STOP_SECONDS)
