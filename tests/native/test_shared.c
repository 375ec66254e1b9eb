// What a former session left is found without memory: without any, the programs that wait for it would wait for ever.
#include <linux/fuse.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "shared.h"

// Of all sanitizers; gcc comes without the header.
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *));

// Few enough for qsort_r to sort them on the stack.
enum { REQUESTS = 100 };

static volatile int allocations;

static void count(const volatile void *at, size_t bytes) {
    (void)at, (void)bytes;
    allocations++;
}

static void ignore(const volatile void *at) { (void)at; }

int main(void) {
    static uint64_t waiting[REDOX_SLOTS];
    static redox_shared former, shared;
    uint64_t tickets[REQUESTS];
    uint32_t layout;
    int fd = memfd_create("redoxfs-test", MFD_CLOEXEC);
    CHECK(fd >= 0 && !redox_shared_open(&former, fd, 1 << 10, 1 << 10, &layout));
    // Slots are taken again, so their places are not in the order of receipt.
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < REQUESTS; i++) {
            struct fuse_in_header header = {.len = sizeof header, .opcode = FUSE_OPEN, .unique = i + 1};
            tickets[i] = redox_shared_keep(&former, 0, &header, sizeof header, false);
            CHECK(redox_is_kept(tickets[i]));
        }
        for (int i = 0; i < REQUESTS && !round; i++) {
            redox_shared_drop(&former, tickets[i * 37 % REQUESTS]);
        }
    }
    CHECK(!redox_shared_open(&shared, fd, 1 << 10, 1 << 10, &layout));
    CHECK(__sanitizer_install_malloc_and_free_hooks(count, ignore));
    unsigned found = redox_shared_waiting(&shared, false, waiting);
    CHECK(!allocations);
    CHECK(found == REQUESTS);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(waiting[i] == tickets[i]);
    }
    void *volatile one = malloc(1);
    free(one);
    CHECK(allocations);
    redox_shared_close(&shared);
    redox_shared_close(&former);
    close(fd);
    return 0;
}
