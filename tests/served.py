"""The session in C over a node, served on a `wire.Device` as it is on /dev/fuse."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from reference import Mounted, stats
from wire import Device

from redoxfs.dataset import Catalog
from redoxfs.dataset.columns import native_tree
from redoxfs.fs.operations import Operations
from redoxfs.fs.page_cache import PageCache
from redoxfs.fs.relay import Relay
from redoxfs.fs.requests import KernelCaches, Requests
from redoxfs.native import Session


@asynccontextmanager
async def serving(mounted: Mounted, device: Device) -> AsyncIterator[Catalog]:
    """Answer the requests on ``device`` until the block ends."""
    caches = KernelCaches()
    with mounted.scanned() as (catalog, root_fd):
        async with mounted.node(catalog, root_fd, caches) as node:
            relay = Relay(Operations(catalog.tree, node, stats=stats))
            session = Session(
                device.fd,
                relay.fd,
                native_tree(catalog),
                max_read=1 << 20,
                helpers=mounted.helpers,
            )
            caches.attach(session)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(relay.run)
                    nursery.start_soon(Requests(node, session, lambda: None, PageCache(mounted.direct_io)).run, 1.0)
                    yield catalog
                    nursery.cancel_scope.cancel()
            finally:
                session.close()
                relay.close()
