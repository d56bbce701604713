"""The one source of randomness of this library, for ids and for spreading waits; nothing of it is secret.

Not the functions of the `random` module, which programs seed and replace: their processes would make the same ids and
retry at the same time.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final

RANDOM: Final = Random()  # noqa: S311  # secrets are drawn by `secrets`
# A forked child must not continue the sequence of its parent.
os.register_at_fork(after_in_child=RANDOM.seed)
