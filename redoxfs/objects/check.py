"""`redoxfs verify` of an address: every byte of every shard is fetched once, in order, and compared with the index."""

from collections.abc import Callable

from redoxfs.objects.address import Address
from redoxfs.objects.client import Client, Version
from redoxfs.objects.errors import ObjectError
from redoxfs.objects.index import Fetched, load
from redoxfs.objects.window import Window
from redoxfs.objects.writer import Writer
from redoxfs.packed.index import Index
from redoxfs.packed.shard import ShardMap, check_bytes
from redoxfs.packed.verifying import Verified, verified
from redoxfs.packed.workers import Done, Tally, Work, each_shard


def verify(
    address: Address,
    fetched: Fetched,
    *,
    jobs: int,
    timeout_s: float,
    on_progress: Callable[[Done, int], None] = lambda _done, _size: None,
) -> Verified:
    """As `redoxfs.packed.verifying`, of an index that was fetched."""
    index = load(fetched)
    tree, names = index.catalog.tree, index.positions.shard_names
    size = int(tree.size[tree.kind_mask(0o100000)].sum())
    work = Work(_prepare, (address, fetched, timeout_s), _carry_out)
    problems = dict(each_shard(work, range(len(names)), jobs, lambda done: on_progress(done, size)))
    return verified(index, problems, _tars(address, timeout_s))


def _tars(address: Address, timeout_s: float) -> list[str]:
    """The shards that are there, as far as the store lists them."""
    if address.is_read_only:
        return []
    try:
        return [name for name in Writer(address, timeout_s).names() if name.endswith(".tar") and "/" not in name]
    except ObjectError:
        # To list a bucket takes a permission of its own.
        return []


_State = tuple[Index, ShardMap, Client, tuple[Version, ...]]


def _prepare(argument: tuple[Address, Fetched, float]) -> _State:
    address, fetched, timeout_s = argument
    index = load(fetched)
    shards = ShardMap.of(index.catalog.tree, index.positions)
    return index, shards, Client(address, deadline_s=timeout_s), fetched.versions


def _carry_out(state: _State, shard: int, tally: Tally) -> list[str]:
    index, shards, client, versions = state
    name = index.positions.shard_names[shard]
    sums = index.sums[shards.blocks(shard)]
    window = Window(client, name, versions[shard])
    try:
        return check_bytes(
            shards, shard, versions[shard].size, window.read, sums, progress=tally.add, stopping=tally.stopping
        )
    except ObjectError as error:
        return [f"{name}: {error.strerror}"]
    finally:
        window.close()
