"""Prints the dashboard for Grafana: scripts/grafana writes it to mount/grafana/redoxfs.json.

Rows are in the order of the questions of somebody on call: is it up, is it fast, do programs wait, and why.
"""

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    statetimeline,
    table,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_panels import (
    BY_MOUNT,
    EACH_S,
    GREEN,
    MOUNT,
    OF_TARGET,
    OF_UP,
    PROMETHEUS,
    RED,
    WAITED,
    WIDTH,
    YELLOW,
    coloured,
    from_storage,
    graph,
    instant,
    lettered,
    number,
    quantile,
    query,
    rate,
    share,
    thresholds,
    times,
    total,
    value,
    variable,
)

TITLE, UID = "redoxfs", "redoxfs-mounts"


def up(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Is it up?"))
    is_down = [
        f"(sum(redoxfs_up{{{OF_UP}}} == bool 0) or vector(0))",
        f"(sum(up{{{OF_TARGET}}} == bool 0) or vector(0))",
    ]
    for panel in (
        number(
            "Mounts up",
            "Mounts whose daemon answered the last scrape.",
            units.Short,
            f"sum(redoxfs_up{{{OF_UP}}})",
            (None, RED),
            (1, GREEN),
        ),
        number(
            "Down",
            "Daemons that did not answer `redoxfs metrics`, and targets that Prometheus could not scrape: a mount with "
            "--metrics is a target of its own. A mount that was unmounted is not down.",
            units.Short,
            " + ".join(is_down),
            (None, GREEN),
            (1, RED),
        ),
        number("Opens", "Opens of files in a second.", units.OpsPerSecond, total("opens_total")),
        number(
            "To programs",
            "Bytes that programs read through the mounts in a second.",
            units.BytesPerSecondIEC,
            total("served_bytes_total"),
        ),
        number(
            "Opens that waited",
            "The share of opens whose bytes were not in memory yet, so that they waited for storage or for another "
            "node. An open that waits costs a worker time. It costs the training nothing while other workers keep "
            "the device busy.",
            units.PercentUnit,
            share(
                total("open_duration_seconds_count", f'outcome=~"{WAITED}"'),
                total("open_duration_seconds_count"),
            ),
            (None, GREEN),
            (0.3, YELLOW),
            (0.6, RED),
            decimals=1,
        ),
        number(
            "p99 of opens",
            "From the receipt of an open to its reply. Buckets are powers of two, so the time is approximate.",
            units.Seconds,
            quantile(0.99, "open_duration_seconds"),
        ),
        number(
            "Errors, last hour",
            "Opens, and reads from storage, that failed in the last hour.",
            units.Short,
            f"sum(increase({value('errors_total')}[1h]))",
            (None, GREEN),
            (1, RED),
            decimals=0,
        ),
        number(
            "Restarts, last day",
            "How often a keeper started another daemon in the last 24 hours, because the former one died, or for "
            "redoxfs restart.",
            units.Short,
            f"sum(increase({value('restarts_total')}[1d]))",
            (None, GREEN),
            (1, YELLOW),
            decimals=0,
        ),
    ):
        builder.with_panel(panel)
    builder.with_panel(
        statetimeline.Panel()
        .title("Daemons that answer")
        .description("Whether the daemon of each mount answered. A gap: nothing was scraped, or nothing was mounted.")
        .datasource(PROMETHEUS)
        .targets([*lettered([query(f"max by ({BY_MOUNT}) (redoxfs_up{{{OF_UP}}})")])])
        .mappings(
            [
                ValueMap(
                    options={
                        "0": ValueMappingResult(text="down", color=RED, index=0),
                        "1": ValueMappingResult(text="up", color=GREEN, index=1),
                    }
                )
            ]
        )
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .thresholds(thresholds((None, RED), (1, GREEN)))
        .legend(common.VizLegendOptions().show_legend(False).display_mode(LegendDisplayMode.LIST))
        .fill_opacity(70)
        .span(WIDTH)
        .height(5)
    )
    builder.with_panel(mounts())


def mounts() -> table.Panel:
    """A line a mount: what it serves, and where it is in its laps."""
    columns = (
        ("Samples", units.Short, value("samples")),
        ("Classes", units.Short, value("classes")),
        ("Chunks", units.Short, value("chunks")),
        ("Samples a chunk", units.Short, value("chunk_size")),
        ("Nodes", units.Short, f"{value('nodes')} or {value('samples')} * 0 + 1"),
        ("Memory limit", units.BytesIEC, value("memory_limit_bytes")),
        ("Epochs", units.Short, share(value("turns_total"), value("samples"))),
        ("Open files", units.Short, value("open_files")),
        ("Changed files", units.Short, value("changed_files")),
        ("State file", units.DateTimeFromNow, f"{value('state_written_timestamp_seconds')} * 1000"),
    )
    queries = [
        instant(f"max by ({BY_MOUNT}, node) ({expression})").format(PromQueryFormat.TABLE)
        for _, _, expression in columns
    ]
    panel = (
        table.Panel()
        .title("Mounts")
        .description(
            "What each mount serves. Epochs: turns for each sample since the first lap began, so with several nodes "
            "the sum of all nodes counts. Changed files differ from the scan. State file: when the position was last "
            "written to it; empty without a state file."
        )
        .datasource(PROMETHEUS)
        .targets([*lettered(queries)])
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {"instance": 0, "mount": 1, "node": 2},
                    "renameByName": {
                        "instance": "Target",
                        "mount": "Mount",
                        "node": "Node",
                        **{f"Value #{chr(ord('A') + at)}": name for at, (name, _, _) in enumerate(columns)},
                    },
                },
            )
        )
        .span(WIDTH)
        .height(7)
    )
    for name, unit, _ in columns:
        panel.override_by_name(name, [DynamicConfigValue(id_val="unit", value=unit)])
    return panel.override_by_name("Epochs", [DynamicConfigValue(id_val="decimals", value=2)])


