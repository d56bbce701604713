"""Names of kinds that users type: hints for those that no worker has published."""

import difflib
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast import InvalidInput, Queue
from holdfast.cli import errors
from holdfast.cli.terminal import Terminal


def note_unpublished(terminal: Terminal, queue: Queue, kinds: Sequence[str]) -> None:
    """Print a note for each kind that is not published, if others are: the name may be mistyped."""
    published = [one.name for one in queue.kinds.list() if one.published_at is not None]
    for kind in kinds:
        if published and kind not in published:
            close = difflib.get_close_matches(kind, published, n=3)
            question = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            terminal.note(f"no worker has published the kind {kind!r}{question}")


@contextmanager
def hint_of_schema(kind: str) -> Iterator[None]:
    """Add the command that shows the schema of *kind* to an error that names a part of the payload."""
    try:
        yield
    except InvalidInput as error:
        if not error.field.startswith("payload."):
            raise
        raise errors.CommandError(str(error), hint=f"holdfast kinds show {shlex.quote(kind)}") from None
