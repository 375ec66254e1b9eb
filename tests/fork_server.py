"""A Python that has imported what the programs of the tests import, and forks for each of them.

    fork_server.py FD MODULES PADDING

`forks.Popen` sends requests to the socket FD: argv and the state of a process as JSON, with descriptors. The fork is
then the program: `python -m NAME`, `python -c CODE` or `python FILE`. It has that command line in /proc too, a
`__main__` of its own, and ends as an interpreter does. PADDING makes room for the command line.

A fork has only the thread that forks, and every lock that another thread held would stay locked. So this process has
one thread, which it checks at each fork: what it imports must start none.
"""

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

LARGEST_REQUEST_BYTES = 1 << 20
MOST_DESCRIPTORS = 64
CLONE_NEWNS = 0x00020000
HEARD, REAPED = b"heard", b"reaped"

Request = tuple[dict[str, Any], list[int]]
"""What is asked for, and descriptors: a socket to whoever waits for the end, and those that it names."""


def load(names: str) -> None:
    """Import modules: "a,b.*" names a, and b with all below it."""
    # numpy's linear algebra would start a thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in names.split(","):
        module = importlib.import_module(name.removesuffix(".*"))
        if name.endswith(".*"):
            for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
                # The first runs a program; the others need packages that not every venv has.
                if found.name.rpartition(".")[2] not in {"__main__", "ray", "torch", "testing"}:
                    importlib.import_module(found.name)
    # No collection in a fork copies the pages of what is here.
    gc.collect()
    gc.freeze()


def receive(control: socket.socket) -> Request | None:
    """None once nobody is left to ask."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    data, passed, _, _ = control.recvmsg(LARGEST_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    descriptors = array.array("i")
    for _, _, numbers in passed:
        descriptors.frombytes(numbers)
    return json.loads(data), list(descriptors)


def serve(control: socket.socket) -> Request | None:
    """Fork for each request. Returns in each fork, with the request, and at the end, with None.

    A caller hears the pid, and at the end the status of `os.waitpid`. The process is reaped once the caller answers or
    hangs up: until then no other one gets its pid.
    """
    poller = select.poll()
    poller.register(control, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    ended: dict[int, tuple[int, socket.socket]] = {}  # by the caller's descriptor
    while True:
        for fd, _ in poller.poll():
            if fd == control.fileno():
                request = receive(control)
                if request is None:
                    return None
                caller = socket.socket(fileno=request[1].pop(0))
                tasks = len(os.listdir("/proc/self/task"))
                assert tasks == 1, f"{tasks} threads at the fork"
                pid = os.fork()
                if pid == 0:
                    # Objects that would close these numbers, which `become` gives to others.
                    for held in (control, caller, *(each for _, each in (*running.values(), *ended.values()))):
                        held.detach()
                    return request
                for descriptor in request[1]:
                    os.close(descriptor)
                caller.send(pid.to_bytes(4, "little"))
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, caller
                poller.register(pidfd, select.POLLIN)
            elif fd in running:
                pid, caller = running.pop(fd)
                poller.unregister(fd)
                os.close(fd)
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert found is not None
                dumped = 0x80 if found.si_code == os.CLD_DUMPED else 0
                status = found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status | dumped
                ended[caller.fileno()] = pid, caller
                poller.register(caller, select.POLLIN)
                # It may have hung up.
                with suppress(OSError):
                    caller.send(status.to_bytes(4, "little"))
            else:
                pid, caller = ended.pop(fd)
                poller.unregister(fd)
                os.waitpid(pid, 0)
                with caller, suppress(OSError):
                    caller.recv(len(HEARD))
                    caller.send(REAPED)


def become(asked: dict[str, Any], descriptors: list[int]) -> None:
    """Take on what a new process would get from the one that starts it."""
    if asked["new_session"]:
        os.setsid()
    above = max(asked["targets"]) + 1
    directory, *streams = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors)
    os.fchdir(directory)
    for number, target in zip(streams, asked["targets"], strict=True):
        os.dup2(number, target)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in asked["targets"]:
            # One of them listed the others.
            with suppress(OSError):
                os.close(number)
    libc = ctypes.CDLL(None, use_errno=True)
    if asked["namespace"] is not None:
        entered = os.open(asked["namespace"], os.O_RDONLY)
        if libc.setns(entered, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns", asked["namespace"])
        os.close(entered)
    if asked["own_mounts"] and libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    os.umask(asked["umask"])
    for limit, values in asked["limits"]:
        resource.setrlimit(limit, tuple(values))
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    name_process(asked["command"])
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        made = stream(fd, getattr(sys, name))
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    signal.signal(signal.SIGINT, signal.SIG_IGN if asked["ignores_interrupt"] else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])


def stream(fd: int, like: TextIO) -> TextIO:
    """A standard stream as an interpreter makes it at its start."""
    assert isinstance(like, io.TextIOWrapper)
    raw = io.FileIO(fd, "r" if fd == 0 else "w", closefd=False)
    # Unbuffered, if PYTHONUNBUFFERED says so.
    through = like.write_through
    return io.TextIOWrapper(
        io.BufferedReader(raw) if fd == 0 else raw if through else io.BufferedWriter(raw),
        like.encoding,
        like.errors,
        newline=None if fd == 0 else "\n",
        line_buffering=not through and (raw.isatty() or fd == 2),
        write_through=through,
    )


def name_process(command: list[str]) -> None:
    """Have /proc/self/cmdline tell ``command``, as far as there is room."""
    # proc_pid_stat(5): the fields 48 and 49, after the name in parentheses, which may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


def end(code: int) -> NoReturn:
    """Exit as an interpreter does, but for the memory: to free what the server had imported would take longer than most
    programs run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(command: list[str]) -> int:
    """What `python` does with these arguments; the exit code. An uncaught exception ends this interpreter."""
    try:
        execute(command)
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return (ending.code or 0) & 0xFF
        print(ending.code, file=sys.stderr)
        return 1
    return 0


def execute(command: list[str]) -> None:
    sys.orig_argv = command
    kind, *rest = command[1:]
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(kind))
        main.__file__ = kind
        code = compile(Path(kind).read_bytes(), kind, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    # A Ctrl-C is for the tests; it reaches this process too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load(sys.argv[2])
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        become(*request)
        end(run(request[0]["command"]))
