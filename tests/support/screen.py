"""A small terminal: it applies the output of a program to a screen of characters, as a user would see it."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\x1b\[(?P<numbers>[0-9;?]*)(?P<final>[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|(?P<char>[^\x1b])"
)


class Screen:
    """A terminal of *width* and *height* that keeps lines which scrolled off.

    It supports the sequences that shells and `rich` write, and fails on any other, so that nothing is overlooked.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        """Every line, those that scrolled off first."""
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def row(self) -> int:
        """The line of the cursor; a live screen may have left empty lines below it."""
        return self._row

    def write(self, text: str) -> None:
        """Apply output to the terminal."""
        self._rest += text
        while self._rest:
            token = _TOKEN.match(self._rest)
            if token is None:
                # The rest of an escape sequence is still to come.
                assert len(self._rest) < 200, f"not understood: {self._rest[:40]!r}"
                return
            self._rest = self._rest[token.end() :]
            if token["char"]:
                self._write_char(token["char"])
            elif token["final"]:
                self._control(token["numbers"], token["final"])

    def _write_char(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._down()
        elif char == "\b":
            self._column = max(self._column - 1, 0)
        elif char == "\t":
            self._column = min(self._column // 8 * 8 + 8, self._width - 1)
        elif char >= " ":
            if self._column == self._width:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = char
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _control(self, numbers: str, final: str) -> None:
        count = int(numbers) if numbers.isdigit() else 1
        if final == "A":
            self._row = max(self._row - count, len(self._lines) - self._height, 0)
        elif final == "C":
            self._column = min(self._column + count, self._width - 1)
        elif final == "D":
            self._column = max(self._column - count, 0)
        elif final == "H":
            assert not numbers, "only the way home is understood"
            self._row, self._column = max(len(self._lines) - self._height, 0), 0
        elif final == "J":
            del self._lines[self._row + 1 :]
            del self._lines[self._row][self._column :]
        elif final == "K":
            line = self._lines[self._row]
            del line[0 if numbers == "2" else self._column :]
        else:
            assert final in "mhl", f"not understood: {numbers!r} {final!r}"
