// The columns of a tree of ENTRIES, which the program defines before, in memory of their own: so a sanitizer sees the
// end of each.
#pragma once

#include <string.h>
#include <sys/stat.h>

#include "tree.h"

enum { NAME_BYTES = 4 };

static char names[(ENTRIES - 1) * NAME_BYTES];
static int64_t name_at[ENTRIES + 1], size_of[ENTRIES], times[ENTRIES];
static int32_t parent_of[ENTRIES], first_child[ENTRIES], children[ENTRIES], sample_of[ENTRIES];
static uint32_t mode[ENTRIES], nlink[ENTRIES], owner[ENTRIES];
static _Atomic uint8_t flags[ENTRIES];

static const redox_tree tree = {
    .entries = ENTRIES,
    .name_bytes = sizeof names,
    .names = names,
    .name_at = name_at,
    .parent = parent_of,
    .first_child = first_child,
    .children = children,
    .mode = mode,
    .nlink = nlink,
    .uid = owner,
    .gid = owner,
    .size = size_of,
    .mtime_ns = times,
    .ctime_ns = times,
    .sample_of = sample_of,
    .flags = flags,
};

// The next entry, whose name is its number; the root has none.
static void set_entry(int entry, bool is_folder, int64_t size, int32_t sample) {
    char name[16];
    snprintf(name, sizeof name, "%04d", entry);
    name_at[entry + 1] = name_at[entry] + (entry ? NAME_BYTES : 0);
    memcpy(names + name_at[entry], name, entry ? NAME_BYTES : 0);
    mode[entry] = is_folder ? S_IFDIR | 0755 : S_IFREG | 0644;
    size_of[entry] = size;
    sample_of[entry] = sample;
}
