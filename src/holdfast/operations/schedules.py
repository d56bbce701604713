"""Schedules: setting, declaring, listing, pausing and running them, and firing the ticks that are due."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.domain import cron, errors, limits, new_job, schedules, validation
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, job_of
from holdfast.operations import enqueue
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.flow_contract import Wake

_UNKNOWN_MS: Final = 60_000
"""When a schedule is looked at again whose next tick is not known."""

# --- reading -------------------------------------------------------------------------------------------------------


async def get_schedule(tx: StoreTransaction, name: str, tenant: str) -> schedules.Schedule:
    """Return a schedule, or raise `ScheduleNotFound`."""
    return schedules.public(await _get(tx, name, tenant))


async def _get(tx: StoreTransaction, name: str, tenant: str) -> schedules.StoredSchedule:
    found = await tx.schedule_by_name(tenant, name)
    if found is None:
        raise errors.ScheduleNotFound(name)
    return found


async def list_schedules(tx: StoreTransaction, tenant: str | None, limit: int) -> list[schedules.Schedule]:
    """Return schedules in order of tenant and name."""
    return [schedules.public(stored) for stored in await tx.schedules(tenant, limit)]


async def preview(tx: StoreTransaction, name: str, tenant: str, count: int) -> list[datetime]:
    """Return the next ticks of a schedule, also if it is paused, in its time zone."""
    stored = await _get(tx, name, tenant)
    timing = stored.definition.timing
    after_ms = max((await tx.now()).wall_ms, stored.last_at_ms)
    zone = cron.zone_of(timing.zone)
    ticks = schedules.ticks_after(timing, after_ms, count)
    return [validation.datetime_of(tick).astimezone(zone) for tick in ticks]


# --- changing ------------------------------------------------------------------------------------------------------


async def set_schedule(
    tx: StoreTransaction, definition: schedules.Definition, actor: str, *, fits: bool = False
) -> schedules.Schedule:
    """Store a schedule, or change the one of its name; raise `Conflict` if a module declares it.

    Unless the caller knows that its payload *fits* the kind, raise `InvalidInput` if it does not match the published
    schema.
    """
    if not fits:
        published = (await tx.routing()).publications.get(definition.kind)
        new_job.with_publication(schedules.job_of_tick(definition, "", 0), published)
    stored = await tx.schedule_by_name(definition.tenant, definition.name)
    now = await tx.now()
    if stored is not None and stored.owner is not None:
        raise errors.Conflict(
            f"schedule {definition.name!r} is declared by module {stored.owner}; change it there, or pause it"
        )
    after = (
        schedules.new_schedule(definition, None, now.wall_ms)
        if stored is None
        else schedules.changed(stored, definition, now.wall_ms)
    )
    if after is not stored:
        if stored is None and len(await tx.schedules(None, limits.SCHEDULES_MAX)) >= limits.SCHEDULES_MAX:
            raise errors.InvalidInput("name", f"would make more than {limits.SCHEDULES_MAX} schedules")
        await _write(tx, stored, after)
        detail = {"tenant": definition.tenant, "kind": definition.kind}
        await tx.append_audit(actor, "schedules.set", definition.name, dict(detail), now)
    return schedules.public(after)


async def declare(
    tx: StoreTransaction, declared: Sequence[tuple[schedules.Definition, str]]
) -> list[tuple[str, str | None]]:
    """Store what modules declare; return the names that belong to others, with their owners."""
    taken = []
    now = await tx.now()
    for definition, owner in sorted(declared, key=lambda pair: pair[0][:2]):
        stored = await tx.schedule_by_name(definition.tenant, definition.name)
        after = schedules.declared(stored, definition, owner, now.wall_ms)
        if after is None:
            taken.append((definition.name, None if stored is None else stored.owner))
        else:
            await _write(tx, stored, after)
    return taken


async def _write(
    tx: StoreTransaction, before: schedules.StoredSchedule | None, after: schedules.StoredSchedule
) -> None:
    """Write a schedule, and its wake row if the next tick has changed, or whether it is paused."""
    if before is None:
        number = await tx.insert_schedule(after)
        if number is None:
            raise errors.Conflict(f"schedule {after.definition.name!r} was set at the same time; send the call again")
        after = after._replace(number=number)
    else:
        await tx.write_schedule(after)
    if before is not None and (before.next_at_ms, before.paused) == (after.next_at_ms, after.paused):
        return
    await tx.delete_wakes_of("schedule", after.number)
    if after.next_at_ms is not None:
        await tx.add_wake("schedule", after.number, after.next_at_ms)
        # A worker may wait for a later time.
        lane = schedules.job_of_tick(after.definition, "", 0).settings.route.lane
        tx.notify([notifications.lane_topic(lane)])


async def pause_schedule(tx: StoreTransaction, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Fire no ticks of a schedule until it is resumed."""
    stored = await _get(tx, name, tenant)
    if stored.paused:
        return schedules.public(stored)
    after = stored._replace(paused=True)
    await _write(tx, stored, after)
    await tx.append_audit(actor, "schedules.pause", name, {"tenant": tenant}, await tx.now())
    return schedules.public(after)


