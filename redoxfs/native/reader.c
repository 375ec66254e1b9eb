#include "reader.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "threads.h"
#include "times.h"

enum {
    // A thread's reads need little: a path, and the pieces of one system call.
    STACK_BYTES = 256 << 10,
    // The share of reads that had to wait for storage, as a moving average over about so many reads. WAITED is all.
    AVERAGE_OVER = 64,
    WAITED = 1 << 20,
    // Below this share, reads come from the page cache. One that waits takes it above for some ninety reads.
    SELDOM_WAITED = WAITED / 256,
    // No read from the page cache takes as long. Of reads that do, the average says nothing before they end.
    HELD_NS = 20 * 1000000,
};

// Where a read is.
enum { OUTSIDE, QUEUED, RUNNING, DONE };

typedef struct list {
    redox_read *first, *last;
    size_t length;
} list;

struct redox_pool {
    atomic_size_t references;  // one of the caller, one of each thread
    atomic_bool closing;
    int fd;
    pthread_mutex_t lock;  // of everything below
    pthread_cond_t work, ended;
    list queue[2], done[2];  // [1]: awaited
    unsigned wanted, threads, idle;
    size_t running;
    int64_t moved_ns;  // when a read last ended, or began while a processor was free
    bool signalled;  // the eventfd
    bool abandoned;  // nobody takes results any more
    uint64_t read_ns;
    size_t reads, files, processors;
    int waited_share;
};

// Lists

static void append(list *to, redox_read *read) {
    read->next = NULL;
    read->previous = to->last;
    if (to->last) {
        to->last->next = read;
    } else {
        to->first = read;
    }
    to->last = read;
    to->length++;
}

static void detach(list *from, redox_read *read) {
    if (read->previous) {
        read->previous->next = read->next;
    } else {
        from->first = read->next;
    }
    if (read->next) {
        read->next->previous = read->previous;
    } else {
        from->last = read->previous;
    }
    read->next = read->previous = NULL;
    from->length--;
}

// The first of the awaited ones, or of the others, or NULL.
static redox_read *pop(list lists[2]) {
    for (int awaited = 1; awaited >= 0; awaited--) {
        redox_read *read = lists[awaited].first;
        if (read) {
            detach(&lists[awaited], read);
            return read;
        }
    }
    return NULL;
}

static size_t length(const list lists[2]) { return lists[0].length + lists[1].length; }

// Reads

redox_read *redox_read_new(const redox_source *source, size_t count) {
    if (count > (SIZE_MAX / 2 - sizeof(redox_read)) / (sizeof(int32_t) + sizeof(redox_file))) {
        return NULL;
    }
    // The results lie behind the entries, in the same piece of memory.
    size_t files_at = sizeof(redox_read) + count * sizeof(int32_t);
    files_at += -files_at % _Alignof(redox_file);
    redox_read *read = calloc(1, files_at + count * sizeof(redox_file));
    if (read) {
        read->source = source;
        read->count = count;
        read->files = (redox_file *)((char *)read + files_at);
    }
    return read;
}

void redox_read_free(redox_read *read) {
    if (!read) {
        return;
    }
    for (size_t i = 0; i < read->count; i++) {
        redox_buffer_drop(read->files[i].buffer);
    }
    free(read);
}

// The pool

