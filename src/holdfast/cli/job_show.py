"""Print all properties of one job as text."""

import base64
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast import Artifact, Job, types
from holdfast.cli import errors, formatting, job_story, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import codec, serving, strict_json
from holdfast.domain.job import row_of


def draw(
    terminal: Terminal,
    job: Job,
    attempts: list[types.Attempt],
    artifacts: list[types.ArtifactInfo],
    unserved: serving.UnservedReason | None = None,
    full: list[str] | None = None,
) -> None:
    """Print the job's properties, then time line, payload, result, failure, attempts and artifacts under headings."""
    terminal.show(_properties(job, terminal.now))
    for text in full or ():
        terminal.line(text, "yellow")
    if unserved is not None:
        terminal.line(
            f"a job of {job.kind} in lane {job.lane}: {serving.reason_text(unserved, job.requires, 1)}", "yellow"
        )
    _heading(terminal, "Timeline")
    terminal.show(_indented(job_story.table(job, attempts, terminal.now)))
    _body(terminal, "Payload", _stored(row_of(job).payload_json))
    if job.state == "done":
        _body(terminal, "Result", _stored(row_of(job).result_json or codec.NULL))
    if job.failure is not None:
        _body(terminal, "Failure", _failure(job.failure), "red")
    if attempts:
        _heading(terminal, "Attempts")
        terminal.show(_indented(_attempts(attempts, terminal)))
    if artifacts:
        _heading(terminal, "Artifacts")
        terminal.show(_indented(_artifacts(artifacts, terminal)))


