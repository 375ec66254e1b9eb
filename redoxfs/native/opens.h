// What is known of each open once it has its reply: how long it took; and a record of it while somebody reads them.
//
// One thread at a time uses this. While nobody reads, an open that is not slow costs a count and one comparison.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"

typedef struct {
    int64_t at_ns;  // when it had its reply, since the Unix epoch
    int64_t took_ns;
    uint64_t inode;    // that was asked for
    int32_t sample;    // whose file it got; -1: the file itself, or none
    uint32_t thread;
    uint32_t outcome;
    int32_t error;     // an errno; 0: it did not fail
} redox_open_record;

typedef struct {
    redox_open_record *ring;  // [mask + 1]; NULL: nobody reads
    uint64_t mask;
    uint64_t position;  // records made so far
    uint64_t since;     // the position at which the ring began
    int64_t slow_ns;    // an open that takes as long is slow
    int64_t least_ns;   // one that takes as long is more than a count: 0 while somebody reads, else `slow_ns`
} redox_opens;

static inline void redox_opens_read_by(redox_opens *opens, redox_open_record *ring) {
    opens->ring = ring;
    opens->since = opens->position;
    opens->least_ns = ring ? 0 : opens->slow_ns;
}

static inline void redox_opens_record(redox_opens *opens, const redox_open_record *record) {
    if (opens->ring) {
        opens->ring[opens->position++ & opens->mask] = *record;
    }
}

// The oldest record after `position` that is still there.
static inline uint64_t redox_opens_oldest(const redox_opens *opens, uint64_t position) {
    uint64_t kept = opens->mask + 1, made = opens->position - opens->since;
    uint64_t oldest = opens->position - (made < kept ? made : kept);
    return position > oldest ? position : oldest;
}
