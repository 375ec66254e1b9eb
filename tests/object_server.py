"""A web server for tests, over a folder or in front of another server, that counts requests and fails on demand."""

import hashlib
import http.client
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from patience import PATIENCE_S

STATUS_503, CUT_SHORT, SILENT, SLOW, OTHER_BYTES, REFUSED = "503", "cut short", "silent", "slow", "other bytes", "403"

_RANGE = re.compile(r"bytes=(\d+)-(\d+)?$")

PIECE_BYTES = 1 << 18


@dataclass
class Traffic:
    """What a server has seen: GET requests of ranges, all requests by method, and the bytes of all bodies sent."""

    requests: Counter[str] = field(default_factory=Counter)
    ranges: int = 0
    sent: int = 0


class Server:
    """A web server on 127.0.0.1, over ``folder``, or in front of the server on port ``behind``.

    ``fault`` is asked for each request, by method and path, and returns one of the faults above, or None.
    """

    def __init__(self, folder: Path | None = None, *, behind: int | None = None) -> None:
        self.folder = folder
        self.behind = behind
        self.traffic = Traffic()
        self.fault: Callable[[str, str], str | None] = lambda _method, _path: None
        self.has_tags = True
        # At GET, tags of a folder's files are not those of HEAD.
        self.tags_differ = False
        self.paths: list[str] = []
        self._contents: dict[Path, tuple[tuple[int, int], bytes, str]] = {}
        self.failed = 0
        self.any_failed = threading.Event()
        self._lock = threading.Lock()
        self.released = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port again after `stop`."""
        server = self

        class Handler(_Handler):
            of = server

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                """A client that went away is no failure of a test."""

        self._server = Quiet(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and break those that are open."""
        self.released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            for connection in _Handler.open_connections.pop(self, set()):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.released.clear()

    def content(self, path: Path) -> tuple[bytes, str]:
        """The bytes of a file, and their tag."""
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        known = self._contents.get(path)
        if known is None or known[0] != version:
            data = path.read_bytes()
            known = self._contents[path] = (version, data, f'"{hashlib.md5(data).hexdigest()}"')
        return known[1:]

    def begins(self, method: str, path: str, *, is_range: bool) -> None:
        with self._lock:
            self.traffic.requests[method] += 1
            self.traffic.ranges += is_range
            self.paths.append(f"{method} {path}")

    def ends(self, sent: int) -> None:
        with self._lock:
            self.traffic.sent += sent


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Server
    open_connections: ClassVar[dict[Server, set[socket.socket]]] = {}
    # One write for the headers.
    wbufsize = 1 << 16

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open_connections.setdefault(self.of, set()).add(self.connection)

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()
        self.open_connections.get(self.of, set()).discard(self.connection)

    def log_message(self, *_: Any) -> None:
        """Nothing: stderr is for failures of the test."""

    def _handle(self) -> None:
        range_text = self.headers.get("Range")
        self.of.begins(self.command, self.path, is_range=self.command == "GET" and range_text is not None)
        sent = 0
        try:
            fault = self.of.fault(self.command, self.path)
            if fault is not None and fault[:3].isdigit():
                status, _, code = fault.partition(" ")
                body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(int(status))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            if fault == SILENT:
                self.of.released.wait(2 * PATIENCE_S)
                self.close_connection = True
                return
            sent = self._forwarded(fault) if self.of.behind is not None else self._from_folder(fault, range_text)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            self.of.failed += 1
            self.of.any_failed.set()
        finally:
            self.of.ends(sent)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names of http.server

    def _from_folder(self, fault: str | None, range_text: str | None) -> int:
        assert self.of.folder is not None
        path = self.of.folder / self.path.lstrip("/")
        try:
            (data, tag), status = self.of.content(path), 200
            if self.of.tags_differ and self.command == "GET":
                tag = '"another"'
        except OSError:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return 0
        wanted = self.headers.get("If-Match")
        whole = len(data)
        if wanted is not None and self.of.has_tags and wanted != tag:
            data, status = b"", 412
        elif range_text is not None:
            match = _RANGE.match(range_text)
            assert match is not None
            begin = int(match[1])
            end = min(whole, int(match[2]) + 1 if match[2] else whole)
            data, status = data[begin:end], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{whole}")
        if self.of.has_tags:
            self.send_header("ETag", tag)
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.send_header("Content-Length", str(whole if self.command == "HEAD" else len(data)))
        self.end_headers()
        return 0 if self.command == "HEAD" else self._send(data, fault)

    def _forwarded(self, fault: str | None) -> int:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        there = http.client.HTTPConnection("127.0.0.1", self.of.behind, timeout=PATIENCE_S)
        try:
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                there.putheader(name, value)
            there.endheaders(body)
            answer = there.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            if self.command == "HEAD":
                self.end_headers()
                return 0
            if answer.getheader("Content-Length") is None:
                data = answer.read()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                return self._send(data, fault)
            self.end_headers()
            if fault is not None:
                return self._send(answer.read(), fault)
            sent = 0
            while data := answer.read(PIECE_BYTES):
                self.wfile.write(data)
                sent += len(data)
            self.wfile.flush()
            return sent
        finally:
            there.close()

    def _send(self, data: bytes, fault: str | None) -> int:
        if fault == OTHER_BYTES:
            data = bytes([data[0] ^ 1]) + data[1:] if data else data
        if fault == CUT_SHORT:
            data = data[: len(data) // 2]
            self.close_connection = True
        for at in range(0, len(data), PIECE_BYTES):
            self.wfile.write(data[at : at + PIECE_BYTES])
            self.wfile.flush()
            if fault == SLOW:
                # What a slow server is. The tests state no time for it.
                time.sleep(0.2)
        self.wfile.flush()
        return len(data)


@contextmanager
def serving(folder: Path | None = None, *, behind: int | None = None) -> Iterator[Server]:
    """A server until the block ends."""
    server = Server(folder, behind=behind)
    try:
        yield server
    finally:
        server.stop()


def times(count: int, fault: str, method: str = "GET", part: str = "") -> Callable[[str, str], str | None]:
    """The first ``count`` requests of ``method`` with ``part`` in their path fail."""
    left = [count]
    lock = threading.Lock()

    def decide(asked: str, path: str) -> str | None:
        with lock:
            if asked != method or part not in path or not left[0]:
                return None
            left[0] -= 1
            return fault

    return decide


def environment(**also: str) -> dict[str, str]:
    """This process's environment without settings of clouds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_", "GOOGLE_"))}
    return {**kept, **also}
