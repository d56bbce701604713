"""The parameters of a caller's own SQL: `:name` and `?`, as in SQLite, translated to those of the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

# What may contain a colon, a question mark or a percent sign and is not a parameter. An unclosed literal or comment
# reaches to the end: the server reports it.
_LITERAL: Final = r"""
    (?<![\w$]) [eE] ' (?: [^'\\] | \\. | '' )* (?: ' | \Z )  # a string with backslash escapes
  | ' [^']* (?: ' | \Z )                                     # a string; a doubled quote begins the next one
  | " [^"]* (?: " | \Z )                                     # a quoted name
  | (?<![\w$]) \$ (?P<tag> (?: [^\W\d] \w* )? ) \$ .*? (?: \$ (?P=tag) \$ | \Z )
  | -- [^\n]*
  | (?P<comment> /\* )
  | :: | :=
"""
_PARAMETER: Final = r"(?<![\w\])]) : (?P<name> [^\W\d] \w* ) | (?P<mark> \? )"
_TOKEN: Final = re.compile(rf"{_LITERAL} | {_PARAMETER} | %", re.VERBOSE | re.DOTALL)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


def to_driver(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> str:
    """Return *sql* with the parameters of the driver: `:name` for a mapping, `?` for a sequence.

    Strings, quoted names, comments and casts stay as they are. A colon directly after a name, a number or a bracket,
    as in `a[1:n]`, begins no parameter.
    """
    named = isinstance(params, Mapping)
    parts: list[str] = []
    position = 0
    while found := _TOKEN.search(sql, position):
        parts.append(sql[position : found.start()])
        position = _comment_end(sql, found.end()) if found["comment"] else found.end()
        if named and found["name"]:
            parts.append(f"%({found['name']})s")
        elif not named and found["mark"]:
            parts.append("%s")
        else:
            # The driver reads a percent sign as the beginning of a parameter, also within strings and comments.
            parts.append(sql[found.start() : position].replace("%", "%%"))
    return "".join([*parts, sql[position:]])


def _comment_end(sql: str, position: int) -> int:
    """Return where the comment ends that was opened before *position*; comments nest."""
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(sql, position)):
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return len(sql) if depth else position
