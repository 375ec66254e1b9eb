"""Writes to a folder in an object store: whole objects, and large ones in parts.

Only `redoxfs pack` writes. It has no deadline for the whole of an upload; obstore repeats each part, with pauses, until
`RETRY_S` are over. A store shows an object only when it is complete.

Any thread may call anything here. Errors are `ObjectError`. Ctrl-C ends all but `put_parts`, which only a process that
can be ended should call.
"""

import errno
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from redoxfs.objects.address import Address
from redoxfs.objects.client import Client, Version, obstore, open_store
from redoxfs.objects.errors import ObjectError, described

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 16 << 20
"""The length of a part. A store takes up to 10,000 of them, so an object may have 160 GB."""

PARTS_IN_FLIGHT = 4
"""Of one upload: 64 MiB of memory."""

RETRY_S = 180.0

Result = TypeVar("Result")


class Writer:
    """The objects in a folder. ``timeout_s``: the deadline of a read, and of one attempt to write."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._client = Client(address, deadline_s=timeout_s)
        self._timeout_s = timeout_s
        self._opened: ObjectStore | None = None

    @property
    def _store(self) -> "ObjectStore":
        if self._opened is None:
            retries = {"max_retries": 30, "retry_timeout": timedelta(seconds=RETRY_S)}
            self._opened = open_store(self.address, self._timeout_s, retries)
        return self._opened

    def put(self, name: str, data: bytes | Path) -> None:
        """Write an object, or replace it."""
        self._run(name, self._put(name, data, chunk_size=PART_BYTES))

    def put_parts(self, name: str, parts: Iterator[bytes]) -> str | None:
        """Write an object of the bytes that ``parts`` yields. Returns its ETag. Raises what ``parts`` raises."""
        raised: list[BaseException] = []

        def watched() -> Iterator[bytes]:
            try:
                yield from parts
            except BaseException as error:
                raised.append(error)
                raise

        try:
            result = self._call(
                name,
                lambda: obstore().put(
                    self._store,
                    name,
                    watched(),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                ),
            )
        except ObjectError:
            if raised:
                raise raised[0] from None
            raise
        return result["e_tag"]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a new object. False if there is one; a store that cannot tell replaces it."""
        try:
            self._run(name, self._put(name, data, mode="create"))
        except ObjectError as error:
            if error.errno == errno.EEXIST:
                return False
            if error.errno != errno.EOPNOTSUPP:
                raise
            self.put(name, data)
        return True

    def read_if_there(self, name: str, most_bytes: int) -> bytes | None:
        """An object; None if there is none."""
        try:
            data, _ = self._client.run(self._client.get_small(name, most_bytes))
        except ObjectError as error:
            if error.errno == errno.ENOENT and "NoSuchBucket" not in str(error):
                return None
            raise
        return data

    def version_of(self, name: str) -> Version | None:
        """What an object is; None if there is none."""
        try:
            return self._client.run(self._client.head(name))
        except ObjectError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def names(self, below: str | None = None, *, most: int | None = None) -> list[str]:
        """The objects in the folder, or below one in it."""

        async def listed() -> list[str]:
            found: list[str] = []
            async for batch in obstore().list(self._store, below, chunk_size=1000 if most is None else most):
                # Consoles make an object of the folder itself.
                found += [entry["path"] for entry in batch if entry["path"]]
                if most is not None and len(found) >= most:
                    break
            return found

        return self._run(below or "", listed())

    def delete_below(self, folder: str) -> None:
        """Remove all objects below a folder."""
        names = self.names(folder)

        async def deleted() -> None:
            await obstore().delete_async(self._store, names)

        if names:
            self._run(folder, deleted())

    async def _put(self, name: str, data: bytes | Path, **options: Any) -> None:
        await obstore().put_async(self._store, name, data, **options)

    def _run(self, name: str, work: Coroutine[Any, Any, Result]) -> Result:
        return self._call(name, lambda: self._client.run(work))

    def _call(self, name: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:
            raise described(error, self.address.of(name)) from None
