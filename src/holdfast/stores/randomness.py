"""The one source of randomness of this library.

Not the generator of the `random` module, which programs seed, replace and share: jobs of such programs would get the
same ids, and their retries would come at the same time. The system's generator has no state, also across a fork.
"""

from __future__ import annotations

from random import SystemRandom
from typing import Final

RANDOM: Final = SystemRandom()
