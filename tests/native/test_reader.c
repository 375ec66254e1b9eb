// The pool of reading threads: its order, its ends, and its bookkeeping under load.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "reader.h"

enum { FILE_BYTES = 100, LONGEST_LOG = 1024 };

// A source whose files hold their entry. Negative entries wait for the gate.
typedef struct {
    redox_source source;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    int waiting;
    int32_t log[LONGEST_LOG];  // the first entry of each read, in the order in which they began
    size_t logged;
} held_source;

static void held_read(const redox_source *source, const int32_t *entries, size_t count, redox_file *files,
                      const atomic_bool *stop) {
    held_source *held = (held_source *)source;
    (void)stop;
    pthread_mutex_lock(&held->lock);
    if (held->logged < LONGEST_LOG) {
        held->log[held->logged++] = entries[0];
    }
    held->waiting++;
    pthread_cond_broadcast(&held->changed);
    while (entries[0] < 0 && !held->open) {
        pthread_cond_wait(&held->changed, &held->lock);
    }
    held->waiting--;
    pthread_mutex_unlock(&held->lock);
    for (size_t i = 0; i < count; i++) {
        files[i].buffer = redox_buffer_allocate(FILE_BYTES);
        CHECK(files[i].buffer);
        memset(files[i].buffer->data, entries[i], FILE_BYTES);
    }
}

