#include "tree.h"

#include <string.h>

size_t redox_tree_name(const redox_tree *tree, size_t entry, const char **name) {
    if (entry >= tree->entries) {
        return SIZE_MAX;
    }
    int64_t start = tree->name_at[entry], end = tree->name_at[entry + 1];
    if (start < 0 || end < start || (uint64_t)end > tree->name_bytes) {
        return SIZE_MAX;
    }
    *name = tree->names + start;
    return (size_t)(end - start);
}

int64_t redox_tree_lookup(const redox_tree *tree, size_t parent, const char *name, size_t length) {
    if (parent >= tree->entries || tree->first_child[parent] < 0 || tree->children[parent] <= 0) {
        return -1;
    }
    size_t low = (size_t)tree->first_child[parent], high = low + (size_t)tree->children[parent];
    if (high > tree->entries) {
        return -1;
    }
    // Children are sorted by the bytes of their names, a name before its continuations.
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *found;
        size_t found_length = redox_tree_name(tree, middle, &found);
        if (found_length == SIZE_MAX) {
            return -1;
        }
        int order = memcmp(found, name, found_length < length ? found_length : length);
        if (!order && found_length == length) {
            return (int64_t)middle;
        }
        if (order < 0 || (!order && found_length < length)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return -1;
}

size_t redox_tree_path(const redox_tree *tree, size_t entry, char *path, size_t room) {
    if (!room) {
        return 0;
    }
    // From the end of the room towards its start, then moved to the front.
    char *end = path + room - 1, *start = end;
    *end = 0;
    while (entry) {
        const char *name;
        size_t length = redox_tree_name(tree, entry, &name);
        bool last = start == end;
        if (length == SIZE_MAX || !length || length + !last > (size_t)(start - path) || memchr(name, 0, length)) {
            path[0] = 0;
            return 0;
        }
        if (!last) {
            *--start = '/';
        }
        start -= length;
        memcpy(start, name, length);
        // A parent comes before its children, so this ends.
        int32_t parent = tree->parent[entry];
        if (parent < 0 || (size_t)parent >= entry) {
            path[0] = 0;
            return 0;
        }
        entry = (size_t)parent;
    }
    memmove(path, start, (size_t)(end - start) + 1);
    return (size_t)(end - start);
}
