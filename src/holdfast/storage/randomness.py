"""The library's only source of randomness, for ids and for jitter; none of it is secret.

It does not use the functions of the `random` module, which programs may seed or replace: their processes would
generate the same ids and retry at the same time.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final

RANDOM: Final = Random()  # noqa: S311  # secrets come from `secrets`
# A forked child must not continue the sequence of its parent.
os.register_at_fork(after_in_child=RANDOM.seed)