def _properties(job: Job, now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _property_rows(job, now):
        style = tables.STATE_STYLES[job.state] if name == "state" else ""
        grid.add_row(name, Text(formatting.clean(value, keep=""), style))
    return grid


def _property_rows(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each property; optional ones only if they are set."""
    yield "id", job.id
    yield "number", str(job.number)
    yield "state", job.state + (" (cancel requested)" if job.cancel_requested and not job.finished else "")
    yield "kind", job.kind
    yield "lane", job.lane
    yield "tenant", job.tenant
    if job.entry is None:
        yield "priority", str(job.priority)
    else:
        yield from _entry(job, job.entry)
    yield "attempts", f"{job.attempt} of {job.max_attempts}{' (the last expired)' if job.suspect else ''}"
    yield "epoch", str(job.epoch)
    yield from _timestamps(job, now)
    optional = (
        ("worker", job.worker),
        *_progress(job),
        ("requires", ", ".join(job.requires)),
        ("affinity", job.affinity),
        ("dedupe key", _dedupe(job)),
        ("parent", job.parent),
        ("root", job.root if job.parent else None),
        ("deferrals", str(job.deferrals or "")),
        ("releases", str(job.releases or "")),
        ("events", "all" if row_of(job).record_all else None),
        ("headers", _pairs(job.headers)),
        ("tags", _pairs(job.tags)),
    )
    yield from ((name, value) for name, value in optional if value)


def _progress(job: Job) -> tuple[tuple[str, str | None], ...]:
    """Return the last reported progress, except for a job that is done."""
    if job.state == "done":
        return ()
    return ("phase", job.phase), ("progress", None if job.percent is None else f"{int(job.percent)} %")


def _entry(job: Job, entry: types.SessionEntry) -> Iterator[tuple[str, str]]:
    """Yield the properties of a session entry. It has no priority."""
    yield "session", f"{entry.session} (entry {row_of(job).enqueue_seq})"
    yield "entry type", entry.entry_type
    yield "join", f"by name {entry.join}" if isinstance(entry.join, str) else "by kind" if entry.join else "no"
    yield "delivery", entry.delivery
    optional = (("message id", entry.message_id), ("messages", str(entry.messages or "")))
    yield from ((name, value) for name, value in optional if value)


def _timestamps(job: Job, now: datetime) -> Iterator[tuple[str, str]]:
    yield "enqueued", formatting.both(job.enqueued_at, now)
    if job.state in {"scheduled", "ready"}:
        yield "due", formatting.both(job.due_at, now)
    later = (("deadline", job.deadline_at), ("started", job.started_at), ("finished", job.finished_at))
    yield from ((name, formatting.both(at, now)) for name, at in later if at is not None)


def _dedupe(job: Job) -> str | None:
    if job.dedupe_key is None:
        return None
    return f"{job.dedupe_key} (within the {'kind' if row_of(job).dedupe_kind else 'tenant'})"


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items())


def _failure(failure: types.Failure) -> str:
    text = f"{failure.reason} ({failure.failure_class}): {failure.message}"
    return f"{text}\n{failure.traceback.rstrip()}" if failure.traceback else text


def _attempts(attempts: list[types.Attempt], terminal: Terminal) -> Table:
    columns = [
        tables.Column("EPOCH", [str(one.epoch) for one in attempts], justify="right"),
        tables.Column("TRY", [str(one.number) for one in attempts], justify="right", rank=2),
        tables.Column("OUTCOME", [one.outcome or "running" for one in attempts], states=True),
        tables.Column("WORKER", [one.worker for one in attempts], min_width=12),
        tables.Column("STARTED", [formatting.timestamp(one.started_at) for one in attempts], rank=1),
        tables.Column("TOOK", [_took(one, terminal.now) for one in attempts], justify="right"),
        tables.Column(
            "WHY",
            [formatting.failure(one.failure) if one.failure else "" for one in attempts],
            min_width=12,
            wrap=True,
            hide_if="",
        ),
    ]
    return tables.table(columns, terminal.out.width - 2)


def _took(attempt: types.Attempt, now: datetime) -> str:
    return formatting.duration(((attempt.ended_at or now) - attempt.started_at) / timedelta(milliseconds=1))


def _artifacts(artifacts: list[types.ArtifactInfo], terminal: Terminal) -> Table:
    columns = [
        tables.Column("NAME", [one.name for one in artifacts]),
        tables.Column("SIZE", [formatting.size(one.size) for one in artifacts], justify="right"),
        tables.Column("TYPE", [one.media_type for one in artifacts], min_width=12),
        tables.Column("ROLE", ["input" if one.input else "output" for one in artifacts]),
        tables.Column("STORED", [formatting.both(one.created_at, terminal.now) for one in artifacts], rank=1),
    ]
    return tables.table(columns, terminal.out.width - 2)


def _stored(text: str) -> str:
    """Return a payload or result as indented JSON, or who encoded it: the command line has no codec."""
    name = codec.codec_name(text)
    if name is not None:
        return f"encoded by codec {name!r}, {len(text)} characters"
    return json.dumps(strict_json.decode(text), indent=2, ensure_ascii=False)


def _body(terminal: Terminal, title: str, body: str, style: str = "") -> None:
    _heading(terminal, title)
    for line in body.splitlines():
        terminal.show(_indented(Text(formatting.clean(line, keep="\t"), style)))


def _heading(terminal: Terminal, title: str) -> None:
    terminal.line()
    terminal.line(title, "bold")


def _indented(content: Text | Table) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def write_artifact(terminal: Terminal, artifact: Artifact, output: str) -> None:
    """Write *artifact* to *output*, a path or `-` for standard output."""
    about = {"name": artifact.name, "media_type": artifact.media_type, "size": len(artifact.data)}
    if output != "-":
        _write(Path(output), artifact.data)
        if terminal.json:
            terminal.emit({**about, "path": output})
        else:
            terminal.line(f"wrote {formatting.size(len(artifact.data))} ({artifact.media_type}) to {output}")
    elif terminal.json:
        terminal.emit({**about, "data_base64": base64.b64encode(artifact.data).decode()})
    else:
        _check_printable(terminal, artifact)
        sys.stdout.buffer.write(artifact.data)
        sys.stdout.buffer.flush()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise errors.CommandError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _check_printable(terminal: Terminal, artifact: Artifact) -> None:
    if not terminal.out.is_terminal:
        return
    try:
        shown = artifact.data.decode()
    except UnicodeDecodeError:
        shown = "\0"
    if formatting.clean(shown, keep="\n\t\r") != shown:
        raise errors.CommandError(
            f"artifact {artifact.name!r} is not plain text and could corrupt the terminal",
            hint="write it to a file with -o FILE, or pipe it to another command",
        )
