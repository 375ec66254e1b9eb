// How long something took, as counts in buckets of fixed bounds. One thread at a time uses a histogram.
//
// Four buckets to each power of two: a bucket's bounds differ by a quarter at most. The first has everything below a
// microsecond, the last everything above two minutes. Recording is a shift and an addition, and needs no memory.
#pragma once

#include <stdint.h>

enum {
    // Times from 2^10 ns up to 2^37 ns have buckets of their own.
    REDOX_LEAST_BITS = 10,
    REDOX_MOST_BITS = 37,
    REDOX_PARTS_BITS = 2,
    REDOX_PARTS = 1 << REDOX_PARTS_BITS,
    // With the first and the last.
    REDOX_BUCKETS = 1 + (REDOX_MOST_BITS - REDOX_LEAST_BITS) * REDOX_PARTS + 1,
};

typedef struct {
    uint64_t sum_ns;
    uint64_t counts[REDOX_BUCKETS];
} redox_histogram;

static inline unsigned redox_bucket_of(uint64_t ns) {
    if (ns < UINT64_C(1) << REDOX_LEAST_BITS) {
        return 0;
    }
    if (ns >= UINT64_C(1) << REDOX_MOST_BITS) {
        return REDOX_BUCKETS - 1;
    }
    unsigned bits = 63 - (unsigned)__builtin_clzll(ns);
    unsigned part = (unsigned)(ns >> (bits - REDOX_PARTS_BITS)) & (REDOX_PARTS - 1);
    return 1 + (bits - REDOX_LEAST_BITS) * REDOX_PARTS + part;
}

// What lies in the bucket is below this. The last bucket has no bound.
static inline uint64_t redox_bound_of(unsigned bucket) {
    if (!bucket) {
        return UINT64_C(1) << REDOX_LEAST_BITS;
    }
    unsigned bits = REDOX_LEAST_BITS + (bucket - 1) / REDOX_PARTS, part = (bucket - 1) % REDOX_PARTS;
    return (UINT64_C(1) << bits) + ((uint64_t)(part + 1) << (bits - REDOX_PARTS_BITS));
}

static inline void redox_histogram_record(redox_histogram *histogram, int64_t ns) {
    uint64_t took = ns > 0 ? (uint64_t)ns : 0;
    histogram->sum_ns += took;
    histogram->counts[redox_bucket_of(took)]++;
}
