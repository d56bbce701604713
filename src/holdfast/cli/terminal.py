"""What a command talks to: the queue on one side, a person or a program on the other.

Standard output carries the answer and nothing else: a table or lines for people, JSON for programs. Notes, prompts
and progress go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.text import Text

import holdfast
from holdfast.cli.console import console
from holdfast.cli.errors import REFUSED, CommandError
from holdfast.cli.formatting import clean
from holdfast.client.connect import SCHEMA_DEFAULT
from holdfast.domain.masking import mask_url

DEFAULT_URL = "holdfast.db"
URL_VARIABLE = "HOLDFAST_URL"
SCHEMA_VARIABLE = "HOLDFAST_SCHEMA"


class Terminal:
    """The settings of one run of the command line, and its two ends."""

    def __init__(self) -> None:
        self.given_url: str | None = None
        self.given_schema: str | None = None
        self.json = False
        self.now_ms = time.time_ns() // 1_000_000

    @property
    def url(self) -> str:
        """Which queue is meant: the option, else the environment, else a file in this folder."""
        if self.given_url is not None:
            return self.given_url
        return os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @property
    def schema(self) -> str:
        """Which schema of a PostgreSQL database is meant: the option, else the environment, else the usual one."""
        if self.given_schema is not None:
            return self.given_schema
        # One that the environment names for a server must not stand in the way of a command on a file.
        named = os.environ.get(SCHEMA_VARIABLE) if self.url.startswith("postgres") else None
        return named or SCHEMA_DEFAULT

    @cached_property
    def out(self) -> Console:
        """Where answers go."""
        return console(sys.stdout)

    @cached_property
    def err(self) -> Console:
        """Where notes and progress go."""
        return console(sys.stderr)

    @contextmanager
    def queue(self, *, create: bool = False) -> Iterator[holdfast.Queue]:
        """Open the queue for one command; one that does not exist is made only if *create* says so."""
        queue = holdfast.connect(self.url, migrate=create, schema=self.schema)
        if not create:
            self._refuse_missing()
        try:
            yield queue
        finally:
            queue.close()

    def emit(self, document: Any) -> None:
        """Write one JSON document as one line."""
        click.echo(json.dumps(document))

    def tell(self, document: Any, text: str) -> None:
        """Write *document* for programs, or *text* for people."""
        if self.json:
            self.emit(document)
        else:
            self.line(text)

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line for people, never cut: ids are there to be copied."""
        self.out.print(Text(clean(text), style), soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Draw something for people."""
        self.out.print(renderable)

    def note(self, text: str) -> None:
        """Write a remark to standard error, with credentials masked."""
        self.err.print(Text(clean(mask_url(text)), "dim"))

    @property
    def watched(self) -> bool:
        """Whether a person is looking, so that progress is worth drawing."""
        return self.err.is_terminal and not self.json

    @property
    def attended(self) -> bool:
        """Whether a person is there who can answer a question."""
        return sys.stdin.isatty() and self.err.is_terminal

    def refuse_unattended(self, *, allowed: bool) -> None:
        """Raise unless what cannot be undone is *allowed* already, or a person can be asked."""
        if not allowed and not self.attended:
            raise CommandError(
                "this deletes or changes what cannot be restored, and there is no terminal to ask on",
                hint="see what it would do with --dry-run, then give --yes",
            )

    def confirm(self, question: str) -> None:
        """Ask before something that cannot be undone, and raise unless the answer is yes."""
        width = max(self.err.width - len(" [y/N]: "), 20)
        asked = textwrap.fill(
            clean(mask_url(question), keep=""), width, break_long_words=False, break_on_hyphens=False
        )
        if not click.confirm(asked, err=True):
            raise CommandError("nothing was changed", code="refused", exit_code=REFUSED)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Turn a small wheel while something takes long, if a person is looking."""
        return self.err.status(Text(clean(text))) if self.watched else nullcontext()

    def _refuse_missing(self) -> None:
        path = path_of(self.url)
        if path is not None and not path.exists():
            raise CommandError(
                f"there is no queue at {str(path)!r}",
                hint="name another with --url or HOLDFAST_URL; 'holdfast enqueue' and 'holdfast migrate' create one",
                code="store_missing",
            )


def path_of(url: str) -> Path | None:
    """Return the file that *url* means, if it means one."""
    if url == ":memory:":
        return None
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url)
    return Path(rest[1:]) if scheme == "sqlite" else None
