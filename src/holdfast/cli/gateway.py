"""`holdfast gateway`: serve the API of a model server, with every request to generate as a durable job."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import click

from holdfast.cli import errors, formatting, options, params, serving, webhooks
from holdfast.cli.terminal import Terminal

PORT_DEFAULT = 11_435
PREFIX = "HOLDFAST_GATEWAY"


def _read_file(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Take the values of a TOML file as defaults: the command line and the environment go first."""
    if value is None:
        return
    try:
        given = tomllib.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.CommandError(f"the file {value!r} cannot be read: {error}") from None
    repeatable = {one.name: one.multiple for one in context.command.params if isinstance(one, click.Option)}
    values: dict[str, Any] = {name.replace("-", "_"): value for name, value in given.items()}
    if unknown := values.keys() - repeatable.keys():
        raise errors.CommandError(f"the file {value!r} has an unknown setting {min(unknown)!r}")
    for name, found in values.items():
        if isinstance(found, dict):
            values[name] = [f"{key}={one}" for key, one in found.items()]
        elif repeatable[name] and not isinstance(found, list):
            values[name] = [found]
    context.default_map = {**(context.default_map or {}), **values}


def _pairs(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    lengths = {}
    for pair in given:
        model, separator, length = pair.rpartition("=")
        if not separator or not model or not length.isdigit():
            raise click.BadParameter(f"{pair!r} is not MODEL=N, such as llama3.1:8b=8192")
        lengths[model] = int(length)
    return lengths


def _retentions(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    retentions: dict[str, float] = {}
    for pair in given:
        tenant, separator, duration = pair.rpartition("=")
        if separator and not tenant:
            raise click.BadParameter(f"{pair!r} is not TENANT=DURATION, such as team-a=1h")
        retentions[tenant or "*"] = params.DURATION.convert(duration, parameter, context)
    return retentions


def _upstream_options(command: Any) -> Any:
    """Add the options that tell where the model server is."""
    for option in reversed(
        (
            click.option(
                "--config",
                is_eager=True,
                expose_value=False,
                callback=_read_file,
                metavar="FILE",
                help="A TOML file with these options as keys.",
            ),
            click.option(
                "--upstream",
                default="http://127.0.0.1:11434",
                show_default=True,
                metavar="URL",
                help="The model server.",
            ),
            click.option(
                "--upstream-type",
                type=click.Choice(["auto", "ollama", "openai"]),
                default="auto",
                show_default=True,
                help="What it speaks; auto asks it.",
            ),
            click.option(
                "--upstream-key", metavar="KEY", help="A key that it asks for; better set in the environment."
            ),
        )
    ):
        command = option(command)
    return command


class GatewayGroup(options.Group):
    """A group that is a command too: without a subcommand it serves."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; none of them is needed."""
        return click.Group.parse_args(self, ctx, args)


@click.group(
    cls=GatewayGroup,
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": PREFIX},
    epilog="""
    Point clients at this address in place of the model server's: OLLAMA_HOST,
    OPENAI_BASE_URL with /v1, ANTHROPIC_BASE_URL. With tokens, the key of the
    client is a token: 'holdfast token create'. Each option can be set in the
    environment, as HOLDFAST_GATEWAY_UPSTREAM, or in a file.

    Examples:
      holdfast --url gateway.db gateway --upstream http://127.0.0.1:11434
      holdfast --url gateway.db gateway --num-ctx llama3.1:8b=8192 --residence 2m
      holdfast gateway check --upstream http://127.0.0.1:8000
    """,
)
@_upstream_options
@click.option(
    "--fallback",
    multiple=True,
    metavar="URL",
    help="A model server for requests that the first does not take. Repeatable.",
)
@click.option("--fallback-key", metavar="KEY", help="A key that fallbacks ask for; better set in the environment.")
@serving.listen_options(PORT_DEFAULT)
@click.option(
    "--tokens",
    type=click.Choice(["on", "off"]),
    help="Whether requests need a token. Default: off on this machine, else on.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="Requests that the model server gets at once. Default: 1 for Ollama, else 64.",
)
@click.option(
    "--models",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Models that fit into its memory at once.",
)
@click.option(
    "--residence",
    type=params.DURATION,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long the loaded model goes first while others wait.",
)
@click.option(
    "--num-ctx",
    multiple=True,
    callback=_pairs,
    metavar="MODEL=N",
    help="Pin the context length of a model. Repeatable.",
)
@click.option(
    "--resident", multiple=True, metavar="MODEL", help="A model that stays loaded, for embeddings. Repeatable."
)
@click.option("--keep-alive", metavar="TEXT", help="For how long the model server keeps a model: 30m, -1.")
@click.option(
    "--grace",
    type=params.DURATION,
    default="15s",
    show_default=True,
    metavar="DURATION",
    help="How long the job of a caller who left is kept.",
)
@click.option(
    "--queue-max",
    type=click.IntRange(1),
    default=5_000,
    show_default=True,
    metavar="N",
    help="Requests that may wait.",
)
@click.option(
    "--queue-max-per-tenant",
    type=click.IntRange(1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Requests of one tenant that may wait.",
)
@click.option(
    "--timeout",
    type=params.DURATION,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long one attempt may take.",
)
@click.option(
    "--retention",
    type=params.DURATION,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="How long finished jobs are kept.",
)
@click.option(
    "--content-retention",
    multiple=True,
    callback=_retentions,
    metavar="[TENANT=]DURATION",
    help="How long requests and answers of finished jobs are kept. Repeatable.",
)
@webhooks.webhook_allow
@click.option(
    "--log-level", type=click.Choice(serving.LEVELS), default="warning", show_default=True, help="What to log."
)
@click.pass_context
def gateway(context: click.Context, /, **given: Any) -> None:
    """Serve the API of a model server; each request is a durable job."""
    if context.invoked_subcommand is None:
        _serve(context.find_root().ensure_object(Terminal), given)


def _serve(terminal: Terminal, given: dict[str, Any]) -> None:
    try:
        from holdfast.cli import gateway_report  # noqa: PLC0415
        from holdfast.gateway import server as gateway_server  # noqa: PLC0415
        from holdfast.gateway.settings import GatewaySettings  # noqa: PLC0415
        from holdfast.service import access  # noqa: PLC0415
        from holdfast.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise serving.missing_extra("gateway", "gateway", error) from None
    host, port, level = given.pop("host"), given.pop("port"), given.pop("log_level")
    chosen = given.pop("tokens")
    tokens = not access.is_loopback(host) if chosen is None else chosen == "on"
    settings = GatewaySettings(fallbacks=given.pop("fallback"), **given)
    listening = serving.listen(terminal, host, port, level, tokens=tokens)
    about = gateway_report.GatewayAbout(listening.url, settings.upstream, terminal.described_url, listening.access)
    serving.note_refusal(terminal, listening, "produce")
    report = gateway_report.Report(terminal, about)

    async def run() -> None:
        await gateway_server.serve(
            terminal.url,
            listening.listener,
            settings,
            schema=terminal.schema,
            service=ServiceSettings(tokens=tokens),
            started=report.started,
        )

    with report:
        asyncio.run(run())


@gateway.command(
    context_settings={"auto_envvar_prefix": PREFIX},
    opens_store=False,
    epilog="""
    Exits with 1 if the model server does not answer.

    Examples:
      holdfast gateway check
      holdfast gateway check --upstream http://127.0.0.1:8000 --json
    """,
)
@_upstream_options
@options.pass_terminal
def check(terminal: Terminal, upstream: str, upstream_type: str, upstream_key: str | None) -> int:
    """Ask a model server what it is, and print what was found."""
    try:
        from holdfast.gateway import catalog  # noqa: PLC0415
        from holdfast.gateway.http_client import Upstream, UpstreamFailedError  # noqa: PLC0415
    except ImportError as error:
        raise serving.missing_extra("gateway", "gateway", error) from None
    try:
        found = asyncio.run(catalog.inspect(Upstream(upstream, upstream_key), upstream_type))
    except UpstreamFailedError as error:
        raise errors.CommandError(
            f"{upstream}: {error}", hint="start the model server, or set --upstream", exit_code=errors.REFUSED
        ) from None
    document = {
        "upstream": upstream,
        "type": found.type,
        "version": found.version,
        "models": [one._asdict() for one in found.models],
        "loaded": list(found.loaded),
    }
    remote, width = sum(one.remote for one in found.models), max((len(one.name) for one in found.models), default=0)
    about = "Ollama " + (found.version or "") if found.type == "ollama" else "a server with the API of OpenAI"
    lines = [
        f"{upstream} is {about.strip()}",
        formatting.number(len(found.models), "model") + (f", {remote} of them elsewhere" if remote else ""),
        *(f"  {one.name:{width}}  {one.digest[:12]}{'  elsewhere' if one.remote else ''}" for one in found.models),
    ]
    if found.type == "ollama":
        lines += [
            f"loaded: {', '.join(found.loaded) or 'none'}",
            "requests are sent one at a time, by model; see --concurrency and --models",
        ]
    else:
        lines.append("requests are sent 64 at a time, without regard to models; see --concurrency")
    terminal.report(document, "\n".join(lines))
    return 0
