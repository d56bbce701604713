"""A process that reads the event log while it grows.

It records each page with its cursor and continues from the last one, so it may be killed. It exits when the folder
contains a file named `drained` and there are no more events.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.chaos.engines import open_engine
from tests.chaos.history import Recorder, lines
from tests.chaos.processes import keep_errors


def pages(folder: Path) -> tuple[list[tuple[str, int]], str | None]:
    """Return each event's job and number read so far, and the cursor to continue from."""
    seen: list[tuple[str, int]] = []
    cursor: str | None = None
    path = folder / "events.log"
    for fields in lines(path) if path.exists() else ():
        seen += [(job, number) for job, number in fields["events"]]
        cursor = fields["cursor"]
    return seen, cursor


def read_until_drained(_pipe: Connection, url: str, folder: Path, name: str, seed: str) -> None:
    """Run the reader. Its standard error goes to a file in *folder*."""
    keep_errors(folder / f"{name}.errors")
    chance = random.Random(seed)
    queue = open_engine(url).queue
    recorder = Recorder(folder / "events.log", name)
    _, cursor = pages(folder)
    while True:
        drained = (folder / "drained").exists()
        page = queue.events(after=cursor, limit=chance.choice([1, 7, 50, 1000]))
        if page.events:
            cursor = page.cursor
            recorder.note(cursor=cursor, events=[[event.job_id, event.number] for event in page])
        elif drained:
            return
        else:
            time.sleep(0.005)
