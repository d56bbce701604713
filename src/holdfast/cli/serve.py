"""`holdfast serve`: put a queue behind HTTP."""

import asyncio
import logging
import sys

import click

import holdfast
from holdfast.cli import errors, formatting, options, webhooks
from holdfast.cli.terminal import Terminal

PORT_DEFAULT = 8040
_LEVELS = ("debug", "info", "warning", "error")


@click.command(
    cls=options.Command,
    epilog="""
    Requests need a token: 'holdfast token create'. --tokens off lets every program
    on this machine do everything; it is refused if other machines could connect.
    On SIGTERM the server ends event streams and long polls, finishes the other
    requests and exits within ten seconds.

    Examples:
      holdfast serve --url jobs.db
      holdfast serve --host 0.0.0.0 --port 8040
      holdfast serve --tokens off
    """,
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT_DEFAULT,
    show_default=True,
    metavar="N",
    help="The port; 0 selects a free one.",
)
@webhooks.webhook_allow
@click.option(
    "--tokens",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Whether requests need a token.",
)
@click.option(
    "--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="info logs every request."
)
@options.pass_terminal
def serve(terminal: Terminal, host: str, port: int, tokens: str, log_level: str) -> None:
    """Serve the queue over HTTP until SIGTERM."""
    try:
        from holdfast.dashboard import application as dashboard  # noqa: PLC0415
        from holdfast.service import server  # noqa: PLC0415
        from holdfast.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise errors.CommandError(
            f"the service needs packages that are not installed ({error})",
            hint="install the extra `server`, in a clone with: pip install '.[server]'",
        ) from None
    settings = ServiceSettings(tokens=tokens == "on")
    server.check_address(host, tokens=settings.tokens)
    # Creates the queue if it does not exist, and fails early if it cannot be used.
    with terminal.queue(create=True, over_http=False) as queue:
        active = sum(one.state(terminal.now) == "active" for one in queue.admin.tokens.list())
    listener = server.listen(host, port)
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # The lines of the server about itself repeat ours.
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if log_level == "debug" else logging.WARNING)
    url = server.url_of(listener)

    def report(_stop: object) -> None:
        about = formatting.number(active, "token") if settings.tokens else "no tokens needed"
        document = {"event": "started", "url": url, "tokens": settings.tokens}
        terminal.report(document, f"serving {terminal.described_url} at {url} ({about})")
        sys.stdout.flush()
        if settings.tokens and not active:
            terminal.note("every request is refused until there is a token: holdfast token create NAME --role ROLE")

    async def run() -> None:
        queue = holdfast.connect_async(terminal.url, schema=terminal.schema)
        await server.serve(queue, listener, settings, report, dashboard.mounted())

    asyncio.run(run())
