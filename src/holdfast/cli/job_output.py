"""The output stream of a job on the command line."""

import sys
from collections.abc import Iterable, Iterator

from holdfast import Queue, json_view, types
from holdfast.cli import formatting
from holdfast.cli.terminal import Terminal


def read(queue: Queue, job_id: str, after: int) -> Iterator[types.OutputChunk]:
    """Yield the chunks that are stored now."""
    while page := queue.output(job_id, after=after):
        yield from page
        after = page[-1].number


def write(terminal: Terminal, chunks: Iterable[types.OutputChunk]) -> None:
    """Write the text of *chunks*, with unsafe characters replaced on a terminal; with `--json` one line for each."""
    text, ends_line = "", True
    for chunk in chunks:
        if terminal.json:
            terminal.emit(json_view.output_chunk(chunk))
            continue
        text = formatting.clean(chunk.text, keep="\n\t\r") if terminal.out.is_terminal else chunk.text
        sys.stdout.write(text)
        sys.stdout.flush()
        ends_line = text.endswith("\n")
    if not text and not terminal.json:
        terminal.note("the job has emitted no text")
    if not ends_line and terminal.out.is_terminal:
        terminal.line()
