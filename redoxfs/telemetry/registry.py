"""Every metric of a mount, declared once.

The exposition for Prometheus and docs/metrics.md are made from these declarations, and tests compare them with what
real mounts report. A new field of stats.json begins here.

A field that is not stable shows how redoxfs works inside. It may change its name or meaning in any version.
"""

from redoxfs.telemetry.metric import Kind, Metric, When

COUNTER, GAUGE, HISTOGRAM, FACT = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.FACT

METRICS: tuple[Metric, ...] = (
    # What is served, and by whom
    Metric("version", FACT, "version", "The version of redoxfs that serves the mount."),
    Metric("pid", FACT, "pid", "The process number of the daemon."),
    Metric("source", FACT, "source", "The directory, or the address, that is served."),
    Metric("mountpoint", FACT, "mountpoint", "The mountpoint, or the socket that the mount came from."),
    Metric("metrics_address", FACT, "metrics", "Where the daemon listens for scrapes of Prometheus; null: nowhere."),
    Metric("options", FACT, "options", "The mount options that were given with `-o`."),
    Metric("request_words", FACT, "request.words", "The options that the mount was asked for."),
    Metric(
        "request_answered",
        FACT,
        "request.answered_at_boottime_s",
        "When the mount answered for the first time, in seconds since the boot.",
        unit="seconds",
    ),
    Metric("verdict", FACT, "verdict", "What is redirected, and why, in one line."),
    Metric(
        "classes_mode",
        FACT,
        "classes_mode",
        "How classes were found: `dir`, `csv`, `any`, or `sampler`; `none`: nothing is redirected.",
    ),
    Metric("policy", FACT, "policy", "The policy: `pool` or `slot`."),
    Metric("samples", GAUGE, "samples", "Samples that may be redirected."),
    Metric("classes", GAUGE, "classes", "Classes of these samples."),
    Metric("chunks", GAUGE, "chunks", "Chunks that the samples are read in."),
    Metric("chunk_size", GAUGE, "chunk_size", "The most samples of a chunk."),
    Metric("virtual_chunks", GAUGE, "virtual_chunks", "Virtual chunks of the slot policy.", when=When.SLOT),
    Metric(
        "chunks_per_virtual_chunk",
        GAUGE,
        "chunks_per_virtual_chunk",
        "Chunks that share the memory of one virtual chunk.",
        when=When.SLOT,
    ),
    # Opens
    Metric("opens", COUNTER, "opens", "Opens of files: `redirected`, `exact`, and those that failed."),
    Metric("opens_redirected", COUNTER, "redirected", "Opens that were answered with another sample."),
    Metric("opens_exact", COUNTER, "exact", "Opens that were answered with the file itself."),
    Metric(
        "opens_copied",
        COUNTER,
        "copied",
        "Of these, opens of files of classes, by programs that copy, compare or search.",
    ),
    Metric("copying", FACT, "copying", "Programs of this kind that use the mount now."),
    Metric(
        "opens_joined",
        COUNTER,
        "joined",
        "Opens that took no turn, because the path was open or the thread looked a second time.",
    ),
    Metric("errors", COUNTER, "errors", "Opens, and reads from storage by position, that failed."),
    Metric("wait_seconds", COUNTER, "wait_seconds", "The sum of all waits of opens and reads.", unit="seconds"),
    Metric(
        "open_duration_seconds",
        HISTOGRAM,
        "open_seconds.*",
        "From the receipt of an open to its reply, by what it waited for.",
        unit="seconds",
        labels=("outcome",),
    ),
    Metric("waiting_opens", GAUGE, "waiting_opens", "Opens that wait for storage or for another node now."),
    Metric("waiting_reads", GAUGE, "waiting_reads", "Reads that wait for storage now."),
    Metric("open_files", GAUGE, "open_files", "Files that are open now."),
    # Storage and programs
    Metric("storage_read_bytes", COUNTER, "bytes_read", "Bytes read from storage.", unit="bytes"),
    Metric("served_bytes", COUNTER, "bytes_served", "Bytes served to programs.", unit="bytes"),
    Metric("chunk_loads", COUNTER, "chunk_loads", "Loads of a chunk."),
    Metric("loads_in_flight", GAUGE, "loads_in_flight", "Loads of a chunk whose last read has not arrived."),
    Metric(
        "load_duration_seconds",
        HISTOGRAM,
        "load_seconds",
        "From the decision to load a chunk until its last read has arrived, queueing included.",
        unit="seconds",
    ),
    Metric(
        "storage_reads",
        COUNTER,
        "reads",
        "Reads for loads of chunks: each of a whole file, or of a long piece of a shard. Without those of copies.",
        stable=False,
    ),
    Metric(
        "storage_read_seconds",
        COUNTER,
        "read_seconds",
        "The sum of the times of these reads.",
        unit="seconds",
        stable=False,
    ),
    Metric(
        "storage_reads_limit",
        GAUGE,
        "reads_limit",
        "How many of these reads may be in flight: as many as the storage gains from, as measured.",
        stable=False,
    ),
    Metric("samples_loaded", COUNTER, "samples_loaded", "Samples read by loads of chunks."),
    Metric(
        "samples_reread",
        COUNTER,
        "samples_reread",
        "Samples read again for one open: memory was short, the first read had failed, or a daemon had died. "
        "On a mount for a sampler, only samples that the sampler drew count.",
    ),
    Metric("demand_loads", COUNTER, "demand_loads", "Opens that started a load."),
    Metric("in_flight_waits", COUNTER, "in_flight_waits", "Opens that waited for a read already in progress."),
    Metric(
        "reservations_taken",
        COUNTER,
        "reservations_taken",
        "Opens that took a sample that a stat had reserved for another.",
    ),
    Metric("changed_files", GAUGE, "changed", "Files that differ from the scan."),
    # Laps
    Metric("lap", GAUGE, "lap.*", "The lowest lap, from 1, that a column of the class tree is in.", labels=("tree",)),
    Metric(
        "lap_number",
        GAUGE,
        "laps.*.number",
        "The first lap, from 1, in which a sample of the class tree has not had its turn; "
        "one that is over until the next has a turn.",
        labels=("tree",),
    ),
    Metric(
        "lap_turns",
        GAUGE,
        "laps.*.turns",
        "Samples that had their turn in that lap. Of several nodes: turns that this node gave in it.",
        labels=("tree",),
    ),
    Metric("lap_samples", GAUGE, "laps.*.samples", "Samples of the class tree, which a lap has.", labels=("tree",)),
    Metric(
        "split_paths",
        GAUGE,
        "split_paths.*",
        "About how many paths of the class tree the job keeps apart from the others, epoch after epoch, so that "
        "samples cross a split of its own; 0: none were seen to be, since this daemon began.",
        labels=("tree",),
    ),
    # Passes
    Metric(
        "pass_opens",
        GAUGE,
        "passes.*.opens",
        "Files of the class tree that were opened since the present pass began; a group counts as one.",
        labels=("tree",),
        stable=False,
    ),
    Metric(
        "passes_complete",
        COUNTER,
        "passes.*.complete",
        "Passes in which all files of the class tree were opened.",
        labels=("tree",),
    ),
    Metric(
        "passes_ended_early",
        COUNTER,
        "passes.*.early",
        "Passes in which at least half of the files of the class tree were opened, and not all, before another began.",
        labels=("tree",),
    ),
    Metric(
        "samples_held_back",
        COUNTER,
        "samples_held_back",
        "Samples that laps began without, as they had come in the pass.",
        stable=False,
    ),
    Metric(
        "passes_given_twice",
        COUNTER,
        "passes_given_twice",
        "Samples that a pass was given again, as it allowed no other.",
    ),
    Metric("turns", COUNTER, "turns", "Turns that this node has given since the first lap began."),
    Metric("turns_kept", GAUGE, "turns_kept", "Turns that the state file has."),
    Metric(
        "state_written_timestamp_seconds",
        GAUGE,
        "state_written",
        "When the state file was last written, in seconds since the Unix epoch; null before the first time.",
        unit="seconds",
    ),
    # Memory
    Metric("memory_limit_bytes", GAUGE, "memory_limit_bytes", "The memory for samples, `--memory`.", unit="bytes"),
    Metric(
        "memory_used_bytes",
        GAUGE,
        "memory_used_bytes",
        "Bytes of samples in memory: in slots, in open and just closed files, reserved by stats.",
        unit="bytes",
    ),
    *(
        Metric(f"samples_{place}", GAUGE, place, text, stable=False)
        for place, text in (
            ("in_slots", "Samples in memory that wait for their turn, in this lap or the next."),
            ("in_remote_slots", "Samples of other nodes in memory that wait for their turn."),
            ("in_open_files", "Samples in memory that belong to open files."),
            ("in_closed_files", "Samples in memory that belong to files that were just closed."),
            ("dropped", "Samples whose bytes were dropped, so that an open reads them again."),
            ("put_aside", "Samples in memory that stats have reserved."),
        )
    ),
    Metric(
        "retained_samples",
        GAUGE,
        "retained_samples",
        "Samples in memory that stay there after their turn, and are not read again.",
    ),
    Metric("retained_bytes", GAUGE, "retained_bytes", "The memory of these samples.", unit="bytes"),
    Metric(
        "epochs_told",
        COUNTER,
        "epochs_told",
        "Epochs that a script told, each of which began a pass.",
        stable=False,
    ),
    Metric(
        "reads_saved",
        COUNTER,
        "reads_saved",
        "Turns of samples that had stayed in memory since an earlier lap.",
    ),
    Metric(
        "reads_alone",
        COUNTER,
        "reads_alone",
        "Samples read alone, although one that stays was in memory: it would have come too early in its lap.",
    ),
    Metric(
        "samples_given_back",
        COUNTER,
        "samples_given_back",
        "Samples that were to stay in memory, and were dropped to make room for open files.",
    ),
    Metric("bound_paths", GAUGE, "bound", "Paths that have an answer because they are open.", stable=False),
    Metric("holds", GAUGE, "holds", "Answers that threads would get again.", stable=False),
    Metric("reservations", GAUGE, "reservations", "Samples that stats have reserved.", stable=False),
    # Object stores
    Metric(
        "object_requests",
        COUNTER,
        "objects.requests",
        "Requests to the object store, repeated ones too.",
        when=When.OBJECTS,
    ),
    Metric(
        "object_retries",
        COUNTER,
        "objects.retries",
        "Requests to the object store that were repeated.",
        when=When.OBJECTS,
    ),
    Metric(
        "object_received_bytes",
        COUNTER,
        "objects.received_bytes",
        "Bytes of answers received from the object store.",
        unit="bytes",
        when=When.OBJECTS,
    ),
    Metric(
        "object_reads_limit",
        GAUGE,
        "objects.reads_limit",
        "Reads of chunks that may be in flight, as measured.",
        when=When.OBJECTS,
        stable=False,
    ),
    # The cache
    Metric("cache_samples", GAUGE, "cache.samples", "Samples that are in the cache.", when=When.CACHE),
    *(
        Metric(f"cache_{name}", kind, f"cache.{name}", text, unit="bytes", when=When.CACHE)
        for name, kind, text in (
            ("size_bytes", GAUGE, "Bytes of these samples."),
            ("read_bytes", COUNTER, "Bytes of samples read from the cache."),
            ("written_bytes", COUNTER, "Bytes of samples written to the cache."),
        )
    ),
    Metric(
        "cache_left_out",
        COUNTER,
        "cache.left_out",
        "Samples read from the source and not kept: the cache was full, a write had failed, or its disk was too slow.",
        when=When.CACHE,
    ),
    Metric(
        "cache_failures",
        COUNTER,
        "cache.failures",
        "Copies in the cache that could not be read, or had wrong checksums. Their samples were read from the source.",
        when=When.CACHE,
    ),
    Metric(
        "cache_writes",
        GAUGE,
        "cache.writes",
        "Whether the mount still writes to the cache: false once it is full, or a write has failed.",
        when=When.CACHE,
    ),
    # Several nodes
    Metric("remote_requests", COUNTER, "remote_requests", "Messages to other nodes, each counted once."),
    Metric("remote_samples", COUNTER, "remote_samples", "Samples that came from other nodes."),
    Metric(
        "degraded",
        COUNTER,
        "degraded",
        "Opens answered, or samples read, without the node that should have given them.",
    ),
    Metric("view", GAUGE, "view", "The number of the view of the nodes.", when=When.NODES),
    Metric("node", FACT, "node", "The number of this node, from 0.", when=When.NODES),
    Metric("nodes", GAUGE, "nodes", "Nodes that share the dataset.", when=When.NODES),
    Metric(
        "exchange",
        GAUGE,
        "exchange",
        "The share of its samples that the node takes from others on purpose, `--exchange`; 0 with the slot policy.",
        when=When.NODES,
    ),
    Metric(
        "missed_samples",
        COUNTER,
        "missed",
        "Samples that laps ended without, as far as this node knows.",
        when=When.NODES,
    ),
    Metric("prefetched", COUNTER, "prefetched", "Turns that found a sample sent ahead.", when=When.SLOT_NODES),
    Metric(
        "conflicts",
        COUNTER,
        "conflicts",
        "Samples in memory that were not sent ahead, because the node has one of that slot.",
        when=When.SLOT_NODES,
    ),
    Metric(
        "remote_received_bytes",
        COUNTER,
        "remote_bytes_in",
        "Bytes of answers received from other nodes.",
        unit="bytes",
        when=When.NODES,
    ),
    Metric(
        "remote_sent_bytes",
        COUNTER,
        "remote_bytes_out",
        "Bytes of answers sent to other nodes.",
        unit="bytes",
        when=When.NODES,
    ),
    Metric("retries", COUNTER, "retries", "Calls to other nodes that were repeated.", when=When.NODES),
    Metric("peer_address", FACT, "peers.*.address", "The address of a peer.", labels=("peer",), when=When.NODES),
    Metric(
        "peer_state",
        FACT,
        "peers.*.state",
        "The state of a peer: `joining`, `ready`, `unreachable` or `refused`.",
        labels=("peer",),
        when=When.NODES,
    ),
    Metric("peer_reason", FACT, "peers.*.reason", "Why a peer is not ready.", labels=("peer",), when=When.NODES),
    *(
        Metric(f"peer_{name}", COUNTER, f"peers.*.{place}", text, unit=unit, labels=("peer",), when=When.NODES)
        for name, place, unit, text in (
            ("requests", "requests_sent", "", "Messages to a peer, each counted once."),
            ("retries", "retries", "", "Calls to a peer that were repeated."),
            ("samples", "samples_received", "", "Samples that came from a peer."),
            ("received_bytes", "bytes_in", "bytes", "Bytes of answers received from a peer."),
            ("sent_bytes", "bytes_out", "bytes", "Bytes of answers sent to a peer."),
        )
    ),
    Metric(
        "peer_answer_duration_seconds",
        HISTOGRAM,
        "peers.*.answer_seconds",
        "From the first sending of a message to a peer until its answer, without the bytes that follow in parts.",
        unit="seconds",
        labels=("peer",),
        when=When.NODES,
    ),
    # The keeper
    Metric("keeper_pid", FACT, "keeper.pid", "The process number of the keeper; null if it died.", when=When.KEEPER),
    Metric("restarts", COUNTER, "keeper.restarts", "How often another daemon took over.", when=When.KEEPER),
    Metric("last_death_how", FACT, "keeper.last_death.how", "How the last daemon ended.", when=When.DEATH),
    Metric(
        "last_death_timestamp_seconds",
        GAUGE,
        "keeper.last_death.at",
        "When the last daemon ended, in seconds since the Unix epoch.",
        unit="seconds",
        when=When.DEATH,
    ),
    Metric(
        "keeper_layouts",
        FACT,
        "keeper.layouts",
        "The layouts of what a daemon leaves to the next one.",
        when=When.KEEPER,
        stable=False,
    ),
)
