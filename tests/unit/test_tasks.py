import asyncio

from turnlog.events.tasks import cancel


async def stubborn() -> None:
    """Swallows one cancellation, as asyncio.wait_for does if its result comes at the same time."""
    for _ in range(2):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def failing() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("at its end")


async def test_a_task_that_swallows_its_cancellation_still_ends() -> None:
    tasks = [asyncio.create_task(work) for work in (stubborn(), failing(), asyncio.sleep(0))]
    await asyncio.sleep(0)
    await cancel(*tasks)
    assert all(task.done() for task in tasks)
