// What outlives a daemon: memory that another process keeps, and from which the next daemon goes on.
//
//     landings    where each thread of a session receives. A request is whole in there as soon as read(2) has returned
//     slots       requests that were received and not answered, with their bytes
//     journal     a ring of entries that Python appends: what changed in the binding
//     areas       two for checkpoints: what Python needs besides the entries that follow
//
// A process may be killed between any two instructions. So each step becomes true by one store, which is the last.
// Requests are kept by any thread; the journal and the checkpoints belong to the owner of the session.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    // Of everything in this file. Another number is another format.
    REDOX_LAYOUT = 1,
    REDOX_SLOTS = 1 << 13,
    // The longest request to keep. The kernel's are shorter: a header of 40 bytes, and a name of at most 255.
    REDOX_KEPT_BYTES = 360,
    // Slots that only RELEASE may take, which must not fail.
    REDOX_SLOTS_FOR_RELEASE = 1 << 10,
    REDOX_INIT_BYTES = 512,
};

// Kinds of entries that C appends; Python has others.
enum { REDOX_NOTE_OPENED = 5, REDOX_NOTE_FAILED = 6, REDOX_NOTE_CLOSED = 7 };

typedef struct {
    uint8_t kind, file;
    uint16_t flags;
    uint32_t thread, path;
    int32_t sample;
    uint64_t request;
    int64_t value;
} redox_note;

typedef struct {
    _Atomic uint64_t number;  // in the order of receipt; 0: the slot is free
    uint32_t device, size;
    uint32_t attempts;  // how many daemons have crashed over it
    uint32_t unused;
    char message[REDOX_KEPT_BYTES];
} redox_kept;

typedef struct {
    char magic[8];
    uint32_t layout, unused;
    uint64_t bytes, entries, area_bytes;
    _Atomic uint64_t received;  // requests kept so far
    _Atomic uint64_t position;  // entries appended so far
    _Atomic uint64_t deciding;  // the request that the owner is deciding; 0: none
    struct {
        uint64_t position, bytes;
    } checkpoints[2];
    _Atomic uint32_t latest;      // 0: no checkpoint; 1 or 2: its number
    _Atomic uint32_t init_bytes;  // 0: the mount has not begun
    uint32_t init_maps;           // what INIT's event says
    uint32_t init_lists;          // as lists_without_open
    char init[REDOX_INIT_BYTES];  // the kernel's
} redox_shared_head;

typedef struct {
    redox_shared_head *head;
    char *landings;  // [REDOX_DEVICES][landing_bytes]
    redox_kept *slots;
    redox_note *ring;
    char *areas;
    size_t bytes;
    pthread_mutex_t lock;  // of the two below
    unsigned free_count;
    uint16_t free[REDOX_SLOTS];
} redox_shared;

// Maps a file of shared memory, and lays it out if it is empty. `entries`: a power of two. Returns 0 or an errno: EPROTO
// for one of another layout, whose number is in *layout; EINVAL for one that is damaged or has other sizes.
int redox_shared_open(redox_shared *shared, int fd, uint64_t entries, uint64_t area_bytes, uint32_t *layout);

void redox_shared_close(redox_shared *shared);

char *redox_shared_landing(redox_shared *shared, unsigned device);

// A landing holds no request.
void redox_shared_landed(char *landing);

// Keeps a request. Returns what stands for it in an answer, or 0 if it is too long or there are too many.
uint64_t redox_shared_keep(redox_shared *shared, unsigned device, const void *message, size_t size, bool is_release);

static inline bool redox_is_kept(uint64_t ticket) { return ticket >> 62; }

// NULL if it was dropped.
redox_kept *redox_shared_find(redox_shared *shared, uint64_t ticket);

void redox_shared_drop(redox_shared *shared, uint64_t ticket);

// What stands for the kept requests, in the order of receipt, those in the landings last. Returns their number.
// Landings are empty afterwards. Only before there are other threads. It needs no memory: without any, the requests
// would wait for ever.
//
// `blames`: the process before this one crashed, so the requests that its threads were at have one more attempt.
unsigned redox_shared_waiting(redox_shared *shared, bool blames, uint64_t waiting[REDOX_SLOTS]);

void redox_shared_note(redox_shared *shared, const redox_note *note);

// Returns 0, or EFBIG if it does not fit.
int redox_shared_checkpoint(redox_shared *shared, const void *data, size_t size);
