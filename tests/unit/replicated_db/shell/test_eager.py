"""Coroutines that are begun without a task, and the wait of Faust's inner loop that uses them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from replicated_db.shell.follower import make_app
from replicated_db.shell.kafka.eager import Begun
from replicated_db.shell.kafka.quiet_monitor import QuietMonitor


async def at_once() -> str:
    return "answer"


async def after(event: asyncio.Event, steps: int = 1) -> str:
    for _ in range(steps):
        await event.wait()
        await asyncio.sleep(0)
    return "answer"


async def failing(event: asyncio.Event | None = None) -> None:
    if event is not None:
        await event.wait()
    raise ValueError("of the coroutine")


def consumer_of(folder: Path) -> Any:
    app: Any = make_app(
        "eager", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=1, data_dir=folder, fatal=print
    )
    return app.transport.create_consumer(
        callback=at_once, on_partitions_assigned=at_once, on_partitions_revoked=at_once
    )


def test_what_need_not_wait_is_done_without_an_event_loop():
    begun = Begun(at_once())
    assert (begun.is_done, begun.result) == (True, "answer")


def test_what_ended_is_awaited_like_any_other():
    async def story() -> Any:
        return await Begun(at_once())

    assert asyncio.run(story()) == "answer"


@pytest.mark.parametrize("steps", [1, 3])
def test_what_waits_goes_on_when_it_is_awaited(steps: int):
    async def story() -> tuple[bool, Any, bool]:
        event = asyncio.Event()
        begun = Begun(after(event, steps))
        was_done = begun.is_done
        asyncio.get_running_loop().call_soon(event.set)
        return was_done, await begun, begun.is_done

    assert asyncio.run(story()) == (False, "answer", True)


def test_an_error_before_the_first_wait_is_raised_at_once():
    with pytest.raises(ValueError, match="of the coroutine"):
        Begun(failing())


def test_an_error_after_it_is_raised_where_it_is_awaited():
    async def story() -> None:
        event = asyncio.Event()
        begun = Begun(failing(event))
        event.set()
        await begun

    with pytest.raises(ValueError, match="of the coroutine"):
        asyncio.run(story())


def test_a_cancelled_wait_cancels_the_coroutine():
    async def story() -> list[str]:
        seen = []

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.ensure_future(Begun(waits()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(story()) == ["cancelled"]


def waiting(folder: Path, story: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        return await story(consumer_of(folder))

    return asyncio.run(run())


def test_a_stream_that_takes_a_record_at_once_costs_no_task(tmp_path: Path):
    async def story(consumer: Any) -> tuple[int, Any]:
        before = len(asyncio.all_tasks())
        waiter: Any = asyncio.Event().wait()
        found = await consumer.wait_first(at_once(), waiter)
        assert waiter.cr_frame is None, "what might have ended the wait is closed"
        return len(asyncio.all_tasks()) - before, found

    tasks, found = waiting(tmp_path, story)
    assert (tasks, found.results, found.stopped) == (0, ["answer"], False)


def test_a_stream_that_is_full_is_waited_for(tmp_path: Path):
    async def story(consumer: Any) -> Any:
        event = asyncio.Event()
        asyncio.get_running_loop().call_soon(event.set)
        return await asyncio.wait_for(consumer.wait_first(after(event), asyncio.Event().wait()), 30)

    found = waiting(tmp_path, story)
    assert (found.results, found.stopped) == (["answer"], False)


def test_a_rebalance_ends_the_wait_for_a_stream_that_is_full(tmp_path: Path):
    async def story(consumer: Any) -> Any:
        suspended = asyncio.Event()
        asyncio.get_running_loop().call_soon(suspended.set)
        return await asyncio.wait_for(consumer.wait_first(after(asyncio.Event()), suspended.wait()), 30)

    found = waiting(tmp_path, story)
    assert (found.results, found.stopped) == ([True], False)


def test_a_stop_ends_the_wait_for_a_stream_that_is_full(tmp_path: Path):
    async def story(consumer: Any) -> Any:
        asyncio.get_running_loop().call_soon(consumer._stopped.set)
        return await asyncio.wait_for(consumer.wait_first(after(asyncio.Event()), asyncio.Event().wait()), 30)

    assert waiting(tmp_path, story).stopped


def test_an_error_of_the_stream_ends_the_wait(tmp_path: Path):
    async def story(consumer: Any) -> None:
        await consumer.wait_first(failing(), asyncio.Event().wait())

    with pytest.raises(ValueError, match="of the coroutine"):
        waiting(tmp_path, story)


def test_others_run_while_the_consumer_does_not_sleep(tmp_path: Path):
    async def story(consumer: Any) -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "another")
        await consumer.sleep(0)
        return seen

    assert waiting(tmp_path, story) == ["another"]


def test_the_monitor_takes_no_samples():
    async def story() -> bool:
        return await asyncio.wait_for(QuietMonitor()._sampler.fun(QuietMonitor()), 30) is None

    assert asyncio.run(story())
