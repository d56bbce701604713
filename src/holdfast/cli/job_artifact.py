"""Handing out an artifact's bytes: to a file, a pipe, a program, or a terminal that must not be upset by them."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from holdfast import Artifact
from holdfast.cli import text
from holdfast.cli.complaints import Complaint
from holdfast.cli.terminal import Terminal


def deliver(terminal: Terminal, artifact: Artifact, output: str) -> None:
    """Write *artifact* to *output*, a path or `-`, and say so where that leaves standard output free."""
    about = {"name": artifact.name, "media_type": artifact.media_type, "size": len(artifact.data)}
    if output != "-":
        _write(Path(output), artifact.data)
        if terminal.json:
            terminal.emit({**about, "path": output})
        else:
            terminal.line(f"wrote {text.size(len(artifact.data))} ({artifact.media_type}) to {output}")
    elif terminal.json:
        terminal.emit({**about, "data_base64": base64.b64encode(artifact.data).decode()})
    else:
        _refuse_binary(terminal, artifact)
        sys.stdout.buffer.write(artifact.data)
        sys.stdout.buffer.flush()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Complaint(f"cannot write {str(path)!r}: {error.strerror}") from None


def _refuse_binary(terminal: Terminal, artifact: Artifact) -> None:
    if not terminal.out.is_terminal:
        return
    try:
        shown = artifact.data.decode()
    except UnicodeDecodeError:
        shown = "\0"
    if text.clean(shown, keep="\n\t\r") != shown:
        raise Complaint(
            f"artifact {artifact.name!r} is not plain text and would upset the terminal",
            hint="write it to a file with -o FILE, or pipe it on",
        )