async def resume_schedule(tx: StoreTransaction, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Fire the ticks of a schedule from now on."""
    stored = await _get(tx, name, tenant)
    if not stored.paused:
        return schedules.public(stored)
    now = await tx.now()
    after = schedules.resumed(stored, now.wall_ms)
    await _write(tx, stored, after)
    await tx.append_audit(actor, "schedules.resume", name, {"tenant": tenant}, now)
    return schedules.public(after)


async def remove_schedule(tx: StoreTransaction, name: str, tenant: str, actor: str) -> schedules.Schedule:
    """Delete a schedule; its jobs stay."""
    stored = await _get(tx, name, tenant)
    await tx.delete_wakes_of("schedule", stored.number)
    await tx.delete_schedule(stored.number)
    await tx.append_audit(actor, "schedules.remove", name, {"tenant": tenant}, await tx.now())
    return schedules.public(stored)


async def run_schedule(tx: StoreTransaction, name: str, tenant: str, job_id: str, actor: str) -> Job:
    """Enqueue a job of a schedule now, also if it is paused; its ticks stay as they are.

    A call that is sent again, with the same id, returns the job.
    """
    stored = await _get(tx, name, tenant)
    made = await tx.job_by_id(job_id)
    if made is not None and made.tenant == tenant:
        return job_of(made)
    now = await tx.now()
    new = schedules.job_of_tick(stored.definition, job_id, now.wall_ms)
    [enqueued] = await enqueue.enqueue_jobs(tx, [new], "")
    await tx.write_schedule(stored._replace(last_job_id=job_id))
    await tx.append_audit(actor, "schedules.run", name, {"tenant": tenant, "job_id": job_id}, now)
    return enqueued.job


# --- firing --------------------------------------------------------------------------------------------------------


async def fire(tx: StoreTransaction, wakes: Sequence[Wake], now: Now) -> list[Wake]:
    """Fire the schedules of *wakes*, and move each wake row to the next tick; return those that were locked."""
    if not wakes:
        return []
    by_number = {wake.number: wake for wake in wakes}
    for stored in await tx.schedules_to_fire(sorted(by_number)):
        wake = by_number.pop(stored.number)
        after = await _fire_one(tx, stored, now)
        await tx.write_schedule(after)
        next_at_ms = after.next_at_ms
        if next_at_ms is None:
            # This process has no time zone data, and no tick is left that another one has computed.
            next_at_ms = now.wall_ms + _UNKNOWN_MS
        await tx.move_wakes([wake.wake], next_at_ms)
    # Another transaction changes these, and their wake rows with them.
    return list(by_number.values())


async def _fire_one(tx: StoreTransaction, stored: schedules.StoredSchedule, now: Now) -> schedules.StoredSchedule:
    """Enqueue the job of the tick that is due, if any; return the schedule after it."""
    tick_ms, after = schedules.decide(stored, now.wall_ms)
    if tick_ms is None:
        return after
    if stored.definition.overlap == "skip" and stored.last_job_id is not None:
        last = await tx.job_by_id(stored.last_job_id)
        if last is not None and not last.finished:
            return after._replace(problem=f"job {last.id!r} of an earlier tick is still {last.state}")
    job_id = schedules.job_id_of(stored.definition, tick_ms)
    if await tx.job_by_id(job_id) is not None:
        # The schedule was set again, or the store was restored from a backup.
        return after
    try:
        async with tx.savepoint():
            await enqueue.enqueue_jobs(tx, [schedules.job_of_tick(stored.definition, job_id, tick_ms)], "")
    except (errors.Refused, errors.InvalidInput) as refusal:
        return after._replace(problem=str(refusal)[: limits.FAILURE_MESSAGE_CHARS_MAX])
    return after._replace(last_job_id=job_id)
