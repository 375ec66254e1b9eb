"""Requests for one object at a time: ranges of a version, with retries and a deadline.

obstore carries out requests in threads of its own (Rust), and its results come back to an event loop of asyncio, which
runs in one thread for all clients of the process. A request that is cancelled or too late ends at once, with its
connection. Rejected: a thread in Python for each request. Nothing could end a request that hangs, and such a thread
ends the whole process if it returns while the interpreter ends.

Attempts are counted here rather than in obstore, whose own retries have no deadline and do not see a body that ends
early. The time between two attempts is drawn anew each time, below a bound that doubles, so that many requests that
fail together do not come back together.

The event loop starts with `Client.start` or the first request, which must not come before a fork: neither it nor
obstore's threads outlive one. Any thread but that of the event loop may call `Client.run` and `Client.spawn`.
"""

import asyncio
import atexit
import concurrent.futures
import ipaddress
import logging
import os
import random
import re
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from errno import ESTALE
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from redoxfs.linux.running_time import TICK_S, RunningTime
from redoxfs.objects.address import Address
from redoxfs.objects.credentials import ProfileError, aws_settings
from redoxfs.objects.errors import ObjectError, changed, described

if TYPE_CHECKING:
    from obstore import Bytes
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20
"""The longest range of one request. Stores give one connection 50 to 100 MB/s, so a part takes about 0.1 s; a longer
part would hold more memory and gain little."""

CONNECT_S = 10.0

SILENCE_S = 15.0
"""A server that sends nothing for so long is taken for lost, and the range is requested anew."""

END_S = 2.0
"""How long the end of the process waits for requests that are cancelled."""

SETTLE_S = 0.05

