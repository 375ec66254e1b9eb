// Times, in nanoseconds: of files, as the catalog has them, and of the monotonic clock.

#ifndef REDOX_TIMES_H
#define REDOX_TIMES_H

#include <stdint.h>
#include <time.h>

// A time of a file. One that these cannot express (before 1677, after 2262) is the nearest that they can: some servers
// and broken clocks have such times. redoxfs/linux/times.py does the same.
static inline int64_t redox_time_ns(int64_t seconds, int64_t nanoseconds) {
    int64_t time;
    if (__builtin_mul_overflow(seconds, INT64_C(1000000000), &time) ||
        __builtin_add_overflow(time, nanoseconds, &time)) {
        return seconds < 0 ? INT64_MIN : INT64_MAX;
    }
    return time;
}

static inline int64_t redox_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
