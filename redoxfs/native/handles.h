// Open files, the sizes of bound files, and which thread opened what. Any thread may call these.
//
// One lock guards all of it. It is held for some table look-ups, never during a system call.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"
#include "map.h"
#include "tree.h"

enum {
    // The caller numbers its handles densely; this bounds the table's memory, at 48 bytes each.
    REDOX_HANDLES = 1 << 20,
    REDOX_HANDLES_AT_ONCE = 1 << 10,
};

typedef struct {
    redox_buffer *data;       // NULL: reads are events
    uint64_t inode;           // 0: the handle is not open
    uint32_t thread;          // that opened it
    uint32_t next, previous;  // handles of the same inode; 0: none
    uint32_t reads;           // requests for its bytes so far
    bool direct_io;           // which are the reads of a program, and not those of the page cache
    bool told;                // its thread has asked for the size of the answer since the open
    bool settled;             // and for something else after that: the kernel has taken in that size
    int64_t since_ns;         // when it was opened, or its thread told that size; 0: it has no answer
} redox_handle;

typedef struct {
    pthread_mutex_t lock;
    redox_handle *parts[REDOX_HANDLES / REDOX_HANDLES_AT_ONCE];  // allocated when they are needed
    size_t open;
    redox_map bound;      // inode -> size
    redox_map first;      // inode -> its first handle
    redox_map opened_by;  // thread -> the handle it opened last
} redox_handles;

typedef enum { REDOX_NOT_OPEN, REDOX_WITHOUT_BYTES, REDOX_WITH_BYTES } redox_handle_state;

void redox_handles_init(redox_handles *handles);

// Drops all handles and frees the tables.
void redox_handles_free(redox_handles *handles);

// Adds an open file, and takes a reference of `data`, which may be NULL. `size` >= 0 binds the inode; *bound_here says
// whether it was not bound before. Returns 0, EINVAL (a number out of range or in use) or ENOMEM; then nothing changed.
int redox_handles_open(redox_handles *handles, uint64_t number, uint64_t inode, uint32_t thread, redox_buffer *data,
                       int64_t size, bool direct_io, bool *bound_here);

// Ends an open file. False if there is none. *data is its reference, which the caller has to drop, or NULL; *reads is
// how many reads of a program there were, 0 where the page cache stands in between.
bool redox_handles_close(redox_handles *handles, uint64_t number, redox_buffer **data, uint32_t *reads);

// *data is a reference of the caller's own if the handle has bytes.
redox_handle_state redox_handles_read(redox_handles *handles, uint64_t number, redox_buffer **data);

// Binds an inode without a handle. Returns 0 or ENOMEM.
int redox_handles_bind(redox_handles *handles, uint64_t inode, int64_t size);

void redox_handles_unbind(redox_handles *handles, uint64_t inode);

// The size of a bound inode. If it is not bound: -1, and REDOX_SIZED_WHILE_FREE is set in *flags.
int64_t redox_handles_show(redox_handles *handles, uint64_t inode, _Atomic uint8_t *flags);

// The size of a bound inode if the handle that `thread` opened last is one of it, else -1. The caller tells the thread.
int64_t redox_handles_held(redox_handles *handles, uint64_t inode, uint32_t thread);

// A request of `thread` is here. So it has taken in all replies before.
void redox_handles_heard(redox_handles *handles, uint32_t thread);

// Whether the kernel has taken in the size of a bound inode, or waits for none: a program that was told it has sent
// another request since, or all handles of the inode were opened and told before `before_ns`.
bool redox_handles_settled(redox_handles *handles, uint64_t inode, int64_t before_ns);

// Clears REDOX_SIZED_WHILE_FREE. Returns whether it was set.
bool redox_handles_turn(redox_handles *handles, _Atomic uint8_t *flags);

// All handles of an inode let go of their bytes.
void redox_handles_shed(redox_handles *handles, uint64_t inode);

// Forgets what a thread opened last; -1: all threads.
void redox_handles_unhold(redox_handles *handles, int64_t thread);

typedef struct {
    size_t open, bound;
} redox_handles_count;

redox_handles_count redox_handles_counts(redox_handles *handles);
