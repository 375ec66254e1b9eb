// The tables of the session against plain arrays: the map, and open files with their sizes, bytes and threads.
#include <errno.h>
#include <string.h>

#include "check.h"
#include "handles.h"

enum { KEYS = 400, ROUNDS = 200000 };

static void test_map(void) {
    static int64_t expected[KEYS];
    redox_map map = {0};
    memset(expected, -1, sizeof expected);
    uint64_t state = 1;
    size_t used = 0;
    for (int round = 0; round < ROUNDS; round++) {
        // Some keys differ in their upper half alone.
        uint64_t index = next_number(&state) % KEYS;
        uint64_t key = index % 2 ? index << 40 : index + 1;
        // It grows and shrinks in turn.
        if (next_number(&state) % 100 < (round / 5000 % 2 ? 20u : 70u)) {
            int64_t value = (int64_t)(next_number(&state) >> 1);
            CHECK(redox_map_reserve(&map));
            redox_map_set(&map, key, value);
            used += expected[index] < 0;
            expected[index] = value;
        } else {
            redox_map_remove(&map, key);
            used -= expected[index] >= 0;
            expected[index] = -1;
        }
        CHECK(map.used == used && 2 * used <= map.room + 1);
        index = next_number(&state) % KEYS;
        CHECK(redox_map_get(&map, index % 2 ? index << 40 : index + 1) == expected[index]);
    }
    CHECK(redox_map_get(&map, 0) == -1);
    redox_map_remove(&map, 0);
    redox_map_clear(&map);
    CHECK(redox_map_get(&map, 1) == -1 && map.room == 0);
}

// Few numbers, so that they are used again and again, in several parts of the table.
enum { HANDLES = 3000, STEP = 60, INODES = 10, THREADS = 8 };

// What the tables must say.
static struct {
    uint64_t inode[HANDLES];  // 0: not open
    uint32_t thread[HANDLES];
    bool has_bytes[HANDLES], direct_io[HANDLES];
    uint32_t reads[HANDLES];
    int64_t bound[INODES];
    uint64_t opened_by[THREADS];  // 0: nothing
    size_t open;
} model;

static void open_one(redox_handles *handles, uint64_t *state, redox_buffer *data) {
    uint64_t number = next_number(state) % (HANDLES / STEP) * STEP, inode = 1 + next_number(state) % (INODES - 1);
    uint32_t thread = (uint32_t)(next_number(state) % THREADS);
    bool has_bytes = next_number(state) % 2, direct_io = next_number(state) % 2;
    int64_t size = (int64_t)(next_number(state) % 4) - 1;
    bool bound_here = false;
    int error =
        redox_handles_open(handles, number, inode, thread, has_bytes ? data : NULL, size, direct_io, &bound_here);
    CHECK(error == (number == 0 || model.inode[number] ? EINVAL : 0));
    if (error) {
        return;
    }
    CHECK(bound_here == (size >= 0 && model.bound[inode] < 0));
    model.inode[number] = inode;
    model.thread[number] = thread;
    model.has_bytes[number] = has_bytes;
    model.direct_io[number] = direct_io;
    model.reads[number] = 0;
    model.open++;
    if (size >= 0) {
        model.bound[inode] = size;
    }
    if (thread) {
        model.opened_by[thread] = number;
    }
}

static void close_one(redox_handles *handles, uint64_t *state) {
    uint64_t number = next_number(state) % (HANDLES / STEP) * STEP;
    redox_buffer *data;
    uint32_t reads;
    CHECK(redox_handles_close(handles, number, &data, &reads) == (model.inode[number] != 0));
    if (!model.inode[number]) {
        return;
    }
    CHECK((data != NULL) == model.has_bytes[number]);
    CHECK(reads == (model.direct_io[number] ? model.reads[number] : 0));
    redox_buffer_drop(data);
    if (model.opened_by[model.thread[number]] == number) {
        model.opened_by[model.thread[number]] = 0;
    }
    model.inode[number] = 0;
    model.open--;
}

