"""What `holdfast serve` and `holdfast gateway` have in common: where they listen, their queue and their log."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

from holdfast.cli import errors, formatting
from holdfast.cli.terminal import MEMORY, Terminal

Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS: Final = ("debug", "info", "warning", "error")


def listen_options(port_default: int) -> Callable[[Command], Command]:
    """Return a decorator that adds `--host` and `--port`."""
    host = click.option(
        "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on."
    )
    port = click.option(
        "--port",
        type=click.IntRange(0, 65_535),
        default=port_default,
        show_default=True,
        metavar="N",
        help="The port; 0 selects a free one.",
    )

    def add(command: Command) -> Command:
        return host(port(command))

    return add


def missing_extra(what: str, extra: str, error: ImportError) -> errors.CommandError:
    """Return the error for a command whose packages are not installed."""
    return errors.CommandError(
        f"the {what} needs packages that are not installed ({error})",
        hint=f"install the extra `{extra}`, in a clone with: pip install '.[{extra}]'",
    )


class Listening(NamedTuple):
    """A socket that listens, and how people are told about it."""

    listener: socket.socket
    url: str
    access: str
    """Which tokens there are."""
    refuses_all: bool
    """Whether tokens are needed and there is none."""


def listen(terminal: Terminal, host: str, port: int, level: str, *, tokens: bool) -> Listening:
    """Create the queue if it does not exist, listen, and set up the log; fail early if something cannot be used."""
    from holdfast.service import server  # noqa: PLC0415  # needs an extra

    server.check_address(host, tokens=tokens)
    active = 0
    if terminal.url != MEMORY:
        with terminal.queue(create=True, over_http=False) as queue:
            active = sum(one.state(terminal.now) == "active" for one in queue.admin.tokens.list())
    listener = server.listen(host, port)
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # The lines of the server about itself repeat ours.
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    access = formatting.number(active, "token") if tokens else "no tokens needed"
    return Listening(listener, server.url_of(listener), access, tokens and not active)


def note_refusal(terminal: Terminal, listening: Listening, role: str) -> None:
    """Tell the user if every request is refused."""
    if listening.refuses_all:
        terminal.note(f"every request is refused until there is a token: holdfast token create NAME --role {role}")
