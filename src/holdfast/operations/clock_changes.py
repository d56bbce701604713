"""A wall clock that was set back: what waits for a time that the store has chosen itself is looked at again.

Due times, deadlines, ticks and keys that handlers have closed follow the clock, as set.
"""

from typing import Final

from holdfast.domain.clock import Now
from holdfast.storage.contract import StoreTransaction

_NOTED_MS: Final = 30_000
"""How often the time is noted."""
_STEP_MS: Final = 1_000
"""A clock that was set back by less delays nothing for long."""


async def follow(tx: StoreTransaction, now: Now) -> bool:
    """Note the time; return whether it is earlier than before, after letting the next claims look at what waits."""
    noted_ms = await tx.noted_time()
    behind_ms = noted_ms - now.wall_ms
    if -_NOTED_MS < behind_ms <= _STEP_MS:
        return False
    await tx.note_time(now)
    if behind_ms <= _STEP_MS:
        return False
    for limit in (await tx.routing()).limits.values():
        if limit.rate is not None and limit.weight is not None:
            # Jobs may have used more than a burst: only now is it known that they have not.
            most_us = now.wall_ms * 1000 + limit.cost_us(limit.burst or 1)
            await tx.shift_gates(limit.number, most_us, behind_ms * 1000)
    await tx.look_at_later_wakes(now)
    return True