RESOLVER_S = 5.0
"""Between two tasks of the thread that looks up names. obstore ends it after ten seconds without one."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

MISSING = "this needs obstore: pip install 'redoxfs[objects]'"

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class NoObstoreError(Exception):
    """obstore is not installed."""


@dataclass(frozen=True, slots=True)
class Version:
    """What an object was when it was looked at: a later read of anything else is an error.

    ``e_tag`` is the server's; without one, ``modified`` takes its place.
    """

    size: int
    e_tag: str | None
    modified: datetime | None


@dataclass(slots=True)
class Counts:
    """Of a client so far: requests that were sent, those that were repeated, and the bytes of all answers."""

    requests: int = 0
    retries: int = 0
    size: int = 0


class Client:
    """The objects in a folder.

    Args:
        deadline_s: of each call, with all its attempts.
        has_checksums: what is read is compared with checksums. Only then may an ETag differ from that of the version.
    """

    def __init__(self, address: Address, *, deadline_s: float, has_checksums: bool = True) -> None:
        self.address = address
        self._has_checksums = has_checksums
        self.counts = Counts()
        self._deadline_s = deadline_s
        self._store: ObjectStore | None = None
        # A server may tell other tags at HEAD than at GET, or servers behind one name may differ.
        self._trusts_tags = True

    # From any thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that carries out all requests of this process."""
        return _loop()

    def start(self) -> None:
        """Start the threads of all requests of this process. Otherwise the first request does, and at a limit of
        processes it could not. Raises RuntimeError.
        """
        try:
            self.run(_look_locally())
        except BaseException as error:
            # A panic of Rust is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise RuntimeError(str(error)) from error
        asyncio.run_coroutine_threadsafe(_keep_resolver(), _loop())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Carry out ``work`` in the event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, _loop()).result()

    def spawn(self, work: Coroutine[Any, Any, Result], done: Callable[[Result | None], None]) -> Callable[[], None]:
        """Begin ``work`` in the event loop; ``done`` gets its result, or None if it was cancelled or raised.

        Returns a function that cancels it.
        """
        future = asyncio.run_coroutine_threadsafe(work, _loop())

        def over(of: "concurrent.futures.Future[Result]") -> None:
            if not of.cancelled() and (error := of.exception()) is not None:
                log.error("a bug in redoxfs: please report it", exc_info=error)
                done(None)
            else:
                done(None if of.cancelled() else of.result())

        def cancel() -> None:
            future.cancel()

        future.add_done_callback(over)
        return cancel

    # In the event loop

    async def get(self, name: str, begin: int, end: int, version: Version) -> "Bytes":
        """The bytes from ``begin`` to ``end`` of an object. Raises ObjectError."""
        where = self.address.of(name)
        if not self._trusts_tags and version.modified is not None:
            version = Version(version.size, None, version.modified)

        async def attempt() -> "Bytes":
            options: dict[str, Any] = {"range": (begin, end)}
            # A weak tag never matches.
            if version.e_tag is not None and not version.e_tag.startswith("W/"):
                options["if_match"] = version.e_tag
            elif version.e_tag is None and version.modified is not None:
                options["if_unmodified_since"] = version.modified
            result = await obstore().get_async(self.store, name, options=options)
            # A server may ignore conditions.
            _must_be(version, result.meta, where)
            if tuple(result.range) != (begin, end):
                raise ObjectError(5, f"{where}: the server sent another range than requested", lasts=False)
            data: Bytes = await result.bytes_async()
            self.counts.size += len(data)
            if len(data) != end - begin:
                raise ObjectError(5, f"{where}: the server sent {len(data):,} of {end - begin:,} bytes", lasts=False)
            return data

        try:
            return await self._repeated(attempt, where)
        except ObjectError as error:
            if error.errno != ESTALE or version.e_tag is None or version.modified is None or not self._has_checksums:
                raise
            now = await self.head(name)
            if (now.size, now.modified) != (version.size, version.modified):
                raise
        if self._trusts_tags:
            log.warning("%s: its ETag differs between answers, so its length and time, and checksums, count", where)
            self._trusts_tags = False
        return await self.get(name, begin, end, version)

    async def head(self, name: str) -> Version:
        """What an object is now. Raises ObjectError."""

        async def attempt() -> Version:
            meta = await obstore().head_async(self.store, name)
            return _version(meta)

        return await self._repeated(attempt, self.address.of(name))

    async def get_small(self, name: str, most_bytes: int) -> tuple[bytes, Version]:
        """A whole object, and what it is. Raises ObjectError; EFBIG if it is longer than ``most_bytes``."""
        where = self.address.of(name)

        async def attempt() -> tuple[bytes, Version]:
            result = await obstore().get_async(self.store, name)
            version = _version(result.meta)
            if version.size > most_bytes:
                raise ObjectError(27, f"{where}: is longer than {most_bytes:,} bytes", lasts=True)
            data = bytes(await result.bytes_async())
            self.counts.size += len(data)
            if len(data) != version.size:
                raise ObjectError(5, f"{where}: the server sent {len(data):,} of {version.size:,} bytes", lasts=False)
            return data, version

        return await self._repeated(attempt, where)

    @property
    def store(self) -> "ObjectStore":
        """obstore's own client, made at the first use. Raises ObjectError, whose text names a wrong setting."""
        if self._store is None:
            self._store = open_store(self.address, self._deadline_s, {"max_retries": 0})
        return self._store

    async def listed(self, folder: str) -> tuple[list[str], list[str]]:
        """The objects right in a folder, and the folders, by their whole names. Raises ObjectError."""

        async def attempt() -> tuple[list[str], list[str]]:
            found = await obstore().list_with_delimiter_async(self.store, folder or None)
            return [entry["path"] for entry in found["objects"]], found["common_prefixes"]

        return await self._repeated(attempt, self.address.of(folder), is_one=False)

    async def _repeated(self, attempt: Callable[[], Awaitable[Result]], where: str, *, is_one: bool = True) -> Result:
        """``is_one``: an attempt is one request. A list has one for each thousand names, each with its own time."""
        clock = asyncio.get_running_loop().time
        until, pause_s = clock() + self._deadline_s, FIRST_PAUSE_S
        failure: ObjectError | None = None
        while True:
            self.counts.requests += 1
            self.counts.retries += failure is not None
            try:
                # Half of the time at most: a slow connection leaves some for another.
                async with asyncio.timeout(max((until - clock()) / 2, 1.0) if is_one else None):
                    return await attempt()
            except Exception as error:
                failure = described(error, where)
            wait_s = random.uniform(0, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if failure.lasts or clock() + wait_s >= until:
                raise failure
            await asyncio.sleep(wait_s)


def obstore() -> Any:
    """The module. Raises NoObstoreError."""
    try:
        import obstore as module
    except ImportError:
        raise NoObstoreError(MISSING) from None
    return module


def _version(meta: Any) -> Version:
    modified = meta["last_modified"]
    # Of a server that does not say.
    return Version(meta["size"], meta["e_tag"], None if modified is None or modified.timestamp() <= 0 else modified)


def _must_be(version: Version, meta: Any, where: str) -> None:
    now = _version(meta)
    if version.e_tag is None:
        now = Version(now.size, None, now.modified)
    else:
        now = Version(now.size, now.e_tag, version.modified)
    if now != version:
        raise changed(where)


def open_store(address: Address, deadline_s: float, retries: Any) -> "ObjectStore":
    """obstore's client of a folder. ``deadline_s``: of one attempt; ``retries``: what obstore does by itself.

    Raises ObjectError, NoObstoreError.
    """
    obstore()
    from obstore.store import from_url

    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(CONNECT_S, deadline_s)),
        "read_timeout": timedelta(seconds=min(SILENCE_S, deadline_s)),
        "timeout": timedelta(seconds=deadline_s),
        # Requests in flight must not share one connection's bandwidth.
        "http1_only": True,
    }
    settings: dict[str, Any] = {}
    try:
        if address.scheme == "s3":
            settings = aws_settings(os.environ)
            _check_headers()
        endpoint = _endpoint(address.scheme, settings)
        if endpoint.startswith("http://"):
            _check_plain(address, endpoint)
        # Whoever names a server without TLS means it.
        if address.scheme == "http" or endpoint.startswith("http://"):
            options["allow_http"] = True
        if address.scheme in _OWN_HOSTS:
            options |= _only_to(address.scheme, endpoint)
        if address.scheme in ("http", "https"):
            from obstore.store import HTTPStore

            # `from_url` would take some hosts for a cloud's, whose own protocol needs credentials.
            store: ObjectStore = HTTPStore.from_url(address.url, client_options=options, retry_config=retries)
        else:
            store = from_url(address.url, client_options=options, retry_config=retries, **settings)
    except (ObjectError, NoObstoreError):
        raise
    except ProfileError as error:
        raise ObjectError(22, str(error), lasts=True) from None
    except Exception as error:
        raise ObjectError(22, f"{address}: {_setting_of(error)}", lasts=True) from None
    return store


