"""`holdfast events`: print the event log once, or follow it."""

import time
from collections.abc import Iterator
from typing import Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast import Queue, json_view, types
from holdfast.cli import formatting, options, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import validation

_PAGE = 1_000
_LIMIT = 100
_POLL_SECONDS = 0.5
# The time, the name, and a job's id beside them.
_WIDTH_MIN = 70


class Reader:
    """Reads the event log in pages and keeps the cursor of the last event."""

    def __init__(self, queue: Queue, after: str | None, tenant: str | None, limit: int | None) -> None:
        self._queue = queue
        self._tenant = tenant
        self._left = limit
        self.cursor = after

    def read(self, *, follow: bool) -> Iterator[types.Event]:
        """Yield events in order, up to the limit; with *follow*, wait for new ones."""
        while self._left != 0:
            page = self._page()
            for event in page:
                self.cursor = event.cursor
                yield event
                if self._count_one():
                    return
            # A page without events may have skipped other tenants' events; the end is an unchanged cursor.
            at_end, self.cursor = page.cursor == self.cursor, page.cursor
            if at_end and not follow:
                return
            if at_end:
                time.sleep(_POLL_SECONDS)

    def _page(self) -> types.EventPage:
        bounded = self._left is not None and self._tenant is None
        limit = min(self._left or _PAGE, _PAGE) if bounded else _PAGE
        return self._queue.events(after=self.cursor, limit=limit, tenant=self._tenant)

    def _count_one(self) -> bool:
        """Count one event and return whether the limit is reached."""
        if self._left is not None:
            self._left -= 1
        return self._left == 0


@click.command(
    cls=options.Command,
    epilog="""
    Each event has a cursor, which --json shows; --after CURSOR starts after it.
    With --json every event is one line.

    Examples:
      holdfast events --limit 20
      holdfast events --follow --json | jq .name
    """,
)
@click.option("--after", metavar="CURSOR", help="Only events after this one. Default: from the oldest event.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"The maximum number of events. Default: {_LIMIT}; no limit with --follow.",
)
@click.option("--tenant", help="Only events of this tenant's jobs.")
@click.option("--follow", is_flag=True, help="Wait for new events until interrupted.")
@options.pass_terminal
def events(terminal: Terminal, after: str | None, limit: int | None, tenant: str | None, follow: bool) -> None:
    """Print the events of jobs in order."""
    max_events = limit if limit is not None or follow else _LIMIT
    with terminal.queue() as queue:
        reader = Reader(queue, after, tenant, max_events)
        shown = 0
        if follow and terminal.shows_progress:
            terminal.note("waiting for events until Ctrl-C; of most jobs only their ends are recorded")
        for event in reader.read(follow=follow):
            shown += 1
            _print_event(terminal, event)
    if not terminal.json:
        _print_end(terminal, reader.cursor, shown, max_events)


def _print_event(terminal: Terminal, event: types.Event) -> None:
    if terminal.json:
        terminal.emit(json_view.event(event))
        return
    about = Text(formatting.clean(f"{event.job_id}  {event.kind}", keep=""))
    about.append(f"  {formatting.clean(_details(event.details), keep='')}".rstrip(), "dim")
    at, name = formatting.timestamp(event.at), Text(f"{event.name:<9}", tables.STATE_STYLES.get(event.name, ""))
    # One grid per event: text too long for the terminal continues below the job's id, or below the time if an id
    # would not fit beside it.
    line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    if terminal.out.width < _WIDTH_MIN:
        line.add_column(overflow="fold")
        line.add_row(Text.assemble(at, "  ", name))
        line.add_row(Padding(about, (0, 0, 0, 2)))
    else:
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_column(overflow="fold")
        line.add_row(at, name, about)
    terminal.show(line)


def _details(details: dict[str, Any]) -> str:
    """Return the details in one line, without the state, which the name of the event implies."""
    known = {key: value for key, value in details.items() if value is not None and key != "state"}
    failure_class, due_at_ms = known.pop("failure_class", None), known.pop("due_at_ms", None)
    if failure_class is not None:
        known["failure"] = f"{known.pop('failure_reason', '')} ({failure_class})"
    if due_at_ms is not None:
        known["due"] = formatting.timestamp(validation.datetime_of(due_at_ms))
    return "  ".join(f"{key}={value}" for key, value in known.items())


def _print_end(terminal: Terminal, cursor: str | None, shown: int, max_events: int | None) -> None:
    if not shown:
        terminal.note("no events")
    elif shown == max_events:
        terminal.note(f"there may be more: --after {cursor}")