static void drop(redox_pool *pool) {
    if (atomic_fetch_sub_explicit(&pool->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int redox_pool_fd(const redox_pool *pool) { return pool->fd; }

// Writes or clears the eventfd, so that it is readable while there are results.
static void signal_results(redox_pool *pool) {
    bool here = length(pool->done) > 0;
    if (here == pool->signalled) {
        return;
    }
    // Neither can fail: the count is 0 or 1, and the descriptor is ours.
    uint64_t count = 1;
    ssize_t size = here ? write(pool->fd, &count, sizeof count) : read(pool->fd, &count, sizeof count);
    pool->signalled = size == sizeof count ? here : pool->signalled;
}

static void wake_one(redox_pool *pool) {
    if (pool->idle && length(pool->queue)) {
        pthread_cond_signal(&pool->work);
    }
}

// Each thread that gets work wakes the next one for what is left, so whoever submits pays for one wake-up. Reads that
// never wait keep the processors busy as they are: more threads than processors would only take turns. But storage may
// have begun to hold them.
static void wake_next(redox_pool *pool, int64_t now_ns) {
    if (pool->running < pool->processors || pool->waited_share >= SELDOM_WAITED || now_ns - pool->moved_ns > HELD_NS) {
        wake_one(pool);
    }
}

// How often this thread has waited for something.
static long waits(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nvcsw;
}

static void carry_out(redox_pool *pool, redox_read *read) {
    int64_t began = redox_now_ns();
    read->place = RUNNING;
    if (pool->running++ < pool->processors) {
        pool->moved_ns = began;
    }
    wake_next(pool, began);
    pthread_mutex_unlock(&pool->lock);
    long waits_before = waits();
    read->source->read(read->source, read->entries, read->count, read->files, &pool->closing);
    int64_t ended = redox_now_ns();
    uint64_t took = (uint64_t)(ended - began);
    bool waited = waits() != waits_before;
    pthread_mutex_lock(&pool->lock);
    pool->running--;
    pool->moved_ns = ended;
    pool->waited_share += ((waited ? WAITED : 0) - pool->waited_share) / AVERAGE_OVER;
    pool->read_ns += took;
    pool->reads++;
    pool->files += read->count;
    if (pool->abandoned) {
        redox_read_free(read);
        return;
    }
    read->place = DONE;
    append(&pool->done[read->awaited], read);
    signal_results(pool);
}

static void *work(void *argument) {
    redox_pool *pool = argument;
    pthread_setname_np(pthread_self(), "redoxfs-read");
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->closing) && pool->threads <= pool->wanted) {
        redox_read *read = pop(pool->queue);
        if (read) {
            carry_out(pool, read);
        } else {
            pool->idle++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->idle--;
        }
    }
    pool->threads--;
    // The wake-up of this thread may have been for a read.
    wake_one(pool);
    pthread_cond_signal(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    drop(pool);
    return NULL;
}

// Returns 0, or an errno.
static int start_thread(redox_pool *pool) {
    pthread_attr_t options;
    int failure = pthread_attr_init(&options);
    if (failure) {
        return failure;
    }
    pthread_attr_setdetachstate(&options, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&options, STACK_BYTES);
    atomic_fetch_add_explicit(&pool->references, 1, memory_order_relaxed);
    pthread_t thread;
    failure = redox_thread_start(&thread, &options, work, pool);
    pthread_attr_destroy(&options);
    if (failure) {
        atomic_fetch_sub_explicit(&pool->references, 1, memory_order_relaxed);
    } else {
        pool->threads++;
    }
    return failure;
}

// Starts a thread for each queued read that no thread is free for. There is always one.
static void start_threads(redox_pool *pool) {
    while (pool->threads < pool->wanted && pool->threads - pool->running < length(pool->queue) && !start_thread(pool)) {
    }
}

redox_pool *redox_pool_new(unsigned threads) {
    redox_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return NULL;
    }
    pool->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pool->fd < 0) {
        free(pool);
        return NULL;
    }
    atomic_init(&pool->references, 1);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    redox_condition_init(&pool->ended);
    pool->wanted = threads ? threads : 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    pool->processors = processors > 0 ? (size_t)processors : 1;
    pool->waited_share = WAITED;
    pthread_mutex_lock(&pool->lock);
    int failure = start_thread(pool);
    pthread_mutex_unlock(&pool->lock);
    if (failure) {
        close(pool->fd);
        drop(pool);
        errno = failure;
        return NULL;
    }
    return pool;
}

void redox_pool_submit(redox_pool *pool, redox_read *const *reads, size_t count, bool awaited) {
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < count; i++) {
        reads[i]->place = QUEUED;
        reads[i]->awaited = awaited && i == 0;
        append(&pool->queue[reads[i]->awaited], reads[i]);
    }
    start_threads(pool);
    wake_one(pool);
    pthread_mutex_unlock(&pool->lock);
}

void redox_pool_hasten(redox_pool *pool, redox_read *read) {
    pthread_mutex_lock(&pool->lock);
    if (!read->awaited) {
        read->awaited = true;
        if (read->place == QUEUED || read->place == DONE) {
            list *lists = read->place == QUEUED ? pool->queue : pool->done;
            detach(&lists[0], read);
            append(&lists[1], read);
            // The threads that are awake may be held by storage.
            wake_one(pool);
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

bool redox_pool_cancel(redox_pool *pool, redox_read *read) {
    pthread_mutex_lock(&pool->lock);
    bool was_queued = read->place == QUEUED;
    if (was_queued) {
        detach(&pool->queue[read->awaited], read);
        read->place = OUTSIDE;
    }
    pthread_mutex_unlock(&pool->lock);
    return was_queued;
}

size_t redox_pool_take(redox_pool *pool, redox_read **reads, size_t most) {
    pthread_mutex_lock(&pool->lock);
    size_t taken = 0;
    while (taken < most && (reads[taken] = pop(pool->done))) {
        reads[taken++]->place = OUTSIDE;
    }
    signal_results(pool);
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

void redox_pool_set_threads(redox_pool *pool, unsigned threads) {
    pthread_mutex_lock(&pool->lock);
    pool->wanted = threads ? threads : 1;
    start_threads(pool);
    if (pool->threads > pool->wanted) {
        pthread_cond_broadcast(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
}

redox_pool_counts redox_pool_count(redox_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    redox_pool_counts counts = {
        .queued = length(pool->queue),
        .running = pool->running,
        .done = length(pool->done),
        .reads = pool->reads,
        .files = pool->files,
        .threads = pool->threads,
        .read_ns = pool->read_ns,
    };
    pthread_mutex_unlock(&pool->lock);
    return counts;
}

redox_read *redox_pool_close(redox_pool *pool, double wait_s) {
    int64_t until_ns = redox_now_ns() + (int64_t)(wait_s * 1e9);
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->closing, true);
    pthread_cond_broadcast(&pool->work);
    while (pool->threads && pthread_cond_timedwait(&pool->ended, &pool->lock, &until) != ETIMEDOUT) {
    }
    list rest = {0};
    for (redox_read *read; (read = pop(pool->queue)) || (read = pop(pool->done));) {
        append(&rest, read);
    }
    pool->abandoned = true;
    // Not in `drop`: a thread that storage holds, or that is about to end, still has a reference to the pool.
    close(pool->fd);
    pthread_mutex_unlock(&pool->lock);
    drop(pool);
    return rest.first;
}
