"""Running a gateway with uvicorn: one process, stopped by SIGTERM or SIGINT within a bound."""

from __future__ import annotations

import socket
from collections.abc import Callable

from holdfast.client import connect
from holdfast.gateway import app
from holdfast.gateway.attempts import Settlements
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.settings import GatewaySettings
from holdfast.service import server
from holdfast.service.settings import ServiceSettings


async def serve(
    url: str,
    listener: socket.socket,
    settings: GatewaySettings,
    *,
    schema: str = "holdfast",
    service: ServiceSettings | None = None,
    started: Callable[[Callable[[], object], Gateway], None] = lambda _stop, _gateway: None,
) -> None:
    """Serve a gateway on the queue at *url* until a signal arrives.

    *started* is called once requests are served, with a function that stops the server and may be called from any
    thread, and with the gateway. Raises the error by which a worker of the gateway has ended.
    """
    settlements = Settlements()
    queue = connect.connect_async(url, schema=schema, middleware=[settlements])
    gateway = Gateway(queue, settlements, settings)
    service = service or ServiceSettings()
    failures: list[BaseException] = []
    stops: list[Callable[[], object]] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        for stop in stops:
            stop()

    def on_start(stop: Callable[[], object]) -> None:
        stops.append(stop)
        if failures:
            stop()
        started(stop, gateway)

    application = app.make_app(gateway, service, failed)

    def closing() -> None:
        gateway.begin_closing()
        application.state.service.begin_closing()

    try:
        await server.run(application, listener, service, on_start, closing)
    finally:
        await queue.close()
    if failures:
        raise failures[0]
