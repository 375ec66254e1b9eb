// Parses a request and answers it. The session's loop calls these; any of its threads may.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "handles.h"
#include "kernel.h"
#include "relay.h"
#include "replies.h"
#include "session.h"
#include "tree.h"

enum {
    // The largest request. Larger ones, which are xattrs of more than 60 kB and writes, end in the kernel.
    REDOX_REQUEST_BYTES = 64 * 1024 + 4096,
    // The largest part of a directory in one reply: some 700 names. It takes about 0.3 ms.
    REDOX_LISTING_BYTES = 128 * 1024,
    // RELEASE is a background request, of which the kernel sends as many as this at a time. With its own default, 12,
    // a further close waits in the kernel, and a later open overtakes it: it would join a binding that is over.
    REDOX_BACKGROUND = 65535,
};

// The parts of an inode number; as in redoxfs.fs.inodes.
enum { REDOX_DATA, REDOX_EXACT, REDOX_SERVED, REDOX_CONTROL, REDOX_BRANCHES };
enum { REDOX_BRANCH_SHIFT = 40 };

// The number of the access log in CONTROL.
enum { REDOX_ACCESS_LOG = 2 };

static inline uint64_t redox_inode(unsigned branch, size_t entry) {
    return ((uint64_t)branch << REDOX_BRANCH_SHIFT) + entry + 1;
}

// What all threads of a session share.
typedef struct {
    const redox_tree *tree;
    redox_devices devices;  // with what outlives the session
    redox_handles handles;
    redox_relay relay;
    uint32_t max_read;
    atomic_bool begun;        // INIT was answered
    atomic_bool over;         // the mount has ended
    atomic_bool sizes_differ;  // by who asks, so the kernel may keep no size of a bound file
    bool lists_without_open;  // the kernel needs no OPENDIR. Set before `begun`
    atomic_uint_fast64_t bytes_served, requests, malformed;
    // The owner's alone.
    bool closed;
    uint64_t not_voided, looks;
} redox_core;

redox_core *redox_core_of(redox_session *session);

// A request in the buffer of the thread that received it.
typedef struct {
    struct fuse_in_header *header;
    size_t size;  // with the header
    uint64_t ticket;     // for the reply
    uint64_t at_kernel;  // the ticket of a request that is not kept
    uint64_t kept;       // the ticket of one that is, or 0
    bool refused;        // it could not be kept, so it is not to be handled
    void *body;
    size_t body_bytes;
    // Of its inode: -1, an inode that cannot be; `entry` has a meaning in DATA and EXACT, and is one of the tree's.
    int branch;
    size_t entry;
    redox_buffer *data;  // to read from, or to drop; a reference
    int64_t held_size;   // of a stat: the size is known to be this, or -1
} redox_request;

typedef enum {
    REDOX_FINISHED,  // nothing more to do
    REDOX_TO_ANSWER,  // call `redox_answer`
} redox_next;

// Takes in a message of `size` bytes from a device. `kept`: its ticket if it is delivered again, else 0. The caller holds
// the lock of the order of events. Sets *event, and *has_event, if this request makes one.
redox_next redox_receive(redox_core *core, unsigned device, void *message, size_t size, uint64_t kept,
                         redox_request *request, redox_event *event, bool *has_event);

// Answers what `redox_receive` left to answer, without that lock. `room`: REDOX_LISTING_BYTES for a reply.
void redox_answer(redox_core *core, redox_request *request, char *room);

// Tells the relay of the INIT that a former session answered, so that it begins.
void redox_begin_relay(redox_core *core);

// READDIR and READDIRPLUS of a directory in DATA or EXACT.
void redox_list(redox_core *core, redox_request *request, char *room);

// Passes a request to the relay, or answers it with an error.
void redox_pass_to_relay(redox_core *core, redox_request *request);

// What to say of an entry now: its size; *lasts: the kernel may keep that.
int64_t redox_size_now(redox_core *core, unsigned branch, size_t entry, bool *lasts);

// The relay is about to say this instead: as if it was said here, so that a size of a free file becomes void in time.
void redox_size_at_relay(redox_core *core, unsigned branch, size_t entry);

static inline bool redox_asks(const redox_core *core, size_t entry) {
    return atomic_load_explicit(&core->tree->flags[entry], memory_order_relaxed) & REDOX_ASK;
}

static inline bool redox_sizes_differ(const redox_core *core) {
    return atomic_load_explicit(&core->sizes_differ, memory_order_relaxed);
}
