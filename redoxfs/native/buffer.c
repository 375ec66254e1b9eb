// The bytes of files, in memory of their own rather than malloc's.
//
// The daemon promises that its RSS stays near the bytes that it is told to keep. Buffers of all sizes are allocated by
// many threads and dropped by another one in random order, for weeks. malloc keeps what it cannot join to larger
// pieces, in an arena for every few threads. mmap for each buffer keeps nothing, but fresh pages are dear: writing
// 100 kB takes 9 us in pages that are there, and 70 us more in pages that are not (2 cores of a virtual machine, Linux
// 6.18). So pages are reused as long as little is kept that nobody uses, and returned to the system beyond that:
//
// - A buffer above 8 pages has a *span*: addresses for 2^n pages, of which only those that it needs get memory.
//   Addresses cost nothing, so spans are neither split nor joined, and nothing is left over between them. A dropped
//   buffer's span waits with its pages, sorted by their number, for a buffer that needs about as many.
// - Smaller buffers share a span, a *slab* of objects of equal size: 8 of them or little more, since a single one is
//   enough to keep their pages. Where pages are large, fewer: as few as fill their pages to 15 parts of 16.
// - A sixteenth of what is needed (256 MiB at most) and 8 MiB may be neither needed nor returned. Beyond it each drop
//   returns about as much as it frees: from the spans that wait, and if there are none, the pages of the object that it
//   drops.
//
// Measured with 256 MiB in use, which 16 threads allocate and write and one drops at random: CPU time of a buffer, with
// writing it and the queue between them; RSS by the bytes in use, on average and at most.
//
//                           100 kB            10 kB            1 kB to 8 MB      1.5, 10, 100, 300 kB in turn
//     this                   27 us 1.10 1.11  16 us 1.11 1.12   75 us 1.07 1.10  35 us 1.23 1.41
//     malloc                 26 us 1.29 1.46  18 us 1.25 1.40   31 us 2.08 2.41  25 us 1.66 2.14
//     malloc, one arena      29 us 1.05 1.09  15 us 1.03 1.04   26 us 1.29 1.43  36 us 1.37 1.59
//     malloc, mmap: 64 KiB  104 us 1.04 1.06  21 us 1.17 1.18  194 us 1.02 1.03  36 us 1.24 1.64
//
// Other programs ran on the machine, so times vary by a fifth. With 2 GB in use, 10 kB take 11 us and 1.07: the more
// buffers there are, the less their sum varies. malloc_trim after each 64 MB brings malloc to 1.1 on average, and to up
// to four times its CPU time. Not tried: jemalloc, a dependency.
//
// One lock guards the lists. No call to the kernel is made under it, but for reserving addresses. To drop a buffer and
// allocate another takes 40 to 70 ns together, if nobody else does. References take no lock: 3 ns each.
#include "buffer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels refuse it, and pages come one by one
#endif

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define LEND(start, bytes) ASAN_UNPOISON_MEMORY_REGION(start, bytes)
#define SEAL(start, bytes) ASAN_POISON_MEMORY_REGION(start, bytes)
#else
// AddressSanitizer reports accesses to bytes that are sealed and not lent again.
#define LEND(start, bytes) ((void)(start), (void)(bytes))
#define SEAL(start, bytes) ((void)(start), (void)(bytes))
#endif

enum {
    // Steps from one power of two to the next: rounding up to a step adds an eighth at most, 6 % on average.
    STEPS = 8,
    // Buffers of up to so many pages share slabs. A larger one has pages of its own; the rest of the last page is 6 % on
    // average.
    SMALL_PAGES = 8,
    // The grain of small buffers, with their header.
    GRAIN_BYTES = 16,
    // A slab holds few objects: one of them is enough to keep it. But it has its own cost, so it is not too small.
    SLAB_OBJECTS = 8,
    SLAB_BYTES = 16 << 10,
    // Objects above it share a slab only where pages are large.
    LARGE_OBJECT_BYTES = (32 << 10) + 1,
    // Above it a buffer is mapped and unmapped by itself.
    LARGE_BYTES = 16 << 20,
    // Address space is reserved by this much at least.
    RESERVE_BYTES = 4 << 20,
    // What may be kept for the next buffers: so much, and a part of what is needed, up to a limit. The sum of many sizes
    // varies with the square root of their number.
    KEPT_BYTES = 8 << 20,
    KEPT_PART = 16,
    MOST_KEPT_BYTES = 256 << 20,