def fast(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Is it fast?"))
    for panel in (
        graph(
            "Opens of each mount",
            "Opens of files in a second.",
            units.OpsPerSecond,
            query(rate("opens_total")),
            width=8,
        ),
        graph(
            "Bytes to programs",
            "Bytes that programs read through the mount in a second. A read that the kernel answers from its own cache "
            "is not counted.",
            units.BytesPerSecondIEC,
            query(rate("served_bytes_total")),
            width=8,
        ),
        graph(
            "Bytes from storage",
            "Bytes that redoxfs read from storage in a second, without those of --cache.",
            units.BytesPerSecondIEC,
            query(from_storage()),
            width=8,
        ),
    ):
        builder.with_panel(panel)


def waits(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Do programs wait?"))
    everything = total("open_duration_seconds_count")
    for panel in (
        coloured(
            graph(
                "What opens waited for",
                "The share of opens by what they waited for. resident: nothing, the bytes were in memory. in_flight: a "
                "read in progress. demand: a read that the open started. remote: another node. direct: storage, since "
                "the file is not redirected. failed: the open failed.",
                units.PercentUnit,
                query(
                    f"{total('open_duration_seconds_count', by='outcome')} / on() group_left () ({everything} > 0)",
                    "{{outcome}}",
                ),
                is_stacked=True,
                most=1,
            )
        ),
        graph(
            "Programs that wait",
            "How many programs waited at once, on average: the sum of all waits of opens and reads in a second. It "
            "counts a wait when it ends. The lines `now` are opens and reads that wait at the moment of the scrape, "
            "so they also show waits that do not end.",
            units.Short,
            query(total("wait_seconds_total"), "average"),
            query(f"sum({value('waiting_opens')})", "opens now"),
            query(f"sum({value('waiting_reads')})", "reads now"),
        ),
        coloured(
            graph(
                "Half of the opens took at most",
                "The median time from the receipt of an open to its reply, by what it waited for.",
                units.Seconds,
                query(quantile(0.5, "open_duration_seconds", by="outcome"), "{{outcome}}"),
                width=8,
            )
        ),
        coloured(
            graph(
                "99 % of the opens took at most",
                "One open of a hundred took longer than this, by what it waited for.",
                units.Seconds,
                query(quantile(0.99, "open_duration_seconds", by="outcome"), "{{outcome}}"),
                width=8,
            )
        ),
        times(),
    ):
        builder.with_panel(panel)


def sources(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Where do samples come from?"))
    redirected, exact = total("opens_redirected_total", by=BY_MOUNT), total("opens_exact_total", by=BY_MOUNT)
    served = total("served_bytes_total", by=BY_MOUNT)
    for panel in (
        graph(
            "Samples into memory",
            "Samples in a second by their source. chunks: loads of chunks. from the cache: those of them that --cache "
            "had. read again: single reads from "
            "storage, because memory was short or the first read had failed. read alone: so that samples that stay in "
            "memory do not come early. other nodes: over the network. stayed: had their turn without a read. given "
            "back: were to stay, and made room for open files.",
            EACH_S,
            query(total("samples_loaded_total"), "chunks"),
            query(total("cache_read_samples_total"), "from the cache"),
            query(total("samples_reread_total"), "read again"),
            query(total("reads_alone_total"), "read alone"),
            query(total("remote_samples_total"), "other nodes"),
            query(total("reads_saved_total"), "stayed"),
            query(total("samples_given_back_total"), "given back"),
            width=8,
        ),
        graph(
            "Redirected opens",
            "The share of opens that redoxfs answered with another sample, of those that did not fail. In training it "
            "is near 1. Opens of labels, of files that are no samples, and below .redoxfs/exact get the file itself.",
            units.PercentUnit,
            query(share(redirected, f"({redirected} + {exact})")),
            most=1,
            width=8,
        ),
        graph(
            "Read amplification",
            "Bytes that the mount read from storage, for each byte that it served to programs. It is near 1 where each "
            "sample is read once for each time it is served. It is higher while memory fills, where samples are read "
            "again, where a node reads for others, and where programs read only a part of each file.",
            units.Short,
            query(share(from_storage(BY_MOUNT), served)),
            width=8,
        ),
        graph(
            "Passes",
            "Passes in a second. complete: all files of a class tree were opened. ended early: at least half of them. "
            "given twice: samples that a pass had to be given again, as it allowed no other.",
            EACH_S,
            query(total("passes_complete_total"), "complete"),
            query(total("passes_ended_early_total"), "ended early"),
            query(total("passes_given_twice_total"), "given twice"),
        ),
        graph(
            "Opens by programs that copy",
            "Opens in a second by programs that copy, compare or search. They got the files themselves, and took no "
            "turns.",
            units.OpsPerSecond,
            query(rate("opens_copied_total")),
        ),
        graph(
            "Loads of chunks",
            "Loads in a second, and how many are in flight at the scrape. on demand: opens that started a load. "
            "joined: opens that waited for a read already in progress.",
            units.Short,
            query(total("chunk_loads_total"), "loads/s"),
            query(total("demand_loads_total"), "on demand/s"),
            query(total("in_flight_waits_total"), "joined/s"),
            query(f"sum({value('loads_in_flight')})", "in flight"),
            width=8,
        ),
        graph(
            "How long loads took",
            "From the decision to load a chunk until its last read has arrived, queueing included.",
            units.Seconds,
            query(quantile(0.5, "load_duration_seconds"), "half at most"),
            query(quantile(0.99, "load_duration_seconds"), "99 % at most"),
            width=8,
        ),
        graph(
            "Kinds of opens",
            "Opens in a second. redirected: another sample. exact: the file itself. joined: the path was open already, "
            "or the thread looked a second time. reserved by another: the open took a sample that a stat had reserved.",
            units.OpsPerSecond,
            query(total("opens_redirected_total"), "redirected"),
            query(total("opens_exact_total"), "exact"),
            query(total("opens_joined_total"), "joined"),
            query(total("reservations_taken_total"), "reserved by another"),
            width=8,
        ),
        graph(
            "Requests to object stores",
            "Requests in a second, and those of them that were repeated because a request had failed.",
            units.OpsPerSecond,
            query(total("object_requests_total"), "requests"),
            query(total("object_retries_total"), "repeated"),
            width=12,
        ),
        graph(
            "Bytes from object stores",
            "Bytes of answers in a second, with the gaps between files.",
            units.BytesPerSecondIEC,
            query(rate("object_received_bytes_total")),
            width=12,
        ),
        graph(
            "Bytes from and to the cache",
            "Bytes of samples that were read from the cache (--cache), and written to it, in a second.",
            units.BytesPerSecondIEC,
            query(total("cache_read_bytes_total"), "read"),
            query(total("cache_written_bytes_total"), "written"),
            width=8,
        ),
        graph(
            "Samples in the cache",
            "Samples in the cache, and the mounts that still write to it: none once it is full or has failed.",
            units.Short,
            query(f"sum({value('cache_samples')})", "samples"),
            query(f"sum({value('cache_writes')})", "mounts that write"),
            width=8,
        ),
        graph(
            "Samples that the cache lacks",
            "Samples a second that were not kept, and copies a second that could not be read.",
            units.OpsPerSecond,
            query(total("cache_left_out_total"), "not kept"),
            query(total("cache_failures_total"), "could not be read"),
            width=8,
        ),
        graph(
            "Size of the cache",
            "Bytes of the samples in the cache.",
            units.BytesIEC,
            query(f"sum({value('cache_size_bytes')})", "size"),
            width=24,
        ),
    ):
        builder.with_panel(panel)


def memory(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Memory and laps"))
    states = ("in_slots", "in_remote_slots", "in_open_files", "in_closed_files", "put_aside", "dropped")
    for panel in (
        graph(
            "Memory for samples",
            "Bytes of samples in memory, beside the limit of --memory. Memory that is full is normal: redoxfs fills it "
            "to shuffle well.",
            units.BytesIEC,
            query(value("memory_used_bytes"), f"{MOUNT} used"),
            query(value("retained_bytes"), f"{MOUNT} stays for every epoch"),
            query(value("memory_limit_bytes"), f"{MOUNT} limit"),
            width=8,
        ).override_by_regexp(
            "/ limit$/",
            [
                DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 6]}),
                DynamicConfigValue(id_val="custom.fillOpacity", value=0),
            ],
        ),
        graph(
            "Samples by state",
            "Samples by where they are. in slots: they wait for their turn. in remote slots: those of other nodes. in "
            "open files, in closed files: a program reads them, or has just closed them. put aside: a stat has "
            "reserved them. dropped: their bytes are not in memory, so an open reads them again. These metrics may "
            "change in a later version.",
            units.Short,
            *(query(f"sum({value(f'samples_{state}')})", state.replace("_", " ")) for state in states),
            is_stacked=True,
            width=8,
        ),
        graph(
            "Samples that stay",
            "Samples that stay in memory after their turn, so that no later epoch reads them: what --memory has room "
            "for beside what shuffling needs.",
            units.Short,
            query(f"sum({value('retained_samples')})", "samples"),
            width=8,
        ),
        graph(
            "Answers that are kept",
            "Paths that are open, answers that threads would get again, and samples that stats have reserved. Numbers "
            "that only grow show programs that keep files open, or look at many more than they open. These metrics "
            "may change in a later version.",
            units.Short,
            query(f"sum({value('bound_paths')})", "open paths"),
            query(f"sum({value('holds')})", "held by threads"),
            query(f"sum({value('reservations')})", "reserved by stats"),
            query(f"sum({value('open_files')})", "open files"),
            width=8,
        ),
        graph(
            "Laps",
            "The lap, from 1, that each class tree is in: with one job, the epoch that it reads.",
            units.Short,
            query(f"max by ({BY_MOUNT}, tree) ({value('lap_number')})", "{{instance}} {{mount}} {{tree}}"),
            width=8,
        ),
        graph(
            "Progress of the lap",
            "Samples of each class tree that had their turn in its lap, of all its samples. It grows to 100 % and "
            "begins again. Of several nodes, each shows the turns that it gave itself, so their sum grows to 100 %.",
            units.PercentUnit,
            query(
                f"max by ({BY_MOUNT}, tree) ({share(value('lap_turns'), value('lap_samples'))})",
                "{{instance}} {{mount}} {{tree}}",
            ),
            most=1,
            width=8,
        ),
        graph(
            "Paths kept apart",
            "Paths of each class tree that the job keeps apart from the others, epoch after epoch: samples cross a "
            "split that the script makes. 0 where none were seen.",
            units.Short,
            query(f"max by ({BY_MOUNT}, tree) ({value('split_paths')})", "{{instance}} {{mount}} {{tree}}"),
            width=8,
        ),
        graph(
            "Turns that the state file lacks",
            "Samples that had their turn since the state file was last written. A mount that resumes from that file "
            "gives them again. No data: nothing was written yet.",
            units.Short,
            query(f"{value('turns_total')} - {value('turns_kept')}"),
            width=8,
        ),
    ):
        builder.with_panel(panel)


def troubles(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("What goes wrong?"))
    for panel in (
        graph(
            "Errors",
            "Opens, and reads from storage by position, that failed in a second. The daemon's log names the files.",
            EACH_S,
            query(rate("errors_total")),
            width=6,
            soft_most=1,
        ),
        graph(
            "Missed samples and degraded answers",
            "What other nodes failed to give. missed: samples that laps ended without, because a node was lost. "
            "degraded: opens answered, or samples read, without the node that should have given them.",
            EACH_S,
            query(total("missed_samples_total"), "missed/s"),
            query(total("degraded_total"), "degraded/s"),
            width=6,
            soft_most=1,
        ),
        graph(
            "Restarts",
            "How often another daemon took over, since the mount began, and files that differ from the scan.",
            units.Short,
            query(f"max by ({BY_MOUNT}) ({value('restarts_total')})", f"{MOUNT} restarts"),
            query(f"max by ({BY_MOUNT}) ({value('changed_files')})", f"{MOUNT} changed files"),
            width=6,
            soft_most=1,
        ),
        number(
            "Last death of a daemon",
            "When a daemon last died and its keeper started another. No data: none has.",
            units.DateTimeFromNow,
            f"max({value('last_death_timestamp_seconds')}) * 1000",
            width=6,
        )
        .graph_mode(BigValueGraphMode.NONE)
        .height(9),
    ):
        builder.with_panel(panel)


def peers(builder: dashboard.Dashboard) -> None:
    builder.with_row(dashboard.Row("Several nodes"))
    peer = "{{instance}} from {{peer}}"
    for panel in (
        graph(
            "99 % of the answers of peers took at most",
            "From the first sending of a message to a peer until its answer, without the bytes that follow in parts. "
            "One slow peer, seen by all others, is the node to look at.",
            units.Seconds,
            query(quantile(0.99, "peer_answer_duration_seconds", by="instance, peer"), peer),
        ),
        graph(
            "Retries",
            "Calls to other nodes that were repeated in a second: all of a node, and by peer.",
            EACH_S,
            query(rate("retries_total"), f"{MOUNT} all"),
            query(total("peer_retries_total", by="instance, peer"), peer),
            soft_most=1,
        ),
        graph(
            "Samples from peers",
            "Samples that came from each peer in a second.",
            EACH_S,
            query(total("peer_samples_total", by="instance, peer"), peer),
            width=8,
        ),
        graph(
            "Bytes between nodes",
            "Bytes of answers in a second, received from other nodes and sent to them.",
            units.BytesPerSecondIEC,
            query(rate("remote_received_bytes_total"), f"{MOUNT} received"),
            query(rate("remote_sent_bytes_total"), f"{MOUNT} sent"),
            width=8,
        ),
        graph(
            "Bytes by peer",
            "Bytes of answers in a second, received from each peer and sent to it.",
            units.BytesPerSecondIEC,
            query(total("peer_received_bytes_total", by="instance, peer"), peer),
            query(total("peer_sent_bytes_total", by="instance, peer"), "{{instance}} to {{peer}}"),
            width=8,
        ),
        graph(
            "Messages",
            "Messages to other nodes in a second, each counted once: all of a node, and by peer.",
            EACH_S,
            query(rate("remote_requests_total"), f"{MOUNT} all"),
            query(total("peer_requests_total", by="instance, peer"), "{{instance}} to {{peer}}"),
            width=8,
        ),
        graph(
            "Sent ahead",
            "With --policy slot: turns in a second that found a sample sent ahead, and samples that were not sent "
            "ahead, because the node has one of that slot. No data with --policy pool.",
            EACH_S,
            query(total("prefetched_total"), "found"),
            query(total("conflicts_total"), "not sent"),
            width=8,
        ),
        graph(
            "View",
            "The number of the view of the nodes. It grows when nodes join or leave, and is the same on all nodes soon "
            "after.",
            units.Short,
            query(value("view")),
            width=8,
        ),
    ):
        builder.with_panel(panel)


def made() -> Dashboard:
    builder = (
        dashboard.Dashboard(TITLE)
        .uid(UID)
        .description("Mounts of redoxfs: scrapes of --metrics and of `redoxfs metrics`.")
        .tags(["redoxfs"])
        .editable()
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for each in (
        variable("job", "Job", "The job of Prometheus that scrapes.", "up", ""),
        variable("instance", "Target", "What Prometheus scrapes: a host and a port.", "up", 'job=~"$job"'),
        variable("mount", "Mount", "The mountpoint.", "up", OF_TARGET),
        variable("node", "Node", "The number of a node, from 0; 0 without others.", "samples", OF_UP),
    ):
        builder.with_variable(each)
    for rows in (up, fast, waits, sources, memory, troubles, peers):
        rows(builder)
    board = builder.build()
    # The number of a panel is in links to it.
    for at, panel in enumerate(board.panels or [], start=1):
        panel.id_val = at
    return board


if __name__ == "__main__":
    print(JSONEncoder(indent=2, sort_keys=True).encode(made()))
