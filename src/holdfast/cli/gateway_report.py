"""Report a gateway's status: a live screen on a terminal, else lines of text or JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.text import Text

from holdfast.cli import formatting, tables, worker_report
from holdfast.cli.terminal import Terminal

if TYPE_CHECKING:
    from holdfast.gateway.gateway import Gateway

_ROWS_MAX: Final = 12


class GatewayAbout(NamedTuple):
    """Properties that do not change while a gateway runs."""

    url: str
    upstream: str
    store: str
    access: str


class ModelRow(NamedTuple):
    """One model on the screen."""

    name: str
    state: str
    running: int
    waiting: int


class Shown(NamedTuple):
    """What the screen shows."""

    models: tuple[ModelRow, ...]
    tenants: int
    swaps: int
    ended: dict[str, int]


def shown(gateway: Gateway) -> Shown:
    """Return what the screen shows of a gateway. Safe to call from any thread."""
    status = gateway.status()
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    unfinished = gateway.exchanges.unfinished()
    for exchange in unfinished:
        name = exchange.request.model if exchange.affinity is None else gateway.model_name(exchange.affinity)
        (running if exchange.running else waiting)[name] += 1
    loaded = {gateway.model_name(one) for one in status.loaded}
    loading = {gateway.model_name(one) for one in status.loading}
    names = sorted({*running, *waiting, *loaded, *loading}, key=lambda name: (name not in loaded, name))
    rows = [
        ModelRow(
            name,
            "loading" if name in loading else "loaded" if name in loaded else "",
            running[name],
            waiting[name],
        )
        for name in names
    ]
    tenants = {exchange.join_key[0] for exchange in unfinished}
    return Shown(tuple(rows), len(tenants), status.switches, dict(gateway.counts))


def draw(about: GatewayAbout, now: Shown, seconds: float, width: int) -> RenderableType:
    """Return the screen of a gateway."""
    up = f"  up {formatting.duration(seconds * 1000)}"
    heading = Text.assemble("gateway ", (about.url, "bold"), (up, "dim"), f"  {about.upstream}  {about.store}")
    running, waiting = sum(one.running for one in now.models), sum(one.waiting for one in now.models)
    counts = Text(f"running {running:,}   waiting {waiting:,}")
    if now.tenants > 1:
        counts.append(f" of {now.tenants} tenants")
    for state in ("done", "failed", "cancelled"):
        count = now.ended.get(state, 0)
        counts.append(f"   {state} ").append(f"{count:,}", tables.STATE_STYLES.get(state, "") if count else "dim")
    counts.append(f"   {formatting.number(now.swaps, 'swap')}")
    parts: list[RenderableType] = [heading, counts]
    if rows := now.models[:_ROWS_MAX]:
        columns = [
            tables.Column("MODEL", [one.name for one in rows], min_width=12),
            tables.Column("STATE", [one.state for one in rows], rank=1),
            tables.Column("RUNNING", [f"{one.running:,}" for one in rows], justify="right"),
            tables.Column("WAITING", [f"{one.waiting:,}" for one in rows], justify="right"),
        ]
        parts += [Text(""), tables.table(columns, width)]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


class Report:
    """Prints the start and the end of a gateway, and draws its status in between on a terminal."""

    def __init__(self, terminal: Terminal, about: GatewayAbout) -> None:
        self._terminal = terminal
        self._about = about
        self._gateway: Gateway | None = None
        self._began = time.monotonic()
        self._screen = ExitStack()

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()
        if self._gateway is not None:
            now, seconds = shown(self._gateway), time.monotonic() - self._began
            ended = ", ".join(f"{count:,} {state}" for state, count in sorted(now.ended.items())) or "no requests"
            text = f"gateway stopped after {formatting.duration(seconds * 1000)}: {ended}"
            text += f", {formatting.number(now.swaps, 'swap')}"
            self._terminal.report({"event": "stopped", "ended": now.ended, "swaps": now.swaps}, text)

    def started(self, _stop: Callable[[], object], gateway: Gateway) -> None:
        """Report that requests are served."""
        about = self._about
        text = f"gateway for {about.upstream} at {about.url}, jobs in {about.store} ({about.access})"
        document = {"event": "started", "url": about.url, "upstream": about.upstream}
        self._terminal.report(document, text)
        sys.stdout.flush()
        if not gateway.catalog.known:
            self._terminal.note("the model server does not answer yet; requests wait for it")
        self._gateway = gateway
        if self._terminal.draws:
            self._screen.enter_context(worker_report.live_area(self._drawn))

    def _drawn(self, drawing: Console) -> RenderableType:
        if self._gateway is None:
            return Text("")
        return draw(self._about, shown(self._gateway), time.monotonic() - self._began, drawing.width)
