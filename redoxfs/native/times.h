// Times of files, as the catalog has them.

#ifndef REDOX_TIMES_H
#define REDOX_TIMES_H

#include <stdint.h>

// In nanoseconds. A time that these cannot express (before 1677, after 2262) is the nearest that they can: some servers
// and broken clocks have such times. redoxfs/linux/times.py does the same.
static inline int64_t redox_time_ns(int64_t seconds, int64_t nanoseconds) {
    int64_t time;
    if (__builtin_mul_overflow(seconds, INT64_C(1000000000), &time) ||
        __builtin_add_overflow(time, nanoseconds, &time)) {
        return seconds < 0 ? INT64_MIN : INT64_MAX;
    }
    return time;
}

#endif
