#include "shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "replies.h"
#include "requests.h"

static const char MAGIC[] = "RedoxShm";

// A number of a request and its slot make a ticket. The number counts on after its highest bits are cut off, which
// takes longer than any mount lives.
enum { SLOT_BITS = 13, NUMBER_BITS = 49, PAGE = 4096 };
static const uint64_t NUMBER_MASK = (UINT64_C(1) << NUMBER_BITS) - 1;

_Static_assert(REDOX_SLOTS == 1 << SLOT_BITS, "a slot's number has SLOT_BITS");
_Static_assert(sizeof(redox_note) == 32 && sizeof(redox_kept) == 384, "the layout");
_Static_assert(sizeof(redox_shared_head) <= PAGE, "the head is one page");

// A read from the kernel may take a whole message; pages that none has reached take no memory.
static size_t landing_bytes(void) { return ((size_t)REDOX_REQUEST_BYTES + PAGE - 1) / PAGE * PAGE; }

static size_t slots_at(void) { return PAGE + REDOX_DEVICES * landing_bytes(); }
static size_t ring_at(void) { return slots_at() + (size_t)REDOX_SLOTS * sizeof(redox_kept); }
static size_t areas_at(uint64_t entries) { return ring_at() + entries * sizeof(redox_note); }

static bool is_whole(const redox_shared_head *head, size_t bytes) {
    uint64_t entries = head->entries, area = head->area_bytes;
    return entries && !(entries & (entries - 1)) && entries < UINT32_MAX && area < UINT64_C(1) << 40 &&
           head->bytes == bytes && bytes == areas_at(entries) + 2 * area && head->latest <= 2 &&
           head->init_bytes <= REDOX_INIT_BYTES && head->checkpoints[0].bytes <= area &&
           head->checkpoints[1].bytes <= area;
}

static void lay_out(redox_shared_head *head, size_t bytes, uint64_t entries, uint64_t area_bytes) {
    head->layout = REDOX_LAYOUT;
    head->bytes = bytes;
    head->entries = entries;
    head->area_bytes = area_bytes;
    memcpy(head->magic, MAGIC, sizeof head->magic);
}

int redox_shared_open(redox_shared *shared, int fd, uint64_t entries, uint64_t area_bytes, uint32_t *layout) {
    memset(shared, 0, sizeof *shared);
    *layout = REDOX_LAYOUT;
    struct stat status;
    if (fstat(fd, &status)) {
        return errno;
    }
    bool is_new = !status.st_size;
    size_t bytes = is_new ? areas_at(entries) + 2 * area_bytes : (size_t)status.st_size;
    if (bytes < areas_at(0)) {
        return EINVAL;
    }
    if (is_new && ftruncate(fd, (off_t)bytes)) {
        return errno;
    }
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return errno;
    }
    redox_shared_head *head = (redox_shared_head *)memory;
    if (is_new) {
        lay_out(head, bytes, entries, area_bytes);
    }
    *layout = head->layout;
    bool is_ours = !memcmp(head->magic, MAGIC, sizeof head->magic);
    if (!is_ours || head->layout != REDOX_LAYOUT || !is_whole(head, bytes)) {
        int error = is_ours && head->layout != REDOX_LAYOUT ? EPROTO : EINVAL;
        munmap(memory, bytes);
        return error;
    }
    shared->head = head;
    shared->bytes = bytes;
    shared->landings = memory + PAGE;
    shared->slots = (redox_kept *)(memory + slots_at());
    shared->ring = (redox_note *)(memory + ring_at());
    shared->areas = memory + areas_at(head->entries);
    pthread_mutex_init(&shared->lock, NULL);
    // The first slots are taken first, and again: others take no memory.
    for (unsigned i = REDOX_SLOTS; i-- > 0;) {
        if (is_new || !shared->slots[i].number) {
            shared->free[shared->free_count++] = (uint16_t)i;
        }
    }
    return 0;
}

void redox_shared_close(redox_shared *shared) {
    if (shared->head) {
        munmap(shared->head, shared->bytes);
        pthread_mutex_destroy(&shared->lock);
        shared->head = NULL;
    }
}

char *redox_shared_landing(redox_shared *shared, unsigned device) {
    return shared->landings + device * landing_bytes();
}

void redox_shared_landed(char *landing) {
    // The length is what the kernel writes first of all.
    atomic_store_explicit((_Atomic uint32_t *)landing, 0, memory_order_release);
}

static uint64_t ticket_of(const redox_shared *shared, const redox_kept *slot, uint64_t number) {
    return UINT64_C(1) << 62 | (number & NUMBER_MASK) << SLOT_BITS | (uint64_t)(slot - shared->slots);
}

static redox_kept *take_slot(redox_shared *shared, bool is_release) {
    redox_kept *slot = NULL;
    pthread_mutex_lock(&shared->lock);
    if (shared->free_count > (is_release ? 0 : REDOX_SLOTS_FOR_RELEASE)) {
        slot = &shared->slots[shared->free[--shared->free_count]];
    }
    pthread_mutex_unlock(&shared->lock);
    return slot;
}

