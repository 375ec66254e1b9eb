// The columns of redoxfs.dataset.Tree, shared with Python. Never written here, apart from `flags`.
//
// They may come from a file: every offset is checked against the column it points into, at each use.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    // A stat or lookup got the size of a file that had no answer. Set and cleared by the session.
    REDOX_SIZED_WHILE_FREE = 1,
    // Python knows better than the columns (a changed file): its lookups and stats go to Python.
    REDOX_ASK = 2,
};

typedef struct redox_tree {
    size_t entries;         // N
    size_t name_bytes;
    const char *names;      // [name_bytes]
    const int64_t *name_at; // [N + 1]
    const int32_t *parent;  // [N]; the root is its own parent
    const int32_t *first_child, *children;
    const uint32_t *mode, *nlink, *uid, *gid;
    const int64_t *size, *mtime_ns, *ctime_ns;
    const int32_t *sample_of;   // [N]; -1: the file is not redirected
    _Atomic uint8_t *flags;     // [N]; owned by this struct
} redox_tree;

// The name of an entry: its length, and *name set. SIZE_MAX if the columns are damaged.
size_t redox_tree_name(const redox_tree *tree, size_t entry, const char **name);

// The entry called name[length] in the directory `parent`, or -1.
int64_t redox_tree_lookup(const redox_tree *tree, size_t parent, const char *name, size_t length);

// Writes the path relative to the root, and a NUL, into path[room]. Returns its length, which is 0 for the root only;
// 0 also if it does not fit or the columns are damaged.
size_t redox_tree_path(const redox_tree *tree, size_t entry, char *path, size_t room);
