"""Where in a value something is wrong: the path is put together on the way out, for what is right costs nothing."""

from __future__ import annotations


class Unfit(Exception):  # noqa: N818  # never leaves the client: its catchers make their own error of it
    """A value that cannot be written as JSON, or read from it; `path` leads to it, such as `.to[3]`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def inside(self, step: str) -> Unfit:
        """Return the same problem seen from one level further out."""
        return Unfit(self.problem, step + self.path)
