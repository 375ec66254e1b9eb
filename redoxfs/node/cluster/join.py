"""Bringing the nodes together before the kernel hears of the mount."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from redoxfs.node.cluster.views import ClusterConfig, Membership
from redoxfs.node.node import Node
from redoxfs.node.state import StateWriter
from redoxfs.peers import JoinTimeoutError, RefusedError


class JoinError(Exception):
    """The nodes do not come together: one line."""


@asynccontextmanager
async def joined(
    node: Node,
    config: ClusterConfig,
    state: StateWriter,
    *,
    timeout_s: float,
    past: tuple[Mapping[str, Any], Sequence[int]] | None = None,
) -> AsyncIterator[Membership]:
    """This node's membership, once all nodes have answered. From then on they may ask this node.

    Args:
        past: the place of the process that this one continues, and `Recovered.turned`. Nothing is awaited then.

    Raises:
        JoinError: they do not come together.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        membership = Membership(node, config, state, nursery, timeout_s=timeout_s)
        try:
            try:
                if past is None:
                    await membership.start()
                else:
                    await membership.take_over(*past)
            except OSError as error:
                raise JoinError(error.strerror or str(error)) from error
            except (ValueError, RefusedError, JoinTimeoutError) as error:
                raise JoinError(str(error)) from error
            yield membership
        except trio.Cancelled:
            raise
        except BaseException as error:
            # Raised below as it is, not in the group that the nursery would make of it.
            failure = error
        finally:
            membership.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