_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def _endpoint(scheme: str, settings: dict[str, Any]) -> str:
    """The server that the environment or a profile names; empty if none does. Raises ObjectError."""
    named = [(name, os.environ[name]) for name in _ENDPOINTS.get(scheme, ()) if os.environ.get(name)]
    name, server = [*named, ("endpoint_url of the profile", str(settings.get("endpoint", "")))][0]
    if server and not _is_server(server):
        raise ObjectError(22, f"{name} is no address of a server; write https://HOST or http://HOST:PORT", lasts=True)
    return server


def _is_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_name = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        return False
    # The client takes no HTTP:// for http://, and panics at an ä.
    return is_name and re.fullmatch("https?://[!-~]+", text) is not None


_IN_HEADERS = ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Variables that are sent as they are. obstore panics at what no header may have."""


def _check_headers() -> None:
    """Raise ObjectError if a variable has a line break, as one that was read from a file may."""
    for name in _IN_HEADERS:
        if not os.environ.get(name, "").isprintable():
            raise ObjectError(22, f"{name} has a line break or another control character in it", lasts=True)


_ALLOWS_PLAIN = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""By scheme: the variable that allows a server without TLS. Other programs with the same libraries read it too."""

_OWN_HOSTS = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "api.aws", "amazonwebservices.com.cn"),
    "gs": ("googleapis.com", "metadata.google.internal", "metadata"),
    "az": ("windows.net", "azure.com", "microsoftonline.com", "microsoftonline.us", "usgovcloudapi.net", "azure.us"),
}
"""By scheme: the domains that requests with credentials may go to, besides the server that was named."""

