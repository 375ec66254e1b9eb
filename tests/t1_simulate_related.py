"""Related systems in the simulator: each on a case small enough to count by hand."""

import json
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from related import SYSTEMS, Epoch, Row, Setting, compare, report
from related.caches import coordl, locality_aware, nopfs, page_cache
from related.epoch import Orders, System, in_step
from related.page import page
from related.shuffles import (
    EXCHANGED,
    buffered,
    canonical_nodes,
    deepio,
    diesel,
    diesel_chunk,
    most_in_use,
    partial_shuffle,
    py1br,
    py1e,
    py1e_default,
    shuffled_py1br,
    shuffled_py1e,
    webdataset,
    webdataset_memory,
)
from related.substitutes import MostImportant, drawn_by_weight, hits_first, quiver, shade

from redoxfs.chunks import StorageSpeed
from redoxfs.simulate.orders import orders
from redoxfs.simulate.policies import Dataset, measure

pytestmark = pytest.mark.slow

Int32 = npt.NDArray[np.int32]

SPEED = StorageSpeed(seek_s=0.02, bytes_per_s=380e6)
SMALL = Setting(files=6_000, nodes=3, resident=0.25, chunk_size=16, classes=10)


def samples(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def asked(*epochs: Sequence[Sequence[int]]) -> Orders:
    """Orders of the epochs given, each a list for each node."""
    return lambda epoch: [samples(*order) for order in epochs[epoch]]


def drawn(setting: Setting) -> Orders:
    return lambda epoch: orders(setting.files, setting.nodes, seed=setting.seed, epoch=epoch)


def run(system: System, setting: Setting, dealt: Orders, epochs: int) -> list[Epoch]:
    return list(islice(system(setting, dealt), epochs))


def of_node(epoch: Epoch, node: int) -> list[int]:
    return epoch.served[epoch.node == node].tolist()


def test_nodes_advance_in_step_and_the_longest_goes_on_alone() -> None:
    served, node = in_step([samples(0, 1, 2), samples(5)])
    assert served.tolist() == [0, 5, 1, 2]
    assert node.tolist() == [0, 1, 0, 0]


def test_a_page_cache_evicts_the_least_recently_used() -> None:
    setting = Setting(files=4, nodes=1, resident=0.5)
    # {2, 3} after the first epoch. 3 hits and is the newer one, so 0 evicts 2, 2 evicts 3, and 1 evicts 0.
    # Then 1 and 2 hit, and 0 and 3 miss.
    dealt = asked([[0, 1, 2, 3]], [[3, 0, 2, 1]], [[1, 2, 0, 3]])
    found = run(page_cache, setting, dealt, 3)
    assert [epoch.file_reads for epoch in found] == [4, 3, 2]
    assert [epoch.peak for epoch in found] == [2, 2, 2]
    assert found[1].served.tolist() == [3, 0, 2, 1]


def test_nodes_have_page_caches_of_their_own() -> None:
    setting = Setting(files=4, nodes=2, resident=1.0)
    # Each holds two. The second epoch gives node 0 one of its own, 1, and node 1 one, 3.
    found = run(page_cache, setting, asked([[0, 1], [2, 3]], [[1, 2], [3, 0]]), 2)
    assert [epoch.file_reads for epoch in found] == [4, 2]
    assert sum(epoch.remote_samples for epoch in found) == 0


def test_coordl_keeps_what_came_first_and_asks_other_nodes() -> None:
    setting = Setting(files=4, nodes=2, resident=0.5)
    # Node 0 caches sample 0, node 1 sample 2.
    dealt = asked([[0, 1], [2, 3]], [[2, 1], [0, 3]], [[0, 3], [2, 1]])
    found = run(coordl, setting, dealt, 3)
    assert [epoch.file_reads for epoch in found] == [4, 2, 2]
    assert [epoch.remote_samples for epoch in found] == [0, 2, 0]
    assert found[2].peak == 2


def test_locality_aware_nodes_take_what_they_have() -> None:
    setting = Setting(files=4, nodes=2, resident=0.5, batch=2)
    # The global batch of the second epoch is 2, 0, 1, 3; node 0 has 0 in its cache, node 1 has 2.
    _, second = run(locality_aware, setting, asked([[0, 1], [2, 3]], [[2, 1], [0, 3]]), 2)
    assert (of_node(second, 0), of_node(second, 1)) == ([0, 1], [2, 3])
    assert (second.file_reads, second.remote_samples) == (2, 0)


def test_locality_aware_nodes_send_what_exceeds_their_part() -> None:
    setting = Setting(files=4, nodes=2, resident=1.0, batch=1)
    # All is cached: 0 and 1 on node 0, 2 and 3 on node 1. The global batches are 0, 1 and 2, 3.
    _, second = run(locality_aware, setting, asked([[0, 1], [2, 3]], [[0, 2], [1, 3]]), 2)
    assert (of_node(second, 0), of_node(second, 1)) == ([0, 3], [1, 2])
    assert (second.file_reads, second.remote_samples) == (0, 2)


def test_nopfs_caches_what_a_node_will_ask_for_most() -> None:
    setting = Setting(files=4, nodes=2, resident=0.5)
    # Node 0 will ask three times for 0, node 1 three times for 3. The last epoch changes them.
    dealt = asked([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1], [3, 2]], [[3, 1], [0, 2]])
    found = list(islice(nopfs(setting, dealt, epochs=3), 4))
    assert [epoch.file_reads for epoch in found] == [4, 2, 2, 2]
    assert [epoch.remote_samples for epoch in found] == [0, 0, 0, 2]
    assert found[0].peak == 2


