// What the owner of a session tells the kernel: answers of events, and what is out of date.
#include <errno.h>

#include "requests.h"
#include "times.h"

static void make_void(redox_session *session, uint64_t inode, bool attributes_only) {
    redox_core *core = redox_core_of(session);
    if (redox_notify_void(&core->devices, inode, attributes_only)) {
        core->not_voided++;
    }
}

// For the next session, if this one gets no further.
static void note(redox_core *core, const redox_note *entry) {
    if (core->devices.shared) {
        redox_shared_note(core->devices.shared, entry);
    }
}

static void note_closed(redox_core *core, uint64_t handle) {
    note(core, &(redox_note){.kind = REDOX_NOTE_CLOSED, .sample = (int32_t)handle});
}

static int open_handle(redox_core *core, const redox_opening *opening, bool *bound_here) {
    *bound_here = false;
    return core->closed ? EINVAL
                        : redox_handles_open(&core->handles, opening->handle, opening->inode, opening->thread,
                                             opening->data, opening->size, !opening->shares_pages, bound_here);
}

// As `redox_handles_turn`, of the file in the tree that an opening binds; false if it binds none.
static bool turn(redox_core *core, const redox_opening *opening) {
    uint64_t entry = opening->inode - 1;
    return opening->size >= 0 && entry < core->tree->entries &&
           redox_handles_turn(&core->handles, &core->tree->flags[entry]);
}

int redox_session_reopened(redox_session *session, const redox_opening *opening) {
    redox_core *core = redox_core_of(session);
    bool bound_here;
    int error = open_handle(core, opening, &bound_here);
    if (!error) {
        // The former session has voided older sizes. A second notice could void the size that an fstat waits for: the
        // program would get that size, but the kernel would keep the older one and map the file with it.
        turn(core, opening);
    }
    return error;
}

void redox_session_answered(redox_session *session, uint64_t unique, uint64_t handle, bool shares_pages) {
    struct fuse_open_out out = {.fh = handle, .open_flags = shares_pages ? 0 : FOPEN_DIRECT_IO};
    redox_reply(&redox_core_of(session)->devices, unique, &out, sizeof out);
}

unsigned redox_session_crashes(redox_session *session, uint64_t unique) {
    redox_shared *shared = redox_core_of(session)->devices.shared;
    const redox_kept *kept = shared ? redox_shared_find(shared, unique) : NULL;
    return kept ? kept->attempts : 0;
}

void redox_session_deciding(redox_session *session, uint64_t unique) {
    redox_shared *shared = redox_core_of(session)->devices.shared;
    if (shared) {
        atomic_store_explicit(&shared->head->deciding, unique, memory_order_relaxed);
    }
}

void redox_session_released(redox_session *session, uint64_t unique, uint64_t handle) {
    redox_core *core = redox_core_of(session);
    note_closed(core, handle);
    if (redox_is_kept(unique) && core->devices.shared) {
        redox_shared_drop(core->devices.shared, unique);
    }
}

int redox_session_opened(redox_session *session, const redox_opening *opening) {
    redox_core *core = redox_core_of(session);
    bool bound_here;
    // The handle first: the kernel may read from it as soon as it has the answer.
    int error = open_handle(core, opening, &bound_here);
    if (error) {
        return error;
    }
    if (turn(core, opening)) {
        // A size from before the file was bound may still be on its way to the kernel, which drops it then. This comes
        // before the note, which tells the next session that it is done.
        make_void(session, opening->inode, true);
    }
    note(core, &(redox_note){
                   .kind = REDOX_NOTE_OPENED,
                   .file = (uint8_t)(opening->inode >> REDOX_BRANCH_SHIFT),
                   .flags = opening->shares_pages,
                   .thread = opening->thread,
                   .path = (uint32_t)((opening->inode & ((UINT64_C(1) << REDOX_BRANCH_SHIFT) - 1)) - 1),
                   .sample = (int32_t)opening->handle,
                   .request = opening->unique,
                   .value = opening->size,
               });
    struct fuse_open_out out = {
        .fh = opening->handle,
        .open_flags = (opening->shares_pages ? 0 : FOPEN_DIRECT_IO) | (opening->keep_pages ? FOPEN_KEEP_CACHE : 0),
    };
    error = redox_reply(&core->devices, opening->unique, &out, sizeof out);
    if (error) {
        redox_buffer *data;
        uint32_t reads;
        redox_handles_close(&core->handles, opening->handle, &data, &reads);
        redox_buffer_drop(data);
        if (bound_here) {
            // A helper may have told the size meanwhile.
            redox_handles_unbind(&core->handles, opening->inode);
            make_void(session, opening->inode, true);
        }
        // Whatever the kernel's reason, it will send no RELEASE.
        note_closed(core, opening->handle);
        return ENOENT;
    }
    return 0;
}