    ORDERS = 14,                  // spans of 1, 2, 4 … 4096 pages of 4 kB
    BINS = (ORDERS - 3) * STEPS,  // steps of pages
    CLASSES = 14 * STEPS,         // steps of grains, up to `SMALL_PAGES` of 64 kB
};

// Addresses of 2^order pages, of which the first `resident` have memory.
typedef struct span {
    struct span *next, *previous;
    char *memory;
    uint32_t resident;
    uint8_t order;
    // A slab only.
    uint8_t class;
    uint32_t objects;    // that fit
    uint32_t cut;        // objects that were in use at some time: the first ones
    uint32_t live;       // objects in use
    struct object *free;  // among those that were cut
    size_t hollow_bytes;  // the sum over them
    // A buffer with pages of its own only.
    redox_buffer buffer;
} span;

// A free place in a slab.
typedef struct object {
    struct object *next;
    size_t hollow_bytes;  // of pages within it that were returned to the system
} object;

static struct {
    pthread_mutex_t lock;  // of all that follows
    // The sizes of all buffers; the same rounded up to objects and pages; all pages that spans have.
    atomic_size_t used_bytes, needed_bytes, resident_bytes;
    span *idle[BINS];         // not in use, with memory: by their pages
    size_t idle_pages[BINS];  // and how many those are together
    span *bare[ORDERS];       // not in use, without memory
    span *uncut[ORDERS];      // the next of the reserved spans
    size_t uncut_spans[ORDERS], spans[ORDERS];
    span *slabs[CLASSES];  // with room
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

#ifdef REDOX_PAGE_BYTES  // of another machine, for tests: a multiple of this one's
static size_t page_bytes(void) { return REDOX_PAGE_BYTES; }
#else
static size_t page_bytes(void) {
    static atomic_size_t known;
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (!bytes) {
        bytes = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}
#endif

static size_t pages_of(size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes(); }

// The smallest step whose size is at least n: 1, 2, … 8, 9, … 16, 18, 20, … 32, 36, …
static unsigned step_of(size_t n) {
    if (n <= STEPS) {
        return (unsigned)n - 1;
    }
    unsigned shift = 60 - (unsigned)__builtin_clzl(n - 1);
    return STEPS * shift + (unsigned)((n - 1) >> shift);
}

static size_t step_size(unsigned step) {
    return step < STEPS ? step + 1 : (size_t)(step % STEPS + STEPS + 1) << (step / STEPS - 1);
}

static unsigned order_of(size_t pages) { return pages < 2 ? 0 : 64 - (unsigned)__builtin_clzl(pages - 1); }

static void add(atomic_size_t *counter, size_t bytes) {
    atomic_fetch_add_explicit(counter, bytes, memory_order_relaxed);
}

static void subtract(atomic_size_t *counter, size_t bytes) {
    atomic_fetch_sub_explicit(counter, bytes, memory_order_relaxed);
}

static size_t object_bytes(unsigned class) { return step_size(class) * GRAIN_BYTES; }

static bool is_small(size_t size) { return size <= SMALL_PAGES * page_bytes() - sizeof(redox_buffer); }

static unsigned class_of(size_t size) {
    return step_of((sizeof(redox_buffer) + size + GRAIN_BYTES - 1) / GRAIN_BYTES);
}

static size_t needed_bytes(size_t size) {
    return is_small(size) ? object_bytes(class_of(size)) : pages_of(size) * page_bytes();
}

static bool too_much_is_kept(void) {
    size_t needed = atomic_load_explicit(&memory.needed_bytes, memory_order_relaxed), kept = needed / KEPT_PART;
    return redox_buffer_resident_bytes() > needed + (kept < MOST_KEPT_BYTES ? kept : MOST_KEPT_BYTES) + KEPT_BYTES;
}

// Spans ------------------------------------------------------------------------------------------------------------

static span *pop(span **list) {
    span *first = *list;
    if (first) {
        *list = first->next;
    }
    return first;
}

static void push(span **list, span *new) {
    new->next = *list;
    *list = new;
}

static span *pop_idle(unsigned bin) {
    span *found = pop(&memory.idle[bin]);
    if (found) {
        memory.idle_pages[bin] -= found->resident;
    }
    return found;
}

static void push_idle(span *free) {
    unsigned bin = step_of(free->resident);
    push(&memory.idle[bin], free);
    memory.idle_pages[bin] += free->resident;
}

// Reserves addresses for further spans. They take no memory until they are used.
static bool reserve(unsigned order) {
    size_t bytes = page_bytes() << order;
    // In proportion to what there is, so that there are few mappings.
    size_t count = memory.spans[order] / 4 + (bytes < RESERVE_BYTES ? RESERVE_BYTES / bytes : 1);
    span *spans = calloc(count, sizeof *spans);
    if (!spans) {
        return false;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *addresses = mmap(NULL, count * bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (addresses == MAP_FAILED) {
        free(spans);
        return false;
    }
    // A huge page would be counted whole where only some of its pages are used.
    madvise(addresses, count * bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < count; i++) {
        spans[i].memory = addresses + i * bytes;
        spans[i].order = (uint8_t)order;
    }
    memory.uncut[order] = spans;
    memory.uncut_spans[order] = count;
    memory.spans[order] += count;
    return true;
}

static span *cut_span(unsigned order) {
    if (!memory.uncut_spans[order] && !reserve(order)) {
        return NULL;
    }
    memory.uncut_spans[order]--;
    return memory.uncut[order]++;
}

// A span for so many pages, with the lock held; NULL without memory. Its `resident` may be more or less: see `fit`.
static span *take_span(size_t pages) {
    unsigned order = order_of(pages), bin = step_of(pages);
    span *found = pop_idle(bin);
    if (!found && bin + 1 < BINS) {
        found = pop_idle(bin + 1);
    }
    // Below, down to half as many pages: the others of the same order.
    for (unsigned lower = bin; !found && lower > 0 && order_of(step_size(lower - 1)) == order; lower--) {
        found = pop_idle(lower - 1);
    }
    if (!found) {
        found = pop(&memory.bare[order]);
    }
    return found ? found : cut_span(order);
}

// Counts a span as one of so many pages, with the lock held. Returns how many it had.
static size_t fit(span *taken, size_t pages) {
    size_t had = taken->resident;
    if (had < pages) {
        add(&memory.resident_bytes, (pages - had) * page_bytes());
    } else if (had > pages && too_much_is_kept()) {
        subtract(&memory.resident_bytes, (had - pages) * page_bytes());
    } else {
        return had;
    }
    taken->resident = (uint32_t)pages;
    return had;
}

// Gets or returns the memory that `fit` has counted. Without the lock.
static void move_pages(span *taken, size_t had) {
    size_t has = taken->resident;
    char *memory_end = taken->memory + (had < has ? had : has) * page_bytes();
    if (had < has) {
        // At once: page by page it takes longer. Whether it succeeds or not, the first access to a page would do it.
        madvise(memory_end, (has - had) * page_bytes(), MADV_POPULATE_WRITE);
    } else if (had > has) {
        madvise(memory_end, (had - has) * page_bytes(), MADV_DONTNEED);
    }
}

// The bin that keeps most, or BINS if none keeps any.
static unsigned fullest_bin(void) {
    unsigned fullest = BINS;
    size_t most = 0;
    for (unsigned bin = 0; bin < BINS; bin++) {
        if (memory.idle_pages[bin] > most) {
            most = memory.idle_pages[bin];
            fullest = bin;
        }
    }
    return fullest;
}

// Returns memory to the system until what is kept is within its limit. With the lock held, which it lets go meanwhile.
static void return_memory(void) {
    while (too_much_is_kept()) {
        unsigned bin = fullest_bin();
        if (bin == BINS) {
            return;
        }
        span *idle = pop_idle(bin);
        size_t bytes = idle->resident * page_bytes();
        subtract(&memory.resident_bytes, bytes);
        idle->resident = 0;
        pthread_mutex_unlock(&memory.lock);
        madvise(idle->memory, bytes, MADV_DONTNEED);
        pthread_mutex_lock(&memory.lock);
        push(&memory.bare[idle->order], idle);
    }
}

// Small buffers: objects in slabs ----------------------------------------------------------------------------------

static void link_slab(span *slab) {
    span **list = &memory.slabs[slab->class];
    slab->previous = NULL;
    slab->next = *list;
    if (*list) {
        (*list)->previous = slab;
    }
    *list = slab;
}

static void unlink_slab(span *slab) {
    if (slab->previous) {
        slab->previous->next = slab->next;
    } else {
        memory.slabs[slab->class] = slab->next;
    }
    if (slab->next) {
        slab->next->previous = slab->previous;
    }
}

// The pages of a slab: for `SLAB_OBJECTS`, or for fewer large ones if these leave no more than a sixteenth over.
static size_t slab_pages(unsigned class) {
    size_t object = object_bytes(class), bytes = SLAB_OBJECTS * object;
    size_t most = pages_of(bytes < SLAB_BYTES ? SLAB_BYTES : bytes);
    for (size_t pages = object < LARGE_OBJECT_BYTES ? most : pages_of(object); pages < most; pages++) {
        size_t all = pages * page_bytes();
        if (all % object <= all / 16) {
            return pages;
        }
    }
    return most;
}

static span *new_slab(unsigned class) {
    size_t pages = slab_pages(class);
    span *slab = take_span(pages);
    if (!slab) {
        return NULL;
    }
    // The first accesses bring the pages, so nothing has to be moved.
    if (slab->resident < pages) {
        fit(slab, pages);
    }
    slab->class = (uint8_t)class;
    slab->objects = (uint32_t)(pages * page_bytes() / object_bytes(class));
    slab->cut = slab->live = 0;
    slab->free = NULL;
    slab->hollow_bytes = 0;
    link_slab(slab);
    return slab;
}

// Counts pages of free objects that are about to come back, by an access.
static void refill(span *slab, size_t bytes) {
    slab->hollow_bytes -= bytes;
    add(&memory.resident_bytes, bytes);
}

static redox_buffer *take_object(size_t size) {
    unsigned class = class_of(size);
    span *slab = memory.slabs[class] ? memory.slabs[class] : new_slab(class);
    if (!slab) {
        return NULL;
    }
    redox_buffer *buffer;
    if (slab->free) {
        LEND(slab->free, sizeof(object));
        buffer = (redox_buffer *)slab->free;
        refill(slab, slab->free->hollow_bytes);
        slab->free = slab->free->next;
    } else {
        buffer = (redox_buffer *)(slab->memory + slab->cut++ * object_bytes(class));
    }
    if (++slab->live == slab->objects) {
        unlink_slab(slab);
    }
    SEAL(buffer, object_bytes(class));
    LEND(buffer, sizeof *buffer + size);
    buffer->data = (char *)(buffer + 1);
    buffer->span = slab;
    return buffer;
}

// Returns the whole pages of an object, if that is the only memory that can be returned: one object is enough to keep a
// slab, so while large buffers take the place of small ones, most slabs are kept and nearly empty. Returns the bytes.
// With the lock held, which it lets go meanwhile: the object is still the caller's.
static size_t hollow_out(object *free, const span *slab) {
    size_t mask = page_bytes() - 1;
    uintptr_t start = ((uintptr_t)(free + 1) + mask) & ~mask;
    uintptr_t end = ((uintptr_t)free + object_bytes(slab->class)) & ~mask;
    if (start >= end || !too_much_is_kept() || fullest_bin() < BINS) {
        return 0;
    }
    subtract(&memory.resident_bytes, end - start);
    pthread_mutex_unlock(&memory.lock);
    madvise((void *)start, end - start, MADV_DONTNEED);
    pthread_mutex_lock(&memory.lock);
    return end - start;
}

static void drop_object(redox_buffer *buffer, span *slab) {
    object *free = (object *)buffer;
    free->hollow_bytes = hollow_out(free, slab);
    slab->hollow_bytes += free->hollow_bytes;
    free->next = slab->free;
    slab->free = free;
    SEAL(free, object_bytes(slab->class));
    if (slab->live-- == slab->objects) {
        link_slab(slab);
    }
    if (!slab->live) {
        unlink_slab(slab);
        refill(slab, slab->hollow_bytes);
        push_idle(slab);
    }
}

// Buffers ----------------------------------------------------------------------------------------------------------

static redox_buffer *allocate_small(size_t size) {
    pthread_mutex_lock(&memory.lock);
    redox_buffer *buffer = take_object(size);
    pthread_mutex_unlock(&memory.lock);
    return buffer;
}

static redox_buffer *allocate_span(size_t size) {
    size_t pages = pages_of(size);
    pthread_mutex_lock(&memory.lock);
    span *taken = take_span(pages);
    size_t had = taken ? fit(taken, pages) : 0;
    pthread_mutex_unlock(&memory.lock);
    if (!taken) {
        return NULL;
    }
    move_pages(taken, had);
    SEAL(taken->memory, page_bytes() << taken->order);
    LEND(taken->memory, size);
    LEND(&taken->buffer, sizeof taken->buffer);
    taken->buffer.data = taken->memory;
    taken->buffer.span = taken;
    return &taken->buffer;
}

static redox_buffer *allocate_mapping(size_t size) {
    redox_buffer *buffer = size > PTRDIFF_MAX ? NULL : malloc(sizeof *buffer);
    if (!buffer) {
        return NULL;
    }
    buffer->data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (buffer->data == MAP_FAILED) {
        free(buffer);
        return NULL;
    }
    buffer->span = NULL;
    add(&memory.resident_bytes, pages_of(size) * page_bytes());
    return buffer;
}

redox_buffer *redox_buffer_allocate(size_t size) {
    redox_buffer *buffer = is_small(size)        ? allocate_small(size)
                           : size <= LARGE_BYTES ? allocate_span(size)
                                                 : allocate_mapping(size);
    if (buffer) {
        atomic_init(&buffer->references, 1);
        buffer->size = size;
        add(&memory.used_bytes, size);
        add(&memory.needed_bytes, needed_bytes(size));
    }
    return buffer;
}

redox_buffer *redox_buffer_take(redox_buffer *buffer) {
    // Whoever takes a reference has one already, so nothing has to be ordered before it.
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
    return buffer;
}

static void free_mapping(redox_buffer *buffer) {
    subtract(&memory.resident_bytes, pages_of(buffer->size) * page_bytes());
    munmap(buffer->data, buffer->size);
    free(buffer);
}

void redox_buffer_drop(redox_buffer *buffer) {
    // What each thread did with the bytes comes before the thread that frees them.
    if (!buffer || atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    subtract(&memory.used_bytes, buffer->size);
    subtract(&memory.needed_bytes, needed_bytes(buffer->size));
    span *source = buffer->span;
    if (!source) {
        free_mapping(buffer);
        return;
    }
    pthread_mutex_lock(&memory.lock);
    if (buffer != &source->buffer) {
        drop_object(buffer, source);
    } else {
        SEAL(source->memory, buffer->size);
        SEAL(buffer, sizeof *buffer);
        push_idle(source);
    }
    return_memory();
    pthread_mutex_unlock(&memory.lock);
}

size_t redox_buffer_bytes(void) { return atomic_load_explicit(&memory.used_bytes, memory_order_relaxed); }

size_t redox_buffer_resident_bytes(void) {
    return atomic_load_explicit(&memory.resident_bytes, memory_order_relaxed);
}
