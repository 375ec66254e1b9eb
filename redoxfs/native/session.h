// One mounted filesystem, on the kernel's side: receives requests, answers those that need no decision, and returns the
// others as events, in the order in which they were received.
//
// One thread, the owner, calls these functions. Helpers are threads of the session's own: each receives and answers on
// a clone of the descriptor, and puts events into the owner's queue. A request is received, and its event queued, under
// one lock, so helpers do not change the order of events.
//
// Nothing here knows Python. No length in a request is trusted, and no request makes it allocate, but for a copy of a
// message to the relay, whose number is bounded.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"
#include "shared.h"
#include "tree.h"

enum {
    REDOX_INIT,
    REDOX_OPEN,
    REDOX_STAT,
    REDOX_READ,
    REDOX_RELEASE,
    // Of the access log, whose readers wait until there is something to read.
    REDOX_LOG_READ,
    REDOX_LOG_TRY,  // a read that must not wait
    REDOX_LOG_POLL,
    REDOX_LOG_RELEASE,
    // A program that waits for an answer got a signal.
    REDOX_INTERRUPT,
};

typedef struct {
    int kind;
    uint32_t thread;
    uint64_t unique;  // stands for the request in an answer to it
    uint64_t number;
    uint64_t offset;
    uint64_t size;  // of an OPEN: when it was received, in ns of the monotonic clock
} redox_event;

enum {
    // Handles of generated files, which the relay opens, start here; those of the access log, at twice that.
    REDOX_RELAY_HANDLES_SHIFT = 62,
    REDOX_LOG_HANDLES_SHIFT = 63,
    REDOX_MOST_HELPERS = 63,
    // One READ of the kernel is at most 256 pages.
    REDOX_MOST_READ = 256 * 4096,
};

typedef struct redox_session redox_session;

typedef struct {
    const int *devices;  // of one connection, non-blocking; they stay the caller's, as does the relay's
    unsigned devices_count;  // at least one. A helper without one of these shares the first
    int relay;   // -1 for none
    const redox_tree *tree;
    uint32_t max_read;
    unsigned helpers;
    redox_shared *shared;  // NULL: nothing outlives the session. It stays the caller's
    bool blames;           // the former session crashed
} redox_session_options;

// NULL, with errno set, if it fails. With the `shared` of a former session it goes on: the mount has begun, and the
// requests that wait are delivered again, in their order, before new ones are received.
redox_session *redox_session_new(const redox_session_options *options);

// Ends the helpers and drops all handles. The session takes nothing and answers nothing from now on.
void redox_session_close(redox_session *session);

// After `redox_session_close`, which it calls if nobody has.
void redox_session_free(redox_session *session);

// An epoll descriptor: readable when `redox_session_take` would return or do something.
int redox_session_fd(const redox_session *session);

// Returns 0 or an errno.
int redox_session_watch(redox_session *session, int fd);

// Receives requests. Returns the number of events, at most `most`, or -1 if the mount is over and there are none.
//
// Returns as soon as there are events and no further request. If there is nothing, looks for `look_us`, unless looks
// after such a request rarely find anything, and then sleeps. It sleeps up to `wait_ms` in all, between requests that it
// answers by itself as well. But it returns at once while requests are with the relay, which may run in the caller's thread.
int redox_session_take(redox_session *session, uint32_t look_us, uint32_t wait_ms, redox_event *events, int most);

// After `redox_session_take` has returned -1: 0 if the mount has ended. Else the errno with which a read of the device
// failed: the mount is still there.
int redox_session_error(const redox_session *session);

typedef struct {
    uint64_t unique, inode, handle;
    uint32_t thread;
    redox_buffer *data;  // NULL: its reads become events. The session takes a reference of its own
    int64_t size;        // >= 0: binds the inode
    bool keep_pages, shares_pages;
} redox_opening;

// Answers an OPEN. Returns 0; ENOENT if nobody waits for the answer any more; EINVAL or ENOMEM if the handle cannot be
// kept. After an error there is no handle, and the inode is bound only if it was before.
int redox_session_opened(redox_session *session, const redox_opening *opening);

// Going on after a former session, before the first `take`:

// As `redox_session_opened`, but without bytes and without a reply. It voids no size either: the kernel has the right
// one, or waits for it. Before any `bind` or `turned`.
int redox_session_reopened(redox_session *session, const redox_opening *opening);

// Answers an OPEN whose file a former session had opened. The kernel may have the answer already.
void redox_session_answered(redox_session *session, uint64_t unique, uint64_t handle, bool shares_pages);

// The requests that wait to be delivered again. Returns their number.
unsigned redox_session_waiting(const redox_session *session, uint64_t uniques[REDOX_SLOTS]);

// How many sessions crashed while they were at a request that is kept; else 0.
unsigned redox_session_crashes(redox_session *session, uint64_t unique);

// The caller is at this request now; 0: at none.
void redox_session_deciding(redox_session *session, uint64_t unique);

// The caller has done what a RELEASE asks for; `handle` is its handle.
void redox_session_released(redox_session *session, uint64_t unique, uint64_t handle);

// Answers of the access log's events, besides `redox_session_data` and `redox_session_failed`.

// Answers its OPEN. Returns 0, or ENOENT if nobody waits for the answer any more.
int redox_session_log_opened(redox_session *session, uint64_t unique, uint64_t handle);

// Answers a POLL: `events` of poll(2) are there.
void redox_session_polled(redox_session *session, uint64_t unique, uint32_t events);

// Wakes the program whose POLL had this number.
void redox_session_wake(redox_session *session, uint64_t waiter);

// Answers of other events. ENOENT, that nobody waits any more, is no error of theirs.
void redox_session_stat(redox_session *session, uint64_t unique, size_t entry, int64_t size, bool bound);
void redox_session_data(redox_session *session, uint64_t unique, const void *data, size_t size);
void redox_session_failed(redox_session *session, uint64_t unique, int error);

// These take entries of the tree, which the caller has checked. `bind` returns 0 or ENOMEM.
int redox_session_bind(redox_session *session, size_t entry, int64_t size);
void redox_session_turned(redox_session *session, size_t entry);
void redox_session_freed(redox_session *session, size_t entry);
void redox_session_changed(redox_session *session, uint64_t inode);
void redox_session_ask(redox_session *session, size_t entry, bool asks);
void redox_session_shed(redox_session *session, size_t entry);

// Whether the size of a bound file depends on who asks. Then the kernel keeps none that it gets from now on.
void redox_session_sizes_differ(redox_session *session, bool differ);

// Voids the size that the kernel has of a bound file. False, and nothing is void, if a read or a seek may be waiting
// for it: the kernel drops a size that was asked for before the notice, and would go by that of an earlier answer.
// `settles_ns` after an open or a reply, nothing is taken to wait.
bool redox_session_void_size(redox_session *session, size_t entry, int64_t settles_ns);

// -1: all threads.
void redox_session_unhold(redox_session *session, int64_t thread);

typedef struct {
    uint64_t bytes_served, requests, handles, bound, relayed;
    uint64_t malformed;   // requests that made no sense
    uint64_t not_voided;  // attributes or pages that the kernel refused to void
    uint64_t looks;       // that the caller began before it slept
} redox_session_count;

redox_session_count redox_session_counts(redox_session *session);