_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23")
"""Services of a machine or a pod that give out credentials."""

_NAMES_SERVER = (
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL_STS", "GOOGLE_SERVICE_ACCOUNT_TOKEN_URI"),
    *("GCE_METADATA_HOST", "METADATA_IP", "GCE_METADATA_ROOT", "AZURE_AUTHORITY_HOST", "IDENTITY_ENDPOINT"),
    *("MSI_ENDPOINT",),
)
"""Variables that name a service that gives out credentials."""

_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")

NOBODY = "http://127.0.0.1:0"
"""The address of a proxy that does not exist: nobody can listen at port 0."""


def _only_to(scheme: str, endpoint: str) -> dict[str, Any]:
    """Options that let requests go to the servers of the store alone.

    obstore follows redirects, and sends the session token of S3 and the like with them to any server. It cannot be told
    not to. So all other hosts are behind a proxy that does not exist. Where a real proxy is set, that one decides.
    """
    if any(os.environ.get(name) for name in _PROXIES):
        return {}
    named = [endpoint, *(os.environ.get(name, "") for name in _NAMES_SERVER)]
    hosts = [urlsplit(text if "://" in text else f"//{text}").hostname for text in named if text]
    allowed = [*_OWN_HOSTS[scheme], *_METADATA_HOSTS, *(host for host in hosts if host)]
    return {"proxy_url": NOBODY, "proxy_excludes": ",".join(allowed)}


def _check_plain(address: Address, endpoint: str) -> None:
    """Raise ObjectError unless plaintext to a server stays on this machine, or is allowed."""
    host = urlsplit(endpoint).hostname or ""
    is_local = host == "localhost"
    with suppress(ValueError):
        is_local = is_local or ipaddress.ip_address(host).is_loopback
    word = _ALLOWS_PLAIN[address.scheme]
    if not is_local and os.environ.get(word, "").lower() not in ("1", "true", "yes"):
        raise ObjectError(
            22,
            f"{address}: the server at {host} is without TLS, so whoever is on the way can read the data and use what "
            f"proves the keys; if you trust that network: {word}=true",
            lasts=True,
        )


def _setting_of(error: Exception) -> str:
    """What is wrong with the environment. obstore's text may quote a value of it, so only known ones are passed on."""
    text = str(error)
    if "Account must be specified" in text:
        return "the storage account is not known (AZURE_STORAGE_ACCOUNT_NAME)"
    return "the settings in the environment cannot be used"


async def _look_locally() -> None:
    """A request of obstore that needs all of its threads, those that look up names among them, and no network."""
    module = obstore()
    from obstore.store import LocalStore

    with suppress(FileNotFoundError):
        await module.head_async(LocalStore("/proc"), "version")


async def _keep_resolver() -> None:
    """Let obstore keep a thread that looks up names: at a limit of processes it could start none again."""
    while True:
        await asyncio.sleep(RESOLVER_S)
        with suppress(Exception):
            await _look_locally()


_lock = threading.Lock()
_running: asyncio.AbstractEventLoop | None = None


class RunningLoop(asyncio.SelectorEventLoop):
    """An event loop whose deadlines are of time in which the process ran (`RunningTime`)."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._running_time = RunningTime(clock_s)
        super().__init__(_TickingSelector())

    def time(self) -> float:
        return self._running_time.now()


class _TickingSelector(selectors.EpollSelector):
    """Returns early, so that the loop looks at its clock."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout if timeout is None else min(timeout, TICK_S))


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process."""
    global _running
    with _lock:
        if _running is None:
            loop = RunningLoop()
            thread = threading.Thread(target=loop.run_forever, name="redoxfs-objects", daemon=True)
            thread.start()
            _running = loop
            atexit.register(_end, loop, thread)
        return _running


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Cancel all requests before the interpreter ends, since obstore's threads would call it afterwards."""

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()

    with suppress(RuntimeError):
        asyncio.run_coroutine_threadsafe(cancel_all(), loop)
    thread.join(END_S)
    # A thread of obstore that still holds something of the interpreter's lets go of it now. One that did so while the
    # interpreter ends would abort the process.
    time.sleep(SETTLE_S)