uint64_t redox_shared_keep(redox_shared *shared, unsigned device, const void *message, size_t size, bool is_release) {
    redox_kept *slot = size <= REDOX_KEPT_BYTES ? take_slot(shared, is_release) : NULL;
    if (!slot) {
        return 0;
    }
    slot->device = device;
    slot->size = (uint32_t)size;
    slot->attempts = 0;
    memcpy(slot->message, message, size);
    uint64_t number = atomic_fetch_add_explicit(&shared->head->received, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&slot->number, number, memory_order_release);
    return ticket_of(shared, slot, number);
}

redox_kept *redox_shared_find(redox_shared *shared, uint64_t ticket) {
    redox_kept *slot = &shared->slots[ticket & (REDOX_SLOTS - 1)];
    uint64_t number = atomic_load_explicit(&slot->number, memory_order_acquire);
    return redox_is_kept(ticket) && number && ticket_of(shared, slot, number) == ticket ? slot : NULL;
}

void redox_shared_drop(redox_shared *shared, uint64_t ticket) {
    redox_kept *slot = redox_shared_find(shared, ticket);
    if (!slot) {
        return;
    }
    pthread_mutex_lock(&shared->lock);
    atomic_store_explicit(&slot->number, 0, memory_order_release);
    shared->free[shared->free_count++] = (uint16_t)(slot - shared->slots);
    pthread_mutex_unlock(&shared->lock);
}

// What a former daemon left ---------------------------------------------------------------------------------------

static bool gets_no_reply(uint32_t opcode) {
    return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT ||
           opcode == FUSE_NOTIFY_REPLY;
}

static bool is_in_a_slot(const redox_shared *shared, uint64_t unique) {
    for (unsigned i = 0; i < REDOX_SLOTS; i++) {
        const redox_kept *slot = &shared->slots[i];
        if (slot->number && ((const struct fuse_in_header *)slot->message)->unique == unique) {
            return true;
        }
    }
    return false;
}

static void blame(redox_shared *shared, uint64_t ticket) {
    redox_kept *slot = redox_shared_find(shared, ticket);
    if (slot) {
        slot->attempts++;
    }
}

// Moves what is in a landing to a slot. Its thread was at it.
static void keep_landing(redox_shared *shared, unsigned device, bool blames) {
    char *landing = redox_shared_landing(shared, device);
    struct fuse_in_header header;
    memcpy(&header, landing, sizeof header);
    // With another `unique` than the kernel's it was on its way to the relay, and is in a slot.
    if (header.len >= sizeof header && !redox_is_kept(header.unique) && !gets_no_reply(header.opcode) &&
        !is_in_a_slot(shared, header.unique)) {
        size_t size = header.len <= REDOX_KEPT_BYTES ? header.len : sizeof header;
        uint64_t ticket = redox_shared_keep(shared, device, landing, size, true);
        if (blames) {
            blame(shared, ticket);
        }
    }
    redox_shared_landed(landing);
}

static int by_number(const void *one, const void *other, void *shared) {
    const redox_kept *slots = ((const redox_shared *)shared)->slots;
    uint64_t left = slots[*(const uint64_t *)one & (REDOX_SLOTS - 1)].number;
    uint64_t right = slots[*(const uint64_t *)other & (REDOX_SLOTS - 1)].number;
    return (left > right) - (left < right);
}

unsigned redox_shared_waiting(redox_shared *shared, bool blames, uint64_t waiting[REDOX_SLOTS]) {
    for (unsigned device = 0; device < REDOX_DEVICES; device++) {
        keep_landing(shared, device, blames);
    }
    if (blames) {
        blame(shared, shared->head->deciding);
    }
    shared->head->deciding = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < REDOX_SLOTS; i++) {
        redox_kept *slot = &shared->slots[i];
        uint64_t number = slot->number;
        if (number && (slot->size > REDOX_KEPT_BYTES || slot->size < sizeof(struct fuse_in_header) ||
                       slot->device >= REDOX_DEVICES)) {
            redox_shared_drop(shared, ticket_of(shared, slot, number));
        } else if (number) {
            waiting[count++] = ticket_of(shared, slot, number);
        }
    }
    qsort_r(waiting, count, sizeof *waiting, by_number, shared);
    return count;
}

// The journal -----------------------------------------------------------------------------------------------------

void redox_shared_note(redox_shared *shared, const redox_note *note) {
    uint64_t position = atomic_load_explicit(&shared->head->position, memory_order_relaxed);
    shared->ring[position & (shared->head->entries - 1)] = *note;
    atomic_store_explicit(&shared->head->position, position + 1, memory_order_release);
}

int redox_shared_checkpoint(redox_shared *shared, const void *data, size_t size) {
    redox_shared_head *head = shared->head;
    if (size > head->area_bytes) {
        return EFBIG;
    }
    unsigned area = head->latest == 1 ? 1 : 0;
    memcpy(shared->areas + area * head->area_bytes, data, size);
    head->checkpoints[area].position = head->position;
    head->checkpoints[area].bytes = size;
    atomic_store_explicit(&head->latest, area + 1, memory_order_release);
    return 0;
}