def test_quiver_fills_a_batch_with_hits_then_misses() -> None:
    is_cached = np.isin(np.arange(6), [3, 5])
    # Of 0 to 3, sample 3 hits and 0 is read; of 1, 2, 4, 5 it is 5 and 1.
    assert hits_first(samples(0, 1, 2, 3, 4, 5), is_cached, batch=2, lookup=4).tolist() == [3, 0, 5, 1, 2, 4]


def test_quiver_reads_as_much_as_coordl_and_serves_each_once() -> None:
    found, same = run(quiver, SMALL, drawn(SMALL), 3), run(coordl, SMALL, drawn(SMALL), 3)
    for one, other in zip(found, same, strict=True):
        assert one.file_reads == other.file_reads
        assert np.array_equal(np.sort(one.served), np.arange(SMALL.files))
    assert found[1].served.tolist() != same[1].served.tolist()


def test_shade_keeps_the_most_important() -> None:
    weights = np.array([1.0, 3.0, 2.0])
    cache = MostImportant(1, 3)
    assert [cache.read(samples(sample), weights) for sample in (0, 1, 2, 1)] == [1, 1, 1, 0]
    assert cache.has.tolist() == [False, True, False]
    # Trained on again, sample 1 counts less than 2.
    weights[1] = 0.5
    cache.reweigh(samples(1), weights)
    assert cache.read(samples(2), weights) == 1
    assert cache.has.tolist() == [False, False, True]
    assert len(cache) == 1


def test_shade_draws_by_weight_and_serves_hits_first() -> None:
    random = np.random.default_rng(0)
    weights = np.array([0.0, 1.0, 0.0, 1.0])
    found = drawn_by_weight(weights, 4, np.isin(np.arange(4), [3]), random, most_frequent=False)
    hits = int((found == 3).sum())
    assert set(found.tolist()) <= {1, 3}
    assert found.tolist() == [3] * hits + [1] * (4 - hits)
    often = drawn_by_weight(np.array([1.0, 9e9]), 1, np.zeros(2, np.bool_), random, most_frequent=True)
    assert often.tolist() == [1]


