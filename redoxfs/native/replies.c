#include "replies.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int write_all(int fd, const struct iovec *parts, int count) {
    for (;;) {
        // One message a write: the kernel takes all of it or none.
        if (writev(fd, parts, count) >= 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

// The request that a ticket stands for: returns the number of its descriptor; REDOX_DEVICES if there is none any more.
static unsigned find_request(const redox_devices *devices, uint64_t ticket, uint64_t *unique) {
    if (redox_is_kept(ticket)) {
        const redox_kept *kept = devices->shared ? redox_shared_find(devices->shared, ticket) : NULL;
        if (kept) {
            *unique = ((const struct fuse_in_header *)kept->message)->unique;
        }
        return kept ? kept->device : REDOX_DEVICES;
    }
    *unique = ticket & ((UINT64_C(1) << REDOX_TICKET_SHIFT) - 1);
    return (unsigned)(ticket >> REDOX_TICKET_SHIFT);
}

// `error`: as the kernel takes it, not positive but in a notification.
static int send_reply(const redox_devices *devices, uint64_t ticket, int error, const void *body, size_t size) {
    uint64_t unique = 0;
    unsigned device = find_request(devices, ticket, &unique);
    if (device >= devices->count || size > UINT32_MAX - sizeof(struct fuse_out_header)) {
        return device < REDOX_DEVICES ? EINVAL : ENOENT;
    }
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + size),
        .error = error,
        .unique = unique,
    };
    struct iovec parts[] = {{&header, sizeof header}, {(void *)body, size}};
    int failure = write_all(devices->fds[device], parts, size ? 2 : 1);
    // After EINVAL the kernel still waits, and gets an error instead.
    if (redox_is_kept(ticket) && failure != EINVAL) {
        redox_shared_drop(devices->shared, ticket);
    }
    return failure;
}

int redox_reply(const redox_devices *devices, uint64_t ticket, const void *body, size_t size) {
    return send_reply(devices, ticket, 0, body, size);
}

int redox_reply_error(const redox_devices *devices, uint64_t ticket, int error) {
    return send_reply(devices, ticket, -error, NULL, 0);
}

int redox_reply_message(const redox_devices *devices, uint64_t ticket, const void *message, size_t size) {
    const struct fuse_out_header *header = message;
    return send_reply(devices, ticket, header->error, header + 1, size - sizeof *header);
}

// Nanoseconds since 1970 as whole seconds and the rest, which is not negative.
static void split(int64_t time_ns, uint64_t *seconds, uint32_t *nanoseconds) {
    int64_t whole = time_ns / 1000000000, rest = time_ns % 1000000000;
    if (rest < 0) {
        whole--;
        rest += 1000000000;
    }
    *seconds = (uint64_t)whole;
    *nanoseconds = (uint32_t)rest;
}

static void fill_attributes(const redox_tree *tree, uint64_t inode, size_t entry, int64_t size, struct fuse_attr *out) {
    uint64_t bytes = size < 0 ? 0 : (uint64_t)size;
    *out = (struct fuse_attr){
        .ino = inode,
        .size = bytes,
        .blocks = bytes / 512 + (bytes % 512 != 0),
        .mode = tree->mode[entry],
        .nlink = tree->nlink[entry],
        .uid = tree->uid[entry],
        .gid = tree->gid[entry],
        .blksize = REDOX_BLOCK_BYTES,
    };
    split(tree->mtime_ns[entry], &out->mtime, &out->mtimensec);
    out->atime = out->mtime;
    out->atimensec = out->mtimensec;
    split(tree->ctime_ns[entry], &out->ctime, &out->ctimensec);
}

int redox_reply_attributes(const redox_devices *devices, uint64_t ticket, const redox_tree *tree, uint64_t inode,
                           size_t entry, int64_t size, bool lasts) {
    struct fuse_attr_out out = {.attr_valid = lasts ? REDOX_FOREVER_S : 0};
    fill_attributes(tree, inode, entry, size, &out.attr);
    return redox_reply(devices, ticket, &out, sizeof out);
}

static int send_notice(const redox_devices *devices, const void *message, size_t size) {
    struct iovec whole = {(void *)message, size};
    return devices->count ? write_all(devices->fds[0], &whole, 1) : ENOENT;
}

int redox_notify_void(const redox_devices *devices, uint64_t inode, bool attributes_only) {
    struct {
        struct fuse_out_header header;
        struct fuse_notify_inval_inode_out body;
    } message = {
        .header = {.len = sizeof message, .error = FUSE_NOTIFY_INVAL_INODE},
        .body = {.ino = inode, .off = attributes_only ? -1 : 0},
    };
    int error = send_notice(devices, &message, sizeof message);
    return error == ENOENT ? 0 : error;
}

void redox_notify_poll(const redox_devices *devices, uint64_t waiter) {
    struct {
        struct fuse_out_header header;
        struct fuse_notify_poll_wakeup_out body;
    } message = {.header = {.len = sizeof message, .error = FUSE_NOTIFY_POLL}, .body = {.kh = waiter}};
    send_notice(devices, &message, sizeof message);
}

void redox_fill_entry(const redox_tree *tree, uint64_t inode, size_t entry, int64_t size, bool lasts,
                      struct fuse_entry_out *out) {
    *out = (struct fuse_entry_out){
        .nodeid = inode,
        .entry_valid = REDOX_FOREVER_S,
        .attr_valid = lasts ? REDOX_FOREVER_S : 0,
    };
    fill_attributes(tree, inode, entry, size, &out->attr);
}

void redox_fill_no_entry(struct fuse_entry_out *out) {
    // The attributes mean nothing. They are those of pyfuse3's empty reply, so that replies can be compared.
    *out = (struct fuse_entry_out){
        .entry_valid = REDOX_FOREVER_S,
        .attr_valid = 300,
        .attr = {.mode = S_IFREG, .nlink = 1, .blksize = 4096},
    };
}