static void read_one(redox_handles *handles, uint64_t *state) {
    uint64_t number = next_number(state) % (HANDLES / STEP) * STEP;
    redox_buffer *data = NULL;
    redox_handle_state found = redox_handles_read(handles, number, &data);
    CHECK(found == (!model.inode[number]       ? REDOX_NOT_OPEN
                    : model.has_bytes[number] ? REDOX_WITH_BYTES
                                              : REDOX_WITHOUT_BYTES));
    CHECK((data != NULL) == (found == REDOX_WITH_BYTES));
    redox_buffer_drop(data);
    model.reads[number] += found != REDOX_NOT_OPEN;
}

static void look_one(redox_handles *handles, uint64_t *state) {
    uint64_t inode = 1 + next_number(state) % (INODES - 1);
    uint32_t thread = (uint32_t)(next_number(state) % THREADS);
    _Atomic uint8_t flags = REDOX_ASK;
    CHECK(redox_handles_show(handles, inode, &flags) == model.bound[inode]);
    CHECK(flags == (model.bound[inode] < 0 ? REDOX_ASK | REDOX_SIZED_WHILE_FREE : REDOX_ASK));
    CHECK(redox_handles_turn(handles, &flags) == (model.bound[inode] < 0));
    CHECK(flags == REDOX_ASK && !redox_handles_turn(handles, &flags));
    bool holds = model.opened_by[thread] && model.inode[model.opened_by[thread]] == inode;
    CHECK(redox_handles_held(handles, inode, thread) == (holds ? model.bound[inode] : -1));
}

static void void_one(redox_handles *handles, uint64_t *state) {
    uint64_t inode = 1 + next_number(state) % (INODES - 1);
    uint32_t thread = (uint32_t)(next_number(state) % THREADS);
    switch (next_number(state) % 5) {
    case 0:
        redox_handles_shed(handles, inode);
        for (int number = 0; number < HANDLES; number++) {
            model.has_bytes[number] &= model.inode[number] != inode;
        }
        break;
    case 1:
        redox_handles_unbind(handles, inode);
        model.bound[inode] = -1;
        break;
    case 2:
        CHECK(!redox_handles_bind(handles, inode, 77));
        model.bound[inode] = 77;
        break;
    case 3:
        redox_handles_unhold(handles, thread);
        model.opened_by[thread] = 0;
        break;
    default:
        if (thread == 1) {
            redox_handles_unhold(handles, -1);
            memset(model.opened_by, 0, sizeof model.opened_by);
        }
        break;
    }
}

static void test_handles(void) {
    static redox_handles handles;
    redox_handles_init(&handles);
    memset(model.bound, -1, sizeof model.bound);
    redox_buffer *data = redox_buffer_allocate(10);
    uint64_t state = 2;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t what = next_number(&state) % 100;
        if (what < (round / 20000 % 2 ? 20u : 50u)) {
            open_one(&handles, &state, data);
        } else if (what < 75) {
            close_one(&handles, &state);
        } else if (what < 85) {
            read_one(&handles, &state);
        } else if (what < 98) {
            look_one(&handles, &state);
        } else {
            void_one(&handles, &state);
        }
        size_t holding = 0;
        for (int thread = 0; thread < THREADS; thread++) {
            holding += model.opened_by[thread] != 0;
        }
        CHECK(handles.opened_by.used == holding);
        CHECK(redox_handles_counts(&handles).open == model.open);
    }
    CHECK(model.open > 0);
    // Numbers outside the table, among them the next one.
    for (int shift = 20; shift < 64; shift++) {
        bool bound_here;
        redox_buffer *none = NULL;
        uint32_t reads;
        CHECK(redox_handles_open(&handles, UINT64_C(1) << shift, 1, 1, NULL, -1, false, &bound_here) == EINVAL);
        CHECK(redox_handles_read(&handles, UINT64_C(1) << shift, &none) == REDOX_NOT_OPEN);
        CHECK(!redox_handles_close(&handles, UINT64_C(1) << shift, &none, &reads));
    }
    redox_handles_free(&handles);
    CHECK(atomic_load(&data->references) == 1);
    redox_buffer_drop(data);
    CHECK(redox_buffer_bytes() == 0);
}

int main(void) {
    test_map();
    test_handles();
    return 0;
}
