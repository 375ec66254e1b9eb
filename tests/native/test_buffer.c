// Buffers: references from many threads, memory that does not overlap, and the limit on what is kept.
#include <string.h>

#include "buffer.h"
#include "check.h"

enum { MIB = 1 << 20, THREADS = 8, PLACES = 64, ROUNDS = 1500 };

static size_t draw_size(uint64_t *state) {
    uint64_t kind = next_number(state) % 100;
    size_t most = kind < 40 ? 10000 : kind < 99 ? 300000 : 3 * MIB;
    return next_number(state) % most;
}

// The first and the last bytes of a buffer say how long it is: enough to notice that two of them overlap.
static void mark(redox_buffer *buffer) {
    if (buffer->size >= 2 * sizeof(size_t)) {
        memcpy(buffer->data, &buffer->size, sizeof(size_t));
        memcpy(buffer->data + buffer->size - sizeof(size_t), &buffer->size, sizeof(size_t));
    }
}

static void check_mark(const redox_buffer *buffer) {
    if (buffer->size >= 2 * sizeof(size_t)) {
        CHECK(!memcmp(buffer->data, &buffer->size, sizeof(size_t)));
        CHECK(!memcmp(buffer->data + buffer->size - sizeof(size_t), &buffer->size, sizeof(size_t)));
    }
}

static void test_all_sizes(void) {
    static const size_t sizes[] = {0,     1,     8,     100,   4096,     32735,       32736,
                                   32737, 32768, 65536, 1 << 20, 16 * MIB, 16 * MIB + 1};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    redox_buffer *buffers[COUNT];
    size_t sum = 0;
    for (int i = 0; i < COUNT; i++) {
        buffers[i] = redox_buffer_allocate(sizes[i]);
        CHECK(buffers[i] && buffers[i]->size == sizes[i]);
        CHECK((uintptr_t)buffers[i]->data % 16 == 0);
        memset(buffers[i]->data, i, sizes[i]);
        sum += sizes[i];
        CHECK(redox_buffer_bytes() == sum);
    }
    for (int i = 0; i < COUNT; i++) {
        for (size_t at = 0; at < sizes[i]; at++) {
            CHECK(buffers[i]->data[at] == i);
        }
        redox_buffer_drop(buffers[i]);
    }
    CHECK(redox_buffer_bytes() == 0);
    redox_buffer_drop(NULL);
}

static void test_sizes_that_no_memory_has(void) {
    CHECK(!redox_buffer_allocate(SIZE_MAX));
    CHECK(!redox_buffer_allocate(SIZE_MAX - sizeof(redox_buffer) + 1));
    CHECK(!redox_buffer_allocate(SIZE_MAX / 2));
    CHECK(!redox_buffer_allocate((size_t)1 << 60));
    CHECK(redox_buffer_bytes() == 0);
}

static void test_what_is_kept_is_limited(void) {
    enum { MOST = 4000 };
    static redox_buffer *held[MOST];
    uint64_t state = 5;
    for (int turn = 0; turn < 6 * MOST; turn++) {
        size_t place = turn < MOST ? (size_t)turn : next_number(&state) % MOST;
        redox_buffer_drop(held[place]);
        held[place] = redox_buffer_allocate(draw_size(&state));
        CHECK(held[place]);
        mark(held[place]);
        // Steps and pages add 12 % at most, to the smallest; a sixteenth and 8 MiB are kept for the next buffers.
        CHECK(redox_buffer_resident_bytes() <= redox_buffer_bytes() + redox_buffer_bytes() / 8 + 9 * MIB);
    }
    for (int place = 0; place < MOST; place++) {
        check_mark(held[place]);
        redox_buffer_drop(held[place]);
        CHECK(redox_buffer_resident_bytes() <= redox_buffer_bytes() * 2 + 9 * MIB);
    }
    CHECK(redox_buffer_bytes() == 0);
    CHECK(redox_buffer_resident_bytes() <= 8 * MIB);
}

// Places where threads put buffers and take those of others.
static redox_buffer *_Atomic places[PLACES];

static void *exchange(void *number) {
    uint64_t state = (uintptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        redox_buffer *mine = redox_buffer_allocate(draw_size(&state));
        CHECK(mine);
        mark(mine);
        redox_buffer *others = atomic_exchange(&places[next_number(&state) % PLACES], mine);
        if (others) {
            check_mark(others);
            redox_buffer_drop(others);
        }
    }
    return NULL;
}

static void test_threads_free_what_others_allocated(void) {
    run_threads(THREADS, exchange);
    for (int i = 0; i < PLACES; i++) {
        redox_buffer_drop(places[i]);
        places[i] = NULL;
    }
    CHECK(redox_buffer_bytes() == 0);
    CHECK(redox_buffer_resident_bytes() <= 8 * MIB);
}

static redox_buffer *shared;

static void *take_and_drop(void *number) {
    redox_buffer *held[10];
    uint64_t state = (uintptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        int count = (int)(next_number(&state) % 10);
        for (int i = 0; i < count; i++) {
            held[i] = redox_buffer_take(shared);
        }
        check_mark(shared);
        for (int i = 0; i < count; i++) {
            redox_buffer_drop(held[i]);
        }
    }
    redox_buffer_drop(shared);
    return NULL;
}

static void test_the_last_reference_of_many_threads_frees(void) {
    for (size_t size = 1000; size < 20 * MIB; size *= 20) {
        shared = redox_buffer_allocate(size);
        CHECK(shared);
        mark(shared);
        for (int i = 1; i < THREADS; i++) {
            CHECK(redox_buffer_take(shared) == shared);
        }
        run_threads(THREADS, take_and_drop);
        CHECK(redox_buffer_bytes() == 0);
    }
}

int main(void) {
    test_all_sizes();
    test_sizes_that_no_memory_has();
    test_what_is_kept_is_limited();
    test_threads_free_what_others_allocated();
    test_the_last_reference_of_many_threads_frees();
    return 0;
}
