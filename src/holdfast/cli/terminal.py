"""The queue, the input and the output of a command.

Results go to standard output, as text or as JSON. Notes, prompts and progress go to standard error.
"""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import holdfast
from holdfast.cli import errors, formatting
from holdfast.cli.console import console
from holdfast.client import connect
from holdfast.client.queue_state import state_of
from holdfast.domain import masking
from holdfast.storage.runners import SyncRunner

DEFAULT_URL = "holdfast.db"
SCHEMA_VARIABLE = "HOLDFAST_SCHEMA"
MEMORY = ":memory:"


class Terminal:
    """The common options and the streams of one run of the command line."""

    def __init__(self) -> None:
        self.given_url: str | None = None
        self.given_schema: str | None = None
        self.json = False

    @property
    def now(self) -> datetime:
        """The current time. It may be long after the start of the command: a question waits for its answer."""
        return datetime.now(UTC)

    @property
    def url(self) -> str:
        """The queue's URL: the option, else the environment variable, else a file in the current directory."""
        if self.given_url is not None:
            return self.given_url
        return os.environ.get(connect.URL_VARIABLE) or DEFAULT_URL

    @property
    def schema(self) -> str:
        """The PostgreSQL schema: the option, else the environment variable, else the default."""
        if self.given_schema is not None:
            return self.given_schema
        # SQLite has no schemas: ignore the environment variable there.
        from_environment = os.environ.get(SCHEMA_VARIABLE) if self.url.startswith("postgres") else None
        return from_environment or connect.SCHEMA_DEFAULT

    @property
    def described_url(self) -> str:
        """The absolute path of a SQLite file, or the queue's URL with credentials masked, for messages."""
        path = sqlite_path(self.url)
        return masking.mask_url(self.url) if path is None else str(path.resolve())

    @cached_property
    def out(self) -> Console:
        """The console of standard output."""
        return console(sys.stdout)

    @cached_property
    def err(self) -> Console:
        """The console of standard error."""
        return console(sys.stderr)

    @contextmanager
    def queue(self, *, create: bool = False, over_http: bool = True) -> Iterator[holdfast.Queue]:
        """Open the queue for one command. If it does not exist, create it or raise, depending on *create*.

        A command that cannot work *over_http* refuses the URL of a server.
        """
        if self.url.startswith(("http://", "https://")):
            if not over_http:
                raise errors.CommandError(
                    f"this command needs the store itself, and {self.described_url} is a server",
                    hint="give --url the SQLite file or the postgresql://… that the server uses",
                )
            queue = holdfast.connect(self.url)
        else:
            queue = holdfast.connect(self.url, migrate=create, schema=self.schema)
            self._check_path(create=create)
        try:
            yield queue
            # A command is shorter than the ten seconds after which a process writes what it has counted.
            SyncRunner(state_of(queue).store).write_rollups()
        finally:
            queue.close()

    def emit(self, document: Any) -> None:
        """Write one JSON document as one line."""
        click.echo(json.dumps(document))

    def report(self, document: Any, text: str) -> None:
        """Write *document* with `--json`, else *text*."""
        if self.json:
            self.emit(document)
        else:
            self.line(text)

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line of text without wrapping it: ids can be copied."""
        self.out.print(Text(formatting.clean(text), style), soft_wrap=True)

    def paragraph(self, text: str) -> None:
        """Write text, wrapped at spaces."""
        self.out.print(Text(formatting.clean(text)))

    def item(self, text: str, mark: str, style: str = "") -> None:
        """Write a mark and text, wrapped at spaces, with further lines below the text."""
        width = max(self.out.width - len(mark) - 1, 20)
        lines = textwrap.wrap(formatting.clean(text), width, break_long_words=False, break_on_hyphens=False)
        below = f"\n{' ' * (len(mark) + 1)}"
        self.line(f"{mark} {below.join(lines)}", style)

    def show(self, renderable: RenderableType) -> None:
        """Print a renderable, to a file or a pipe without the spaces that fill its lines: a pager would wrap them."""
        if self.out.is_terminal:
            self.out.print(renderable)
            return
        with self.out.capture() as captured:
            self.out.print(renderable)
        self.out.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
        self.out.file.flush()

    def note(self, text: str) -> None:
        """Write a note to standard error, with credentials masked."""
        self.err.print(Text(formatting.clean(masking.mask_url(text)), "dim"))

    @property
    def draws(self) -> bool:
        """Whether a live screen can be drawn: not on a `dumb` terminal, and not with `--json`."""
        return self.out.is_terminal and not self.out.is_dumb_terminal and not self.json

    @property
    def shows_progress(self) -> bool:
        """Whether to draw progress."""
        return self.err.is_terminal and not self.json

    @property
    def interactive(self) -> bool:
        """Whether the user can be asked."""
        return sys.stdin.isatty() and self.err.is_terminal

    def require_confirmation(self, *, allowed: bool) -> None:
        """Raise unless the destructive command is *allowed* by its options or can ask the user."""
        if not allowed and not self.interactive:
            raise errors.CommandError(
                "this command must be confirmed, and there is no terminal to confirm it on",
                hint="check its effect with --dry-run, then add --yes",
            )

    def confirm(self, question: str) -> None:
        """Ask for confirmation, and raise unless the answer is yes."""
        width = max(self.err.width - len(" [y/N]: "), 20)
        prompt = textwrap.fill(
            formatting.clean(masking.mask_url(question), keep=""),
            width,
            break_long_words=False,
            break_on_hyphens=False,
        )
        try:
            agreed = click.confirm(prompt, err=True)
        except click.Abort:
            # The terminal shows ^C after the question; what follows begins on a new line.
            click.echo(err=True)
            raise
        if not agreed:
            raise errors.CommandError("nothing was changed", code="refused", exit_code=errors.REFUSED)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Return a context that shows a spinner, if progress is drawn."""
        return self.err.status(Text(formatting.clean(text))) if self.shows_progress else nullcontext()

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Draw a bar during the block, if progress is drawn; call what is returned with each number that is done."""
        if not self.shows_progress:
            yield lambda _count: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task(formatting.clean(text), total=total or None)
            yield lambda count: bar.advance(task, count)

    def _check_path(self, *, create: bool) -> None:
        """Raise if *url* names no queue, or a place where none can be created."""
        if self.url == MEMORY:
            raise errors.CommandError(
                "a queue in memory exists only within the process that opens it, so this command would find it empty"
                " and lose what it stores",
                hint="give --url a file, postgresql://… or http://…",
            )
        path = sqlite_path(self.url)
        try:
            missing = path is not None and not (path.parent if create else path).exists()
        except OSError:  # a folder may not be searched: opening the queue tells that
            return
        if path is None or not missing:
            return
        if create:
            raise errors.CommandError(
                f"the folder {str(path.absolute().parent)!r} does not exist", hint="create it, or correct --url"
            )
        beside = sorted(lock.name.removesuffix("-holdfast") for lock in path.parent.glob("*-holdfast"))
        found = f"; in the same folder there is {', '.join(beside[:3])}" if beside else ""
        raise errors.CommandError(
            f"there is no queue at {str(path)!r}{found}",
            hint="set --url or HOLDFAST_URL; 'holdfast enqueue' and 'holdfast migrate' create a queue",
            code="store_missing",
        )


def sqlite_path(url: str) -> Path | None:
    """Return the path of the SQLite file that *url* names, or None."""
    if url == MEMORY:
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url)
    return Path(rest[1:]) if scheme == "sqlite" else None