def test_shade_repeats_samples_and_prefers_the_difficult() -> None:
    *_, last = run(shade, SMALL, drawn(SMALL), 4)
    times = np.bincount(last.served, minlength=SMALL.files)
    assert times.max() > 2
    assert 0 < np.count_nonzero(times) < SMALL.files
    assert last.file_reads < SMALL.files
    assert last.peak == SMALL.node_capacity * SMALL.nodes


def test_partial_shuffle_exchanges_a_share() -> None:
    setting = Setting(files=40, nodes=2, resident=0.5)
    before, after = run(partial_shuffle, setting, drawn(setting), 2)
    arrived = set(of_node(after, 0)) - set(of_node(before, 0))
    # The k-th samples of both nodes change places, or stay: two of twenty leave at most.
    assert before.remote_samples == 0
    assert 2 * len(arrived) == after.remote_samples <= 2 * round(EXCHANGED * 20)
    assert before.file_reads == 20
    assert 20 <= after.file_reads <= 20 + after.remote_samples
    assert (before.peak, after.peak) == (20, 20)


def test_partial_shuffle_on_one_node_sends_nothing() -> None:
    setting = Setting(files=40, nodes=1, resident=1.0)
    found = run(partial_shuffle, setting, drawn(setting), 2)
    assert [(epoch.remote_samples, epoch.file_reads) for epoch in found] == [(0, 0), (0, 0)]


