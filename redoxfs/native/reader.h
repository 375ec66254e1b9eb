// A pool of threads that carry out reads of whole files. Knows neither Python nor what a source is.
//
// Reads that somebody awaits go before the others, and so do their results. A read belongs to the pool from
// `redox_pool_submit` until `redox_pool_take`, `redox_pool_cancel` or `redox_pool_close` returns it.
//
// One thread at a time calls the functions of a pool. The threads of the pool touch only the pool, which they keep, the
// read, and its source. So a source must live as long as a thread reads from it, even after `redox_pool_close`.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

// Why there are no bytes of a file, beside an errno.
typedef enum redox_fault {
    REDOX_FAILED = 1,    // a system call, or an allocation
    REDOX_NOT_REGULAR,   // no longer a regular file
    REDOX_CHANGED,       // while it was read
    REDOX_WRONG_SUM,     // of a file in a shard
    REDOX_ELSEWHERE,     // the shard is on another node
    REDOX_NARROWED,      // fewer users may read it than at the scan
} redox_fault;

// The result for one file. `buffer` is NULL if it could not be read; the other fields say which content it has.
typedef struct redox_file {
    redox_buffer *buffer;
    int64_t grown_bytes;  // its size, if it is longer than at the scan: then `buffer` is empty; else 0
    int64_t mtime_ns;
    uint64_t inode;
    bool changed;  // since the scan
    int error;     // an errno
    redox_fault fault;
    uint32_t mode, uid, gid;  // with REDOX_NARROWED
} redox_file;

// Makes it the result of a file that could not be read. Drops what there is of it.
static inline void redox_file_fail(redox_file *file, int error, redox_fault fault) {
    redox_buffer_drop(file->buffer);
    *file = (redox_file){.error = error, .fault = fault};
}

// Where files are read from. Many threads read at the same time. `stop` turns true when nobody waits for the result any
// more; descriptors may be closed from then on.
typedef struct redox_source redox_source;
struct redox_source {
    void (*read)(const redox_source *source, const int32_t *entries, size_t count, redox_file *files,
                 const atomic_bool *stop);
};

typedef struct redox_read {
    // Of the pool.
    struct redox_read *next, *previous;
    int place;
    bool awaited;
    // Of the caller, for whatever it likes.
    void *token, *keeper;
    const redox_source *source;
    redox_file *files;  // [count]; set once the read is done
    size_t count;
    int32_t entries[];
} redox_read;

typedef struct redox_pool redox_pool;

typedef struct redox_pool_counts {
    size_t queued, running, done, threads;
    size_t reads, files;  // carried out so far, and the files in them
    uint64_t read_ns;  // the time of all reads, summed over the threads
} redox_pool_counts;

// A read of `count` files; the caller fills in `entries`. NULL if there is no memory.
redox_read *redox_read_new(const redox_source *source, size_t count);

// Drops the results too.
void redox_read_free(redox_read *read);

// One thread starts at once, the others when there is work for them; where they cannot, fewer do the work. NULL, with
// errno set, if there is no memory, descriptor or thread.
redox_pool *redox_pool_new(unsigned threads);

// An eventfd that is readable while `redox_pool_take` would return something.
int redox_pool_fd(const redox_pool *pool);

// `awaited`: somebody waits for the first.
void redox_pool_submit(redox_pool *pool, redox_read *const *reads, size_t count, bool awaited);

// Somebody waits for `read`, which the pool has.
void redox_pool_hasten(redox_pool *pool, redox_read *read);

// True if the read had not begun: it is the caller's again.
bool redox_pool_cancel(redox_pool *pool, redox_read *read);

// Up to `most` reads that are done, those that are awaited first. Returns their number; never blocks.
size_t redox_pool_take(redox_pool *pool, redox_read **reads, size_t most);

// How many reads may be in flight from now on, at least 1.
void redox_pool_set_threads(redox_pool *pool, unsigned threads);

redox_pool_counts redox_pool_count(redox_pool *pool);

// Ends the threads, and the pool: waits up to `wait_s` for reads in flight, and closes the eventfd. Returns the list (by
// `next`) of all reads that the pool has, apart from those still in flight, which their threads free.
redox_read *redox_pool_close(redox_pool *pool, double wait_s);