int redox_session_log_opened(redox_session *session, uint64_t unique, uint64_t handle) {
    // Without a position: each reader gets what comes, as from a pipe.
    enum { FLAGS = FOPEN_DIRECT_IO | FOPEN_NONSEEKABLE | FOPEN_STREAM };
    struct fuse_open_out out = {.fh = handle, .open_flags = FLAGS};
    return redox_reply(&redox_core_of(session)->devices, unique, &out, sizeof out) ? ENOENT : 0;
}

void redox_session_polled(redox_session *session, uint64_t unique, uint32_t events) {
    struct fuse_poll_out out = {.revents = events};
    redox_reply(&redox_core_of(session)->devices, unique, &out, sizeof out);
}

void redox_session_wake(redox_session *session, uint64_t waiter) {
    redox_notify_poll(&redox_core_of(session)->devices, waiter);
}

void redox_session_stat(redox_session *session, uint64_t unique, size_t entry, int64_t size, bool bound) {
    redox_core *core = redox_core_of(session);
    if (!bound) {
        // Not of a file that has an answer: the kernel drops that size, which the caller has voided.
        redox_handles_show(&core->handles, redox_inode(REDOX_DATA, entry), &core->tree->flags[entry]);
    }
    bool lasts = bound && !redox_sizes_differ(core);
    redox_reply_attributes(&core->devices, unique, core->tree, redox_inode(REDOX_DATA, entry), entry, size, lasts);
}

void redox_session_data(redox_session *session, uint64_t unique, const void *data, size_t size) {
    // The caller counts these bytes.
    redox_reply(&redox_core_of(session)->devices, unique, data, size);
}

void redox_session_failed(redox_session *session, uint64_t unique, int error) {
    redox_core *core = redox_core_of(session);
    const redox_kept *kept = core->devices.shared ? redox_shared_find(core->devices.shared, unique) : NULL;
    if (kept && ((const struct fuse_in_header *)kept->message)->opcode == FUSE_OPEN) {
        note(core, &(redox_note){.kind = REDOX_NOTE_FAILED, .sample = -1, .request = unique, .value = error});
    }
    redox_reply_error(&core->devices, unique, error);
}

int redox_session_bind(redox_session *session, size_t entry, int64_t size) {
    redox_core *core = redox_core_of(session);
    if (core->closed) {
        return 0;
    }
    int error = redox_handles_bind(&core->handles, redox_inode(REDOX_DATA, entry), size);
    if (!error) {
        redox_session_turned(session, entry);
    }
    return error;
}

void redox_session_turned(redox_session *session, size_t entry) {
    redox_core *core = redox_core_of(session);
    if (redox_handles_turn(&core->handles, &core->tree->flags[entry])) {
        make_void(session, redox_inode(REDOX_DATA, entry), true);
    }
}

void redox_session_freed(redox_session *session, size_t entry) {
    redox_core *core = redox_core_of(session);
    uint64_t inode = redox_inode(REDOX_DATA, entry);
    redox_handles_unbind(&core->handles, inode);
    make_void(session, inode, false);
}

void redox_session_changed(redox_session *session, uint64_t inode) { make_void(session, inode, true); }

void redox_session_ask(redox_session *session, size_t entry, bool asks) {
    redox_core *core = redox_core_of(session);
    _Atomic uint8_t *flags = &core->tree->flags[entry];
    if (asks) {
        atomic_fetch_or_explicit(flags, REDOX_ASK, memory_order_relaxed);
    } else {
        atomic_fetch_and_explicit(flags, (uint8_t)~REDOX_ASK, memory_order_relaxed);
    }
}

void redox_session_sizes_differ(redox_session *session, bool differ) {
    atomic_store_explicit(&redox_core_of(session)->sizes_differ, differ, memory_order_relaxed);
}

bool redox_session_void_size(redox_session *session, size_t entry, int64_t settles_ns) {
    redox_core *core = redox_core_of(session);
    uint64_t inode = redox_inode(REDOX_DATA, entry);
    if (!redox_handles_settled(&core->handles, inode, redox_now_ns() - settles_ns)) {
        return false;
    }
    make_void(session, inode, true);
    return true;
}

void redox_session_shed(redox_session *session, size_t entry) {
    redox_core *core = redox_core_of(session);
    redox_handles_shed(&core->handles, redox_inode(REDOX_DATA, entry));
    redox_handles_shed(&core->handles, redox_inode(REDOX_EXACT, entry));
}

void redox_session_unhold(redox_session *session, int64_t thread) {
    redox_handles_unhold(&redox_core_of(session)->handles, thread);
}

redox_session_count redox_session_counts(redox_session *session) {
    redox_core *core = redox_core_of(session);
    redox_handles_count handles = redox_handles_counts(&core->handles);
    return (redox_session_count){
        .bytes_served = atomic_load_explicit(&core->bytes_served, memory_order_relaxed),
        .requests = atomic_load_explicit(&core->requests, memory_order_relaxed),
        .malformed = atomic_load_explicit(&core->malformed, memory_order_relaxed),
        .handles = handles.open,
        .bound = handles.bound,
        .relayed = redox_relay_total(&core->relay),
        .not_voided = core->not_voided,
        .looks = core->looks,
    };
}
