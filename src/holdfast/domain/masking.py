"""Mask credentials in URLs and connection strings, for messages, log lines and reprs."""

import re
from typing import Final

MASK: Final = "***"

# The password of `scheme://user:password@host`. If its special characters are not percent-encoded it may contain any
# character, including `@`: the last `@` before a blank ends it. A port, which no `@` follows, is not a password.
_USERINFO: Final = re.compile(
    r"""(?P<before>//[^\s:/@]*:)
        (?:\S*@ | (?!\d+(?:[/?,'"\s]|$))[^\n]*@)""",
    re.VERBOSE,
)
# `password=…` in the query of a URL, which ends at `&`.
_IN_QUERY: Final = re.compile(r"""(?P<before>[?&]\w*password=)[^&\s]*?(?=&|['"]?[,;:.)]*(?:\s|$))""", re.IGNORECASE)
# `password=…` among the settings of a connection string, which may be quoted and ends at a blank.
_IN_SETTINGS: Final = re.compile(
    r"""(?P<before>(?<![?&\w])\w*password\s*=\s*)
        (?:'(?:[^'\\]|\\.)*' | [^\s']\S*?(?=['"]?[,;:.)]*(?:\s|$)))""",
    re.IGNORECASE | re.VERBOSE,
)


def mask_url(text: str) -> str:
    """Return *text*, a URL or a message that may contain one, with every password replaced by `***`."""
    masked = _USERINFO.sub(rf"\g<before>{MASK}@", text)
    masked = _IN_QUERY.sub(rf"\g<before>{MASK}", masked)
    return _IN_SETTINGS.sub(rf"\g<before>{MASK}", masked)
