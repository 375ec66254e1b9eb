#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "requests.h"

// The fields before a name, in the two kinds of listing.
static const size_t PLAIN_BYTES = offsetof(struct fuse_dirent, name);
static const size_t PLUS_BYTES = offsetof(struct fuse_direntplus, dirent) + offsetof(struct fuse_dirent, name);

// Writes one entry, whose position is that of the next one. Returns its bytes, or 0 if they exceed `room`.
static size_t put(redox_core *core, const redox_request *request, size_t entry, uint64_t position, const char *name,
                  size_t length, char *to, size_t room) {
    bool plus = request->header->opcode == FUSE_READDIRPLUS;
    size_t before = plus ? PLUS_BYTES : PLAIN_BYTES;
    if (length > room || before + length > room || FUSE_DIRENT_ALIGN(before + length) > room) {
        return 0;
    }
    size_t bytes = FUSE_DIRENT_ALIGN(before + length);
    uint64_t inode = redox_inode((unsigned)request->branch, entry);
    if (plus) {
        bool lasts;
        int64_t size = redox_size_now(core, (unsigned)request->branch, entry, &lasts);
        redox_fill_entry(core->tree, inode, entry, size, lasts, (struct fuse_entry_out *)to);
    }
    struct fuse_dirent *out = (struct fuse_dirent *)(to + before - PLAIN_BYTES);
    out->ino = inode;
    out->off = position;
    out->namelen = (uint32_t)length;
    out->type = (core->tree->mode[entry] & 0170000) >> 12;
    memcpy(to + before, name, length);
    memset(to + before + length, 0, bytes - before - length);
    return bytes;
}

// The relay lists entries from `first` on, before `end`.
static void list_at_relay(redox_core *core, redox_request *request, uint64_t first, uint64_t end) {
    enum { LEAST_BYTES = 160 };  // of an entry with its attributes
    if (request->header->opcode == FUSE_READDIRPLUS) {
        for (uint64_t entry = first; entry < end && entry - first < REDOX_RELAY_BYTES / LEAST_BYTES; entry++) {
            redox_size_at_relay(core, (unsigned)request->branch, (size_t)entry);
        }
    }
    redox_pass_to_relay(core, request);
}

void redox_list(redox_core *core, redox_request *request, char *room) {
    const struct fuse_read_in *in = request->body;
    if (request->body_bytes < sizeof *in) {
        atomic_fetch_add_explicit(&core->malformed, 1, memory_order_relaxed);
        redox_reply_error(&core->devices, request->ticket, EINVAL);
        return;
    }
    if (request->branch != REDOX_DATA && request->branch != REDOX_EXACT) {
        redox_pass_to_relay(core, request);
        return;
    }
    const redox_tree *tree = core->tree;
    uint64_t first = tree->first_child[request->entry] < 0 ? 0 : (uint64_t)tree->first_child[request->entry];
    uint64_t children = tree->children[request->entry] < 0 ? 0 : (uint64_t)tree->children[request->entry];
    uint64_t end = first + children < tree->entries ? first + children : tree->entries;
    size_t used = 0, most = in->size < REDOX_LISTING_BYTES ? in->size : REDOX_LISTING_BYTES;
    for (uint64_t at = in->offset; at < children && first + at < end; at++) {
        size_t entry = (size_t)(first + at);
        const char *name;
        size_t length = redox_tree_name(tree, entry, &name);
        if (length == SIZE_MAX || redox_asks(core, entry)) {
            // The relay lists from here on; if there is something to say already, after the next request.
            if (!used) {
                list_at_relay(core, request, entry, end);
                return;
            }
            break;
        }
        size_t bytes = put(core, request, entry, at + 1, name, length, room + used, most - used);
        if (!bytes) {
            break;
        }
        used += bytes;
    }
    redox_reply(&core->devices, request->ticket, room, used);
}
