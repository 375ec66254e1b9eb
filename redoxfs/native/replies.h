// What goes to the kernel: replies, attributes, notifications. Any thread may call these.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel.h"
#include "shared.h"
#include "tree.h"

enum {
    // Descriptors of one connection: the caller's, and a clone for each helper.
    REDOX_DEVICES = 64,
    // st_blksize: the size of buffered reads. It halves the number of PIL's reads against the default.
    REDOX_BLOCK_BYTES = 128 * 1024,
    // The timeout of what is valid as long as the mount lives: ten years.
    REDOX_FOREVER_S = 10 * 365 * 24 * 3600,
};

typedef struct {
    int fds[REDOX_DEVICES];
    unsigned count;        // 0: the session is closed, and nothing is sent
    redox_shared *shared;  // NULL: requests are not kept
} redox_devices;

// The kernel takes a reply only on the descriptor that the request came from. So a ticket stands for a request: its
// `unique`, with the number of the descriptor in the upper byte. The kernel counts `unique` up from 0 and does not get
// there. A request that is kept has a ticket of `redox_shared_keep`. It is dropped once its reply is written.
enum { REDOX_TICKET_SHIFT = 56 };

static inline uint64_t redox_ticket(unsigned device, uint64_t unique) {
    return (uint64_t)device << REDOX_TICKET_SHIFT | unique;
}

// These return 0, or the errno of the write: ENOENT if nobody waits for the reply any more.

// `body` may be NULL where `size` is 0.
int redox_reply(const redox_devices *devices, uint64_t ticket, const void *body, size_t size);

// `error`: an errno, positive.
int redox_reply_error(const redox_devices *devices, uint64_t ticket, int error);

// A whole message, header included, of at least a header's size.
int redox_reply_message(const redox_devices *devices, uint64_t ticket, const void *message, size_t size);

// A stat: the kernel may keep it if it `lasts`.
int redox_reply_attributes(const redox_devices *devices, uint64_t ticket, const redox_tree *tree, uint64_t inode,
                           size_t entry, int64_t size, bool lasts);

// The kernel's attributes of an inode are void, and its pages too unless `attributes_only`. An inode that the kernel
// does not know is no error.
int redox_notify_void(const redox_devices *devices, uint64_t inode, bool attributes_only);

// Wakes the program that polls with this number. One that polls no more is no error.
void redox_notify_poll(const redox_devices *devices, uint64_t waiter);

// What a look-up or a listing says of an entry. The name lasts; the attributes may.
void redox_fill_entry(const redox_tree *tree, uint64_t inode, size_t entry, int64_t size, bool lasts,
                      struct fuse_entry_out *out);

// A name that does not exist, which the kernel may keep: the tree does not change.
void redox_fill_no_entry(struct fuse_entry_out *out);
