// What the C tests share. A test is a program test_NAME.c; tests/t1_native_sanitizers.py builds and runs it.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Also where NDEBUG is set, and with the place.
#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

// The same numbers in each run. Each thread has a state of its own, which is not 0.
static inline uint64_t next_number(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void run_threads(int count, void *(*body)(void *number)) {
    pthread_t threads[64];
    CHECK(count <= 64);
    for (intptr_t i = 0; i < count; i++) {
        CHECK(!pthread_create(&threads[i], NULL, body, (void *)(i + 1)));
    }
    for (int i = 0; i < count; i++) {
        CHECK(!pthread_join(threads[i], NULL));
    }
}
