"""The possible contents of a disk after a power cut, computed from the log of operations on it.

Synced data is on the disk. Later writes may be missing, complete, partial, reordered, or torn at sector boundaries.
Directory entries become durable when their folder is synced, in the order in which they were made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from tests.sqlite.faults.interception import HEADER

_SECTOR = 512

Loss: TypeAlias = Literal["all", "none", "some", "reordered", "torn"]
LOSSES: tuple[Loss, ...] = ("all", "none", "some", "reordered", "torn")


class Record(NamedTuple):
    """One entry of the log: Create, Write, Truncate, Sync, Failed sync, Unlink, or a Note of the process itself."""

    kind: str
    path: str
    offset: int
    data: bytes


def read_log(log: Path) -> Iterator[Record]:
    """Yield the entries of *log* in order."""
    text, place = log.read_bytes(), 0
    while place < len(text):
        kind, path_size, offset, size = HEADER.unpack_from(text, place)
        place += HEADER.size
        path = text[place : place + path_size].decode()
        place += path_size
        yield Record(kind.decode(), path, offset, text[place : place + size])
        place += size


class Change(NamedTuple):
    """A write at an offset, or without data the new length of the file."""

    offset: int
    data: bytes | None


@dataclass(eq=False)
class Content:
    """The durable content of one file, and the writes that may or may not have reached the disk."""

    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.synced, change)
        self.unsynced.clear()

    def fail_to_sync(self, dice: random.Random) -> None:
        """Lose some unsynced writes permanently, as Linux does after a failed sync: later syncs do not retry them."""
        for change in self.unsynced:
            if dice.random() < 0.5:
                _apply(self.synced, change)
        self.unsynced.clear()

    def after(self, loss: Loss, dice: random.Random) -> bytearray:
        survived = bytearray(self.synced)
        for change in _surviving(self.unsynced, loss, dice):
            _apply(survived, change)
        return survived


@dataclass
class Disk:
    """A disk with one folder. If it is not *honest*, it confirms a sync without performing it."""

    folder: str
    dice: random.Random
    honest: bool = True
    names: dict[str, Content] = field(default_factory=dict)
    synced_names: dict[str, Content] = field(default_factory=dict)
    unsynced_names: list[tuple[str, Content | None]] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Apply *record*."""
        match record.kind:
            case "C":
                self._name(record.path, Content())
            case "U":
                self._name(record.path, None)
            case "W":
                self.names[record.path].unsynced.append(Change(record.offset, record.data))
            case "T":
                self.names[record.path].unsynced.append(Change(record.offset, None))
            case "S" if self.honest and record.path.rstrip("/") == self.folder:
                self.synced_names = dict(self.names)
                self.unsynced_names.clear()
            case "S" if self.honest:
                self.names[record.path].sync()
            case "F":
                self.names[record.path].fail_to_sync(self.dice)
            case _:
                pass

    def _name(self, path: str, content: Content | None) -> None:
        self.unsynced_names.append((path, content))
        self.names.pop(path, None)
        if content is not None:
            self.names[path] = content

    def image(self, target: Path, loss: Loss) -> None:
        """Write into *target* files that may be found after a power cut at this point."""
        target.mkdir()
        names = dict(self.synced_names)
        for path, content in self.unsynced_names[: _names_kept(len(self.unsynced_names), loss, self.dice)]:
            names.pop(path, None)
            if content is not None:
                names[path] = content
        for path, content in names.items():
            (target / Path(path).name).write_bytes(content.after(loss, self.dice))


def _names_kept(count: int, loss: Loss, dice: random.Random) -> int:
    match loss:
        case "all":
            return 0
        case "none":
            return count
        case _:
            return dice.randint(0, count)


def _surviving(changes: list[Change], loss: Loss, dice: random.Random) -> list[Change]:
    match loss:
        case "all":
            return []
        case "none":
            return changes
        case "some":
            return [change for change in changes if dice.random() < 0.5]
        case "reordered":
            return dice.sample(changes, dice.randint(0, len(changes)))
        case "torn":
            return [piece for change in changes for piece in _pieces(change) if dice.random() < 0.7]


def _pieces(change: Change) -> Iterator[Change]:
    """Cut a write at sector boundaries."""
    if change.data is None:
        yield change
        return
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        border = min(end, (start // _SECTOR + 1) * _SECTOR)
        yield Change(start, change.data[start - change.offset : border - change.offset])
        start = border


def _apply(content: bytearray, change: Change) -> None:
    length = len(content)
    if change.data is None:
        content[change.offset :] = bytes(max(0, change.offset - length))
        return
    if change.offset > length:
        content.extend(bytes(change.offset - length))
    content[change.offset : change.offset + len(change.data)] = change.data
