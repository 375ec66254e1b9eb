"""Calls that other threads leave for the node's task: each is made once, in the order of each thread."""

import select
import threading

import trio
import trio.lowlevel
from patience import until_in_trio

from redoxfs.node.posts import Posts

THREADS = 4
CALLS = 500


async def test_each_call_is_made_once_in_order_whoever_makes_it() -> None:
    made: list[tuple[int, int]] = []

    posts = Posts()
    begin = threading.Barrier(THREADS + 1)

    def leave(thread: int) -> None:
        begin.wait()
        for number in range(CALLS):
            posts.post(lambda call=(thread, number): made.append(call))  # type: ignore[misc]

    threads = [threading.Thread(target=leave, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    begin.wait()
    while len(made) < THREADS * CALLS:
        fd = posts.take_over()
        for _ in range(3):
            with trio.move_on_after(0.01):
                await trio.lowlevel.wait_readable(fd)
                posts.run()
        trio.lowlevel.notify_closing(fd)
        posts.give_back()
        await trio.lowlevel.checkpoint()
    for thread in threads:
        thread.join()
    await until_in_trio(lambda: not posts.run())
    for caller in range(THREADS):
        assert [number for of, number in made if of == caller] == list(range(CALLS))


async def test_what_is_left_is_made_when_the_loop_takes_over_and_when_it_ends() -> None:
    made: list[str] = []

    posts = Posts()
    posts.post(lambda: made.append("before"))
    # Without a turn of trio, which has been told of the call as well.
    assert select.select([posts.take_over()], [], [], 0)[0]
    assert posts.run()
    posts.post(lambda: made.append("during"))
    posts.give_back()
    posts.post(lambda: made.append("after"))
    await until_in_trio(lambda: len(made) == 3)
    assert not posts.run()
    assert made == ["before", "during", "after"]