def test_diesel_shuffles_groups_of_chunks_that_fit_the_memory() -> None:
    setting = Setting(files=8, nodes=1, resident=0.5, chunk_size=2)
    (epoch,) = run(diesel, setting, drawn(setting), 1)
    assert [len(set(half.tolist())) for half in np.split(epoch.served // 2, 2)] == [2, 2]
    assert (epoch.chunk_reads, epoch.chunk_samples, epoch.peak) == (4, 8, 4)


def test_diesel_chunk_by_chunk_keeps_files_of_a_chunk_together() -> None:
    setting = Setting(files=7, nodes=1, resident=0.5, chunk_size=2)
    (epoch,) = run(diesel_chunk, setting, drawn(setting), 1)
    chunks = (epoch.served // 2).tolist()
    assert sum(one != other for one, other in pairwise(chunks)) == 3
    assert (epoch.chunk_reads, epoch.chunk_samples, epoch.peak) == (4, 7, 2)


def test_deepio_serves_half_of_the_memory_and_fills_the_other() -> None:
    setting = Setting(files=8, nodes=1, resident=0.5, chunk_size=2)
    (epoch,) = run(deepio, setting, drawn(setting), 1)
    assert [len(set(pair.tolist())) for pair in np.split(epoch.served // 2, 4)] == [1] * 4
    assert (epoch.chunk_reads, epoch.peak) == (4, 4)


def test_samples_of_a_group_come_from_the_node_of_their_chunk() -> None:
    # Two chunks of one sample, one on each node: either both samples are at home or both travel.
    setting = Setting(files=2, nodes=2, resident=1.0, chunk_size=1)
    found = run(diesel, setting, drawn(setting), 50)
    assert {epoch.remote_samples for epoch in found} == {0, 2}


@pytest.mark.parametrize("held", [1, 2, 5, 100])
def test_a_buffer_delays_but_never_advances_beyond_its_size(held: int) -> None:
    stream = np.arange(50, dtype=np.int32)
    served = buffered(stream, held, np.random.default_rng(0))
    assert sorted(served.tolist()) == stream.tolist()
    # When the n-th comes out, at most n + held have gone in.
    assert (served - np.arange(50)).max() < held
    if held == 1:
        assert np.array_equal(served, stream)


def test_webdataset_deals_every_other_shard_to_each_of_two_nodes() -> None:
    setting = Setting(files=4 * 1024, nodes=2, resident=0.5)
    found = run(webdataset, setting, drawn(setting), 2)
    for epoch in found:
        assert np.array_equal(epoch.node, epoch.stored[epoch.served] % 2)
        assert (epoch.chunk_reads, epoch.chunk_samples, epoch.peak) == (4, setting.files, 2000)
    assert found[0].served.tolist() != found[1].served.tolist()
    (memory,) = run(webdataset_memory, setting, drawn(setting), 1)
    assert memory.peak == setting.files // 2


def test_webdataset_nodes_may_have_unequally_many() -> None:
    setting = Setting(files=3 * 1024, nodes=2, resident=0.5)
    (epoch,) = run(webdataset, setting, drawn(setting), 1)
    assert np.bincount(epoch.node).tolist() == [2048, 1024]


def test_canonical_nodes_cut_the_shard_at_their_border() -> None:
    parts = canonical_nodes(Setting(files=12, nodes=2), 4)
    assert [sum(end - begin for begin, end in part) for part in parts] == [6, 6]
    assert sorted(end - begin for part in parts for begin, end in part) == [2, 2, 4, 4]
    assert sorted(sample for part in parts for block in part for sample in range(*block)) == list(range(12))


def test_a_shard_is_in_use_from_its_first_sample_to_its_last() -> None:
    # Shard 0 of three samples and shard 1 of two overlap; shard 2 comes alone.
    assert most_in_use(samples(0, 0, 1, 0, 1, 2), np.array([3, 2, 1])) == 5
    assert most_in_use(samples(0, 0, 1, 1), np.array([2, 2])) == 2


def test_py1e_moves_a_sample_by_half_a_block_at_most() -> None:
    random = np.random.default_rng(0)
    served = shuffled_py1e([(first, first + 10) for first in range(0, 1000, 10)], 100, random)
    assert sorted(served.tolist()) == list(range(1000))
    moved = np.abs(served - np.arange(1000))
    # A block has up to 5/4 of 100 samples. A sample's place in its shard is random too.
    assert 40 < moved.max() <= (125 - 10) / 2 + 2 * 10
    # A block shorter than a shard moves nothing out of it.
    alone = shuffled_py1e([(0, 10), (10, 20)], 4, random)
    assert sorted(alone[:10].tolist()) == list(range(10))
    assert alone.tolist() != list(range(20))


def test_py1br_shuffles_within_blocks() -> None:
    random = np.random.default_rng(0)
    served = shuffled_py1br([(first, first + 10) for first in range(0, 1000, 10)], 100, random)
    assert sorted(served.tolist()) == list(range(1000))
    # No sample crosses the border of two blocks: 75 to 125 samples, of which the first is cut.
    borders = [at for at in range(1, 1000) if max(served[:at]) < min(served[at:])]
    assert 7 <= len(borders) <= 15
    assert np.diff([0, *borders, 1000]).max() <= 125


def test_streaming_reads_each_shard_once_and_a_cut_one_twice() -> None:
    setting = Setting(files=1_278, nodes=2, resident=1.0)
    # Two shards of 639 samples: one for each node.
    for system in (py1e, py1br, py1e_default):
        (epoch,) = run(system, setting, drawn(setting), 1)
        assert (epoch.chunk_reads, epoch.chunk_samples, epoch.peak) == (2, 1_278, 1_278)
    # Of three shards, both nodes need the one in the middle.
    setting = Setting(files=3 * 639 - 1, nodes=2, resident=1.0)
    (epoch,) = run(py1e, setting, drawn(setting), 1)
    assert (epoch.chunk_reads, epoch.chunk_samples) == (4, setting.files + 639)


def test_redox_counts_as_the_policies_table() -> None:
    setting = Setting(files=6_000, nodes=3, resident=0.2, chunk_size=16, classes=10)
    dataset = Dataset(files=6_000, classes=10, chunk_size=16, resident=0.2)
    for name in ("slot", "pool"):
        counted = measure(name, dataset, nodes=3)
        warm = SYSTEMS[name].warm_epochs
        epoch = run(SYSTEMS[name].run, setting, drawn(setting), warm + 1)[-1]
        loads = round(counted.loads_per_chunk * counted.chunks)
        if name == "slot":
            assert epoch.chunk_reads == loads
            assert epoch.chunk_samples == round(counted.read_amplification * 6_000)
        else:
            # Parts of a chunk that are far from each other are several reads.
            assert epoch.chunk_reads >= loads
            assert epoch.chunk_samples == round(counted.read_amplification_packed * 6_000)
        assert epoch.messages == round(counted.messages_per_request * 6_000)
        assert epoch.peak >= round(counted.resident_share * 6_000)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(compare(SMALL, SPEED))


def test_each_system_has_a_row(rows: list[Row]) -> None:
    assert tuple(row.system for row in rows) == tuple(SYSTEMS)
    assert [row.system for row in rows if not row.exactly_once] == ["shade"]
    for row in rows:
        assert (row.displacement is None) == (row.rank_correlation is None) == (not row.exactly_once)
        assert (row.seen_share == 1) == row.exactly_once
        assert row.storage_s == pytest.approx(
            (row.file_reads + row.chunk_reads) * 0.02 + (row.file_bytes + row.chunk_bytes) / 380e6
        )


def test_caches_of_a_quarter_save_a_quarter_of_the_reads(rows: list[Row]) -> None:
    by_name = {row.system: row for row in rows}
    for name in ("coordl", "locality-aware", "quiver"):
        assert by_name[name].file_reads == SMALL.files * 3 // 4
        assert by_name[name].peak_share == 0.25
    assert by_name["nopfs"].file_reads == pytest.approx(SMALL.files * 3 / 4, rel=0.02)
    assert by_name["pytorch"].file_reads > by_name["coordl"].file_reads
    assert by_name["locality-aware"].sent_samples < by_name["coordl"].sent_samples / 10


def test_shuffles_differ_where_they_are_known_to(rows: list[Row]) -> None:
    mates = {row.system: row.mate_pairs / row.mate_pairs_if_random for row in rows}
    assert mates["pytorch"] == pytest.approx(1, abs=0.1)
    assert mates["pytorch"] < mates["slot"] < mates["diesel"] < mates["deepio"] < mates["diesel-chunk"]
    same = {row.system: row.same_node_share for row in rows}
    assert same["pytorch"] == pytest.approx(1 / 3, abs=0.03)
    assert same["partial-shuffle"] == pytest.approx(1 - EXCHANGED * 2 / 3, abs=0.02)
    assert same["webdataset"] == same["py1e"] == 1


def test_one_node_sends_nothing() -> None:
    setting = Setting(files=2_000, nodes=1, resident=0.25, chunk_size=16, classes=10)
    for row in compare(setting, SPEED):
        assert (row.messages, row.sent_samples) == (0, 0)
        assert row.exactly_once == (row.system != "shade")
        assert row.same_node_share in (1, None)


def test_the_page_has_the_figures_of_the_report(rows: list[Row]) -> None:
    told = json.loads(json.dumps(report(SMALL, SPEED, rows)))
    text = page(told)
    coordl_row = next(row for row in rows if row.system == "coordl")
    assert f"| CoorDL | {coordl_row.file_reads:,} | 0 |" in text
    assert "25.0% by CoorDL" in text
    assert "1.61 h under PyTorch, 1.40 h under CoorDL and 0.71 h under Redox, 2.27 and 1.97 times less" in text
    assert "| no: " in text
    # A run of fewer systems has fewer comparisons.
    few = page({**told, "rows": [row for row in told["rows"] if row["system"] == "pool"]})
    assert "redoxfs pool" in few
    assert "§5.3" not in few


def test_the_page_in_the_documentation_is_of_the_paper_s_scale() -> None:
    kept = json.loads((Path(__file__).parents[1] / "docs/evaluation/related.json").read_text())
    assert (kept["files"], kept["nodes"], kept["resident"]) == (1_279_998, 3, 0.25)
    assert [row["system"] for row in kept["rows"]] == list(SYSTEMS)
    assert "# Related systems" in page(kept)
