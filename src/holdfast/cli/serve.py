"""`holdfast serve`: put a queue behind HTTP."""

import asyncio
import sys

import click

import holdfast
from holdfast.cli import options, serving, webhooks
from holdfast.cli.terminal import Terminal

PORT_DEFAULT = 8040


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
@serving.listen_options(PORT_DEFAULT)
@webhooks.webhook_allow
@click.option(
    "--tokens",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Whether requests need a token.",
)
@click.option(
    "--log-level",
    type=click.Choice(serving.LEVELS),
    default="info",
    show_default=True,
    help="info logs every request.",
)
@options.pass_terminal
def serve(terminal: Terminal, host: str, port: int, tokens: str, log_level: str) -> None:
    """Serve the queue over HTTP until SIGTERM."""
    try:
        from holdfast.dashboard import application as dashboard  # noqa: PLC0415
        from holdfast.service import server  # noqa: PLC0415
        from holdfast.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise serving.missing_extra("service", "server", error) from None
    settings = ServiceSettings(tokens=tokens == "on")
    listening = serving.listen(terminal, host, port, log_level, tokens=settings.tokens)

    def report(_stop: object) -> None:
        document = {"event": "started", "url": listening.url, "tokens": settings.tokens}
        terminal.report(document, f"serving {terminal.described_url} at {listening.url} ({listening.access})")
        sys.stdout.flush()
        serving.note_refusal(terminal, listening, "ROLE")

    async def run() -> None:
        queue = holdfast.connect_async(terminal.url, schema=terminal.schema)
        await server.serve(queue, listening.listener, settings, report, dashboard.mounted())

    asyncio.run(run())
