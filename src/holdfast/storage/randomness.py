"""The library's source of randomness for ids and for jitter, which are not secret, and for lease tokens, which are.

`RANDOM` does not use the functions of the `random` module, which programs may seed or replace: their processes would
generate the same ids and retry at the same time.
"""

import os
from random import Random
from typing import Final

RANDOM: Final = Random()  # noqa: S311  # secrets come from `secrets`
# A forked child must not continue the sequence of its parent.
os.register_at_fork(after_in_child=RANDOM.seed)

_TOKEN_BYTES: Final = 16
_TOKENS_AT_ONCE: Final = 64
_tokens: list[str] = []
# Nor may it use the same tokens.
os.register_at_fork(after_in_child=_tokens.clear)


def lease_token() -> str:
    """Return 128 bits from the operating system as text.

    Read many at once: in a server every system call lets other threads take the interpreter, and then waits for it.
    """
    try:
        return _tokens.pop()
    except IndexError:
        digits = os.urandom(_TOKEN_BYTES * _TOKENS_AT_ONCE).hex()
        size = 2 * _TOKEN_BYTES
        _tokens.extend(digits[start : start + size] for start in range(size, len(digits), size))
        return digits[:size]
