"""Deadlines are of time in which the process ran, in the loops of trio and of asyncio."""

import asyncio
import math
import time

import pytest
import trio

from redoxfs.fs.clock import RunningClock
from redoxfs.linux.running_time import LATE_S, TICK_S, RunningTime
from redoxfs.objects.client import RunningLoop

STOPPED_S = 3600.0


class Stops:
    """A clock that goes on, and jumps when the process is stopped."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.stopped_s


class Said:
    """A clock whose time a test says."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_time_of_a_loop_that_looks_often_is_real_time() -> None:
    clock = Said()
    running = RunningTime(clock)
    for _ in range(20):
        clock.s += TICK_S
        assert running.now() == clock.s


def test_time_of_a_stopped_process_does_not_count() -> None:
    clock = Said()
    running = RunningTime(clock)
    for stopped_s in (LATE_S + 0.1, STOPPED_S, 30 * STOPPED_S):
        before = running.now()
        clock.s += stopped_s
        assert running.now() == before
        clock.s += TICK_S
        assert running.now() == before + TICK_S


def test_a_loop_that_is_late_each_time_reaches_its_deadline() -> None:
    clock = Said()
    running = RunningTime(clock)
    deadline_s = running.now() + 10
    for _ in range(20):
        clock.s += 2 * LATE_S
        running.now()
    assert running.now() >= deadline_s


def test_a_loop_with_a_deadline_looks_often() -> None:
    running = RunningTime(Said())
    assert running.sleep_until(running.now() + 60) == TICK_S
    assert running.sleep_until(running.now() + TICK_S / 2) == pytest.approx(TICK_S / 2)
    assert running.sleep_until(running.now() - 1) == -1
    assert running.sleep_until(math.inf) == math.inf


def test_a_wait_in_trio_outlives_a_stop_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    stops = Stops()
    monkeypatch.setattr(RunningTime.__init__, "__defaults__", (stops,))

    async def main() -> bool:
        answer = trio.Event()
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer.wait)
                await trio.lowlevel.checkpoint()
                stops.stopped_s += STOPPED_S
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
                answer.set()
            return True
        return False

    assert trio.run(main, clock=RunningClock())


def test_a_wait_in_asyncio_outlives_a_stop_of_the_process() -> None:
    stops = Stops()

    async def main() -> str:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
            stops.stopped_s += STOPPED_S
            await asyncio.sleep(0)
            await asyncio.sleep(TICK_S / 50)
            return "answered"

    loop = RunningLoop(stops)
    try:
        assert loop.run_until_complete(main()) == "answered"
    finally:
        loop.close()


def test_an_asyncio_loop_with_a_timer_looks_at_its_clock_often() -> None:
    looks = 0

    def clock_s() -> float:
        nonlocal looks
        looks += 1
        # Each look is a second later: a loop that slept for the whole time would look only a few times.
        return looks * TICK_S

    async def main() -> None:
        await asyncio.sleep(10 * TICK_S)

    loop = RunningLoop(clock_s)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert looks >= 10