static held_source new_source(void) {
    return (held_source){
        .source = {held_read}, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
}

static void open_gate(held_source *held) {
    pthread_mutex_lock(&held->lock);
    held->open = true;
    pthread_cond_broadcast(&held->changed);
    pthread_mutex_unlock(&held->lock);
}

// Waits until so many reads have begun.
static void until_begun(held_source *held, size_t reads) {
    pthread_mutex_lock(&held->lock);
    while (held->logged < reads) {
        pthread_cond_wait(&held->changed, &held->lock);
    }
    pthread_mutex_unlock(&held->lock);
}

static void until_done(redox_pool *pool, size_t reads) {
    while (redox_pool_count(pool).done < reads) {
        sched_yield();
    }
}

static redox_read *read_of(held_source *held, int32_t entry, size_t count) {
    redox_read *read = redox_read_new(&held->source, count);
    CHECK(read);
    for (size_t i = 0; i < count; i++) {
        read->entries[i] = entry;
    }
    return read;
}

static bool is_readable(redox_pool *pool) {
    struct pollfd readable = {redox_pool_fd(pool), POLLIN, 0};
    return poll(&readable, 1, 0) == 1;
}

static void check_and_free(redox_read *read) {
    for (size_t i = 0; i < read->count; i++) {
        CHECK(read->files[i].buffer->size == FILE_BYTES);
        CHECK(read->files[i].buffer->data[FILE_BYTES - 1] == (char)read->entries[i]);
    }
    redox_read_free(read);
}

// Closes a pool that is not held; returns the number of reads that it still had.
static size_t close_all(redox_pool *pool) {
    size_t count = 0;
    redox_read *rest = redox_pool_close(pool, 60);
    while (rest) {
        redox_read *next = rest->next;
        redox_read_free(rest);
        rest = next;
        count++;
    }
    return count;
}

static void test_awaited_reads_and_results_go_first(void) {
    held_source held = new_source();
    redox_pool *pool = redox_pool_new(1);
    CHECK(pool && !is_readable(pool));
    redox_read *reads[8], *taken[8];
    for (int32_t i = 0; i < 8; i++) {
        reads[i] = read_of(&held, i ? i : -1, 1);
    }
    redox_pool_submit(pool, &reads[0], 1, false);
    until_begun(&held, 1);
    redox_pool_submit(pool, &reads[1], 3, true);
    redox_pool_submit(pool, &reads[4], 4, true);
    redox_pool_hasten(pool, reads[6]);
    redox_pool_hasten(pool, reads[6]);
    redox_pool_hasten(pool, reads[0]);
    CHECK(redox_pool_cancel(pool, reads[5]));
    CHECK(!redox_pool_cancel(pool, reads[0]));
    CHECK(redox_pool_count(pool).queued == 6 && redox_pool_count(pool).running == 1);
    CHECK(!is_readable(pool));
    open_gate(&held);
    until_done(pool, 7);
    static const int32_t began[7] = {-1, 1, 4, 6, 2, 3, 7}, came[7] = {-1, 1, 4, 6, 7, 2, 3};
    CHECK(!memcmp(held.log, began, sizeof began));
    // A result that is hastened passes the others that are not awaited.
    redox_pool_hasten(pool, reads[7]);
    CHECK(!redox_pool_cancel(pool, reads[7]));
    CHECK(is_readable(pool));
    CHECK(redox_pool_take(pool, taken, 3) == 3 && is_readable(pool));
    CHECK(redox_pool_take(pool, taken + 3, 5) == 4 && !is_readable(pool));
    CHECK(redox_pool_take(pool, taken, 0) == 0);
    for (int i = 0; i < 7; i++) {
        CHECK(taken[i]->entries[0] == came[i]);
        check_and_free(taken[i]);
    }
    redox_read_free(reads[5]);
    redox_pool_counts counts = redox_pool_count(pool);
    CHECK(counts.reads == 7 && counts.threads == 1 && counts.read_ns > 0 && !counts.done && !counts.queued);
    CHECK(close_all(pool) == 0);
}

static void test_threads_come_and_go(void) {
    held_source held = new_source();
    redox_pool *pool = redox_pool_new(3);
    redox_read *reads[10], *taken[10];
    for (int32_t i = 0; i < 10; i++) {
        reads[i] = read_of(&held, -1 - i, 2);
    }
    redox_pool_submit(pool, reads, 10, false);
    until_begun(&held, 3);
    CHECK(redox_pool_count(pool).running == 3);
    redox_pool_set_threads(pool, 6);
    until_begun(&held, 6);
    redox_pool_set_threads(pool, 0);
    CHECK(redox_pool_count(pool).running == 6);
    open_gate(&held);
    until_done(pool, 10);
    while (redox_pool_count(pool).threads != 1) {
        sched_yield();
    }
    CHECK(redox_pool_take(pool, taken, 10) == 10);
    for (int i = 0; i < 10; i++) {
        check_and_free(taken[i]);
    }
    CHECK(close_all(pool) == 0);
}

static void take_all(redox_pool *pool, size_t reads) {
    until_done(pool, reads);
    redox_read *taken;
    while (redox_pool_take(pool, &taken, 1)) {
        check_and_free(taken);
    }
}

static size_t processor_count(void) { return (size_t)sysconf(_SC_NPROCESSORS_ONLN); }

// A pool of so many threads, all of them started and idle, whose reads never waited for a long time. The gate is closed.
static redox_pool *pool_of_quick_reads(held_source *held, size_t threads) {
    *held = new_source();
    redox_pool *pool = redox_pool_new((unsigned)threads);
    redox_read *reads[LONGEST_LOG], *read;
    CHECK(threads < LONGEST_LOG);
    for (size_t i = 0; i < threads; i++) {
        reads[i] = read_of(held, -1, 1);
    }
    redox_pool_submit(pool, reads, threads, false);
    until_begun(held, threads);
    open_gate(held);
    take_all(pool, threads);
    for (int i = 0; i < 1000; i++) {
        read = read_of(held, 1, 1);
        redox_pool_submit(pool, &read, 1, false);
        take_all(pool, 1);
    }
    pthread_mutex_lock(&held->lock);
    held->open = false;
    held->logged = 0;
    pthread_mutex_unlock(&held->lock);
    return pool;
}

// Where reads never wait, no more threads wake than there are processors. Storage that hangs then must not hold up a
// read that somebody waits for.
static void test_storage_that_begins_to_hang_holds_no_awaited_read(void) {
    size_t processors = processor_count();
    held_source held;
    redox_pool *pool = pool_of_quick_reads(&held, processors + 2);
    redox_read *reads[LONGEST_LOG], *read;
    for (size_t i = 0; i < processors + 1; i++) {
        reads[i] = read_of(&held, i < processors ? -1 : 2, 1);
    }
    redox_pool_submit(pool, reads, processors + 1, false);
    redox_pool_hasten(pool, reads[processors]);
    take_all(pool, 1);
    read = read_of(&held, 3, 1);
    redox_pool_submit(pool, &read, 1, true);
    take_all(pool, 1);
    open_gate(&held);
    take_all(pool, processors);
    CHECK(close_all(pool) == 0);
}

// Nor must it hold up those behind it: parts of it may still answer.
static void test_once_storage_hangs_all_threads_read(void) {
    enum { MORE = 4 };
    size_t processors = processor_count();
    held_source held;
    redox_pool *pool = pool_of_quick_reads(&held, processors + MORE);
    redox_read *reads[LONGEST_LOG];
    for (size_t i = 0; i < processors + MORE; i++) {
        reads[i] = read_of(&held, -1, 1);
    }
    redox_pool_submit(pool, reads, processors, false);
    until_begun(&held, processors);
    // Longer than a read from the page cache takes.
    CHECK(!usleep(50000));
    redox_pool_submit(pool, &reads[processors], MORE, false);
    until_begun(&held, processors + MORE);
    open_gate(&held);
    take_all(pool, processors + MORE);
    CHECK(close_all(pool) == 0);
}

static void test_an_end_returns_what_is_queued_and_done(void) {
    held_source held = new_source();
    redox_pool *pool = redox_pool_new(1);
    redox_read *reads[5];
    for (int32_t i = 0; i < 5; i++) {
        reads[i] = read_of(&held, i == 2 ? -1 : i, 1);
    }
    redox_pool_submit(pool, reads, 5, false);
    until_begun(&held, 3);
    open_gate(&held);
    CHECK(close_all(pool) == 5);
    CHECK(redox_buffer_bytes() == 0);
}

static size_t thread_count(void) {
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    size_t count = 0;
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

static void test_a_read_that_hangs_is_left_behind_and_frees_itself(void) {
    size_t threads = thread_count();
    // The threads that are left behind use it, and nothing orders that before the end of this function.
    static held_source held;
    held = new_source();
    redox_pool *pool = redox_pool_new(2);
    redox_read *reads[4];
    for (int32_t i = 0; i < 4; i++) {
        reads[i] = read_of(&held, -1 - i, 1);
    }
    redox_pool_submit(pool, reads, 4, true);
    until_begun(&held, 2);
    int fd = redox_pool_fd(pool);
    redox_read *rest = redox_pool_close(pool, 0.01);
    CHECK(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
    CHECK(rest && rest->next && !rest->next->next);
    redox_read_free(rest->next);
    redox_read_free(rest);
    open_gate(&held);
    while (thread_count() > threads) {
        sched_yield();
    }
    CHECK(redox_buffer_bytes() == 0);
}

// Each read comes back once: taken, cancelled, or at the end.
static void test_nothing_is_lost_or_doubled_under_load(void) {
    enum { READS = 4000 };
    held_source held = new_source();
    redox_pool *pool = redox_pool_new(8);
    static redox_read *reads[READS];
    static bool is_back[READS], is_inside[READS];
    uint64_t state = 3;
    size_t back = 0, submitted = 0;
    while (submitted < READS || redox_pool_count(pool).running + redox_pool_count(pool).queued) {
        size_t number = next_number(&state) % READS;
        switch (next_number(&state) % 8) {
            case 0:
                redox_pool_set_threads(pool, (unsigned)(next_number(&state) % 12));
                break;
            case 1:
                if (is_inside[number] && redox_pool_cancel(pool, reads[number])) {
                    is_inside[number] = false;
                    is_back[number] = true;
                    redox_read_free(reads[number]);
                    back++;
                }
                break;
            case 2:
            case 3:
                if (is_inside[number]) {
                    redox_pool_hasten(pool, reads[number]);
                }
                break;
            case 4:
            case 5: {
                redox_read *taken[7];
                size_t count = redox_pool_take(pool, taken, 1 + next_number(&state) % 7);
                for (size_t i = 0; i < count; i++) {
                    size_t which = (size_t)(uintptr_t)taken[i]->token;
                    CHECK(is_inside[which] && !is_back[which]);
                    is_inside[which] = false;
                    is_back[which] = true;
                    check_and_free(taken[i]);
                    back++;
                }
                break;
            }
            default: {
                size_t count = next_number(&state) % 20;
                count = count < READS - submitted ? count : READS - submitted;
                for (size_t i = submitted; i < submitted + count; i++) {
                    reads[i] = read_of(&held, (int32_t)(i % 100), 1 + next_number(&state) % 3);
                    reads[i]->token = (void *)(uintptr_t)i;
                    is_inside[i] = true;
                }
                redox_pool_submit(pool, &reads[submitted], count, next_number(&state) % 2 && count);
                submitted += count;
            }
        }
    }
    back += close_all(pool);
    CHECK(back == READS);
    CHECK(redox_buffer_bytes() == 0);
}

static void test_a_read_that_is_too_large_is_refused(void) {
    held_source held = new_source();
    CHECK(!redox_read_new(&held.source, SIZE_MAX));
    CHECK(!redox_read_new(&held.source, SIZE_MAX / sizeof(redox_file)));
    redox_read_free(NULL);
}

int main(void) {
    test_awaited_reads_and_results_go_first();
    test_threads_come_and_go();
    test_storage_that_begins_to_hang_holds_no_awaited_read();
    test_once_storage_hangs_all_threads_read();
    test_an_end_returns_what_is_queued_and_done();
    test_a_read_that_hangs_is_left_behind_and_frees_itself();
    test_nothing_is_lost_or_doubled_under_load();
    test_a_read_that_is_too_large_is_refused();
    return 0;
}
