"""The parts of the session loop, without a mount: the reader role, handlers, and cancellation."""

import ctypes
import errno
import os
import select
import signal
from collections.abc import Awaitable, Coroutine
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from redoxfs.fs.handlers import Handled, handler
from redoxfs.fs.session import LINGER_MS, NOTHING, ReaderRole, Session, _Lowlevel, _pulse


def test_the_installed_pyfuse3_is_one_that_the_loop_was_tested_with() -> None:
    assert Session().quick, f"pyfuse3 {pyfuse3.__version__} runs as it comes: read its loop, test, add it to TESTED"


def test_an_unknown_pyfuse3_runs_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyfuse3, "__version__", "99.0")
    assert not Session().quick


def suspends(awaitable: Awaitable[object]) -> bool:
    try:
        next(awaitable.__await__())
    except StopIteration:
        return False
    return True


@pytest.mark.parametrize("suspended", [0, 1])
@pytest.mark.parametrize("comes_at", [0, 3, None])
def test_the_holder_sleeps_only_if_no_request_comes_soon(suspended: int, comes_at: int | None) -> None:
    """And it does not linger while a handler waits, since that handler needs other tasks to run."""
    role = ReaderRole()
    role.suspended = suspended
    lowlevel = _Lowlevel(role)
    there, looks = [(7, select.POLLIN)], list[float]()

    def look(timeout_ms: float) -> list[tuple[int, int]]:
        looks.append(timeout_ms)
        return there if comes_at is not None and len(looks) > comes_at else []

    lowlevel._register = lambda _fd, _events: None  # type: ignore[assignment, misc]
    lowlevel._look = look  # type: ignore[assignment]
    waiting = lowlevel.wait_readable(7)
    if comes_at == 0 or (comes_at is not None and not suspended):
        assert waiting is NOTHING
        assert looks == [0] * (comes_at + 1)
    else:
        assert waiting is not NOTHING
        waiting.close()  # type: ignore[attr-defined]
        if suspended:
            assert looks == [0]
        else:
            assert looks[-1] == LINGER_MS
            assert set(looks[:-1]) == {0}
            assert len(looks) > 2


def test_the_role_stays_until_it_is_handed_over() -> None:
    role, received = ReaderRole(), []

    async def receive(name: str, times: int) -> None:
        for _ in range(times):
            async with role:
                received.append(name)
            await trio.testing.wait_all_tasks_blocked()  # like a handler that suspends without a call of `suspending`

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with role:
                pass
            assert not suspends(role.__aenter__()), "the holder does not wait for itself"
            nursery.start_soon(receive, "other", 1)
            await trio.testing.wait_all_tasks_blocked()
            assert received == []
            role.hand_over()
            await trio.testing.wait_all_tasks_blocked()
            assert received == ["other"]

    trio.run(main)


def test_only_the_holder_can_hand_over() -> None:
    role = ReaderRole()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with role:
                pass
            nursery.start_soon(trio.to_thread.run_sync, lambda: None)

            async def somebody_else() -> None:
                role.hand_over()

            nursery.start_soon(somebody_else)
            await trio.testing.wait_all_tasks_blocked()
            assert not suspends(role.__aenter__())

    trio.run(main)


def test_a_task_that_is_cancelled_while_parked_is_forgotten() -> None:
    role = ReaderRole()

    async def park() -> None:
        async with role:
            raise AssertionError

    async def main() -> None:
        async with role:
            pass
        async with trio.open_nursery() as nursery:
            nursery.start_soon(park)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        role.hand_over()
        async with role:
            pass

    trio.run(main)


def test_a_holder_that_ended_silently_is_detected() -> None:
    role, received = ReaderRole(), []

    async def receive(name: str) -> None:
        async with role:
            received.append(name)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(role.look_after)
            async with trio.open_nursery() as receivers:
                receivers.start_soon(receive, "first")
                await trio.testing.wait_all_tasks_blocked()
                for name in ("second", "third"):
                    receivers.start_soon(receive, name)
            nursery.cancel_scope.cancel()
        assert received[0] == "first"
        assert sorted(received) == ["first", "second", "third"]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_end_wakes_all_parked_tasks() -> None:
    role, woken = ReaderRole(), []

    async def park() -> None:
        async with role:
            woken.append(1)

    async def main() -> None:
        async with role:
            pass
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(park)
            await trio.testing.wait_all_tasks_blocked()
            assert not woken
            role.close()
        assert len(woken) == 5

    trio.run(main)


def test_a_receive_that_blocks_is_interrupted() -> None:
    """Block like a receive of a vanished request: in C, which does not handle signals itself."""
    read_end, write_end = os.pipe()
    try:
        with _pulse():
            libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as pyfuse3 does
            assert libc.read(read_end, ctypes.create_string_buffer(1), 1) == -1
            assert ctypes.get_errno() == errno.EINTR
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        os.close(read_end)
        os.close(write_end)


# Handlers

STEPS = st.lists(st.sampled_from(["checkpoint", "sleep", "done", "thread"]), max_size=4)
ENDS = st.sampled_from(["return", "fuse error", "os error", "bug", "late"])


async def act(steps: list[str], end: str) -> str:
    """A handler that awaits some steps, and then returns or raises."""
    for step in steps:
        if step == "checkpoint":
            await trio.lowlevel.checkpoint()
        elif step == "sleep":
            await trio.sleep(0)
        elif step == "done":
            await NOTHING
        else:
            await trio.to_thread.run_sync(lambda: None)
    if end == "fuse error":
        raise pyfuse3.FUSEError(errno.ENOENT)
    if end == "os error":
        raise PermissionError(errno.EACCES, "no")
    if end == "bug":
        raise ZeroDivisionError
    if end == "late":
        with trio.fail_after(0):
            await trio.sleep_forever()
    return "answer"


EXPECTED = {
    "return": "answer",
    "fuse error": errno.ENOENT,
    "os error": errno.EACCES,
    "bug": errno.EIO,
    "late": errno.EIO,
}


@given(STEPS, ENDS)
def test_driving_a_handler_by_hand_equals_awaiting_it(steps: list[str], end: str) -> None:
    async def outcome(awaitable: Awaitable[str]) -> object:
        try:
            return await awaitable
        except pyfuse3.FUSEError as error:
            return error.errno

    async def plainly() -> str:
        try:
            return await act(steps, end)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or 0) from error
        except (ZeroDivisionError, trio.TooSlowError) as error:
            raise pyfuse3.FUSEError(errno.EIO) from error

    async def both() -> None:
        assert await outcome(Handled(act(steps, end))) == await outcome(plainly()) == EXPECTED[end]

    trio.run(both)


def test_a_cancelled_handler_cleans_up() -> None:
    log = []

    async def act() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("cleaned")

    async def main() -> None:
        with trio.move_on_after(0):
            await Handled(act())

    trio.run(main)
    assert log == ["cleaned"]


class Examples:
    @handler
    def either(self, value: int) -> float | Coroutine[Any, Any, float]:
        return self._late(value) if value < 0 else 1 / value

    async def _late(self, value: int) -> float:
        await trio.lowlevel.checkpoint()
        return 1 / value


def test_a_handler_suspends_only_if_it_must(caplog: pytest.LogCaptureFixture) -> None:
    assert not suspends(Examples().either(4))
    assert suspends(Examples().either(-4))
    with pytest.raises(pyfuse3.FUSEError) as raised:
        suspends(Examples().either(0))
    assert raised.value.errno == errno.EIO
    assert len(caplog.records) == 1
