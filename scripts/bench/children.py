"""Forked processes that each answer once. One that dies ends the benchmark, which would wait for its answer for ever.

The kernel kills a reader where the cap on memory is too low, for example.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

fork = multiprocessing.get_context("fork")


class Children:
    """They end with the block, and are killed if it ends early."""

    def __init__(self) -> None:
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._answers: list[Connection[Any, Any]] = []

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process, answer in zip(self._processes, self._answers, strict=True):
            if kind is not None:
                process.kill()
            process.join()
            answer.close()

    def start(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Run ``work`` in a child. Its answer is what it returns, or the OSError that it raises."""
        answer, told = fork.Pipe(duplex=False)
        process = fork.Process(target=_work, args=(told, work, *arguments), daemon=True)
        process.start()
        # The next one must not have it, so that it is at its end when this one dies.
        told.close()
        self._processes.append(process)
        self._answers.append(answer)

    def answers(self) -> list[Any]:
        """The answers of all, in the order of `start`. Raises SystemExit with an error, or if one has died."""
        found: dict[int, Any] = {}
        waiting = dict(enumerate(self._answers))
        while waiting:
            ready = wait(list(waiting.values()))
            for number, answer in [each for each in waiting.items() if each[1] in ready]:
                del waiting[number]
                try:
                    found[number] = answer.recv()
                except (EOFError, OSError):
                    self._processes[number].join()
                    code = self._processes[number].exitcode
                    raise SystemExit(f"a child process ended with {code} before it had an answer") from None
        for told in found.values():
            if isinstance(told, OSError):
                raise SystemExit(str(told))
        return [found[number] for number in range(len(found))]


def _work(told: "Connection[Any, Any]", work: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = work(*arguments)
    except OSError as error:
        answer = error
    told.send(answer)
