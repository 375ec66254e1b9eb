"""redoxfs with a log of its FUSE requests, or of its full garbage collections: counted.py WHAT LOG COMMAND…

WHAT is ``requests`` or ``collections``.
"""

import errno
import gc
import os
import select
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from threading import Event, Thread
from typing import Any

import wire
from wire import Opcode

from redoxfs.cli import main
from redoxfs.linux.fuse_device import Device, mount

LEFT_OUT = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.IOCTL)
"""The kernel sends the first three when it likes. With IOCTL, some versions of Python ask of every file that they open
whether it is a terminal."""


NAMES = {opcode.value: opcode.name.lower() for opcode in Opcode}


class Tap:
    """A `Device` for a session, with a thread between it and the kernel that writes the name of each request to
    ``log``."""

    def __init__(self, device: Device, log: int) -> None:
        self._device = device
        self._log = log
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, self._theirs):
            wire.widen(end)
        self.fd = self._theirs.fileno()
        self._begun = Event()
        self._thread = Thread(target=self._pass_on)
        self._thread.start()

    @property
    def number(self) -> str | None:
        return self._device.number

    @property
    def is_dead(self) -> bool:
        return self._device.is_dead

    def widen_readahead(self) -> None:
        # The kernel has the reply to INIT only when the thread has passed it on.
        self._begun.wait()
        self._device.widen_readahead()

    def end(self) -> None:
        self._stop()
        self._device.end()

    def close(self) -> None:
        self._stop()
        self._device.close()

    def _stop(self) -> None:
        self._theirs.close()
        self._thread.join()

    def _pass_on(self) -> None:
        """Until the mount is over, or the session's end is closed."""
        poll = select.poll()
        poll.register(self._device.fd, select.POLLIN)
        poll.register(self._ours, select.POLLIN)
        with self._ours:
            while True:
                ready = dict(poll.poll())
                if self._ours.fileno() in ready:
                    reply = self._ours.recv(wire.MESSAGE_BYTES)
                    if not reply:
                        return
                    self._reply(reply)
                if self._device.fd in ready and not self._request():
                    return

    def _request(self) -> bool:
        """Pass a request on; False if the mount is over."""
        try:
            message = os.read(self._device.fd, wire.MESSAGE_BYTES)
        except OSError as error:
            return error.errno != errno.ENODEV
        _, opcode, *_ = wire.IN_HEADER.unpack_from(message)
        if opcode not in LEFT_OUT:
            os.write(self._log, f"{NAMES.get(opcode, opcode)}\n".encode())
        self._ours.send(message)
        return True

    def _reply(self, message: bytes) -> None:
        try:
            os.write(self._device.fd, message)
        except OSError as error:
            # Its program has ended, or the kernel does not know the inode of a notice.
            if error.errno != errno.ENOENT:
                raise
        self._begun.set()


def collecting(log: int) -> Callable[[str, dict[str, int]], None]:
    def count(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            os.write(log, b"collection\n")

    return count


def count_requests(log: int) -> None:
    def mount_tapped(*arguments: Any, **options: Any) -> Tap:
        return Tap(mount(*arguments, **options), log)

    # The package has a function of the module's name.
    serve: Any = import_module("redoxfs.fs.serve")
    serve.mount = mount_tapped


if __name__ == "__main__":
    _, what, path, *command = sys.argv
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if what == "requests":
        count_requests(descriptor)
    else:
        gc.callbacks.append(collecting(descriptor))
    sys.exit(main(command))
