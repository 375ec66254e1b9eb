// Trees with damaged columns, each array of which ends where its memory ends; and lookups from many threads.
#include <string.h>

#include "check.h"
#include "tree.h"

enum { ENTRIES = 7, NAME_BYTES = 11, THREADS = 4 };

// The root with a, b and c; b has aa, ab and b.
static const char names[] = "abcaaabbxyz";
static const int64_t name_at[ENTRIES + 1] = {0, 0, 1, 2, 3, 5, 7, 8};
static const int32_t parent[ENTRIES] = {0, 0, 0, 0, 2, 2, 2};
static const int32_t first_child[ENTRIES] = {1, 0, 4, 0, 0, 0, 0};
static const int32_t children[ENTRIES] = {3, 0, 3, 0, 0, 0, 0};

// A copy on the heap, so that a sanitizer notices accesses beyond it.
static void *copy(const void *from, size_t bytes) {
    void *to = malloc(bytes);
    CHECK(to);
    return memcpy(to, from, bytes);
}

static redox_tree whole(void) {
    return (redox_tree){
        .entries = ENTRIES,
        .name_bytes = NAME_BYTES,
        .names = copy(names, NAME_BYTES),
        .name_at = copy(name_at, sizeof name_at),
        .parent = copy(parent, sizeof parent),
        .first_child = copy(first_child, sizeof first_child),
        .children = copy(children, sizeof children),
    };
}

static void release(redox_tree *tree) {
    free((void *)tree->names);
    free((void *)tree->name_at);
    free((void *)tree->parent);
    free((void *)tree->first_child);
    free((void *)tree->children);
}

static void check_whole(const redox_tree *tree) {
    static const char *const paths[ENTRIES] = {"", "a", "b", "c", "b/aa", "b/ab", "b/b"};
    static const char *const absent[] = {"", "A", "aaa", "abc", "b/", "d", "bb"};
    for (size_t entry = 1; entry < ENTRIES; entry++) {
        const char *name;
        size_t length = redox_tree_name(tree, entry, &name);
        CHECK(redox_tree_lookup(tree, (size_t)tree->parent[entry], name, length) == (int64_t)entry);
        char path[16];
        size_t path_length = redox_tree_path(tree, entry, path, sizeof path);
        CHECK(path_length == strlen(paths[entry]) && !strcmp(path, paths[entry]));
        // Just enough room, and one byte too little.
        CHECK(redox_tree_path(tree, entry, path, path_length + 1) == path_length);
        CHECK(redox_tree_path(tree, entry, path, path_length) == 0);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        for (size_t directory = 0; directory < ENTRIES; directory++) {
            CHECK(redox_tree_lookup(tree, directory, absent[i], strlen(absent[i])) == -1);
        }
    }
    const char *name;
    CHECK(redox_tree_name(tree, ENTRIES, &name) == SIZE_MAX);
    CHECK(redox_tree_lookup(tree, ENTRIES, "a", 1) == -1);
    CHECK(redox_tree_lookup(tree, SIZE_MAX, "a", 1) == -1);
    char none[1];
    CHECK(redox_tree_path(tree, 1, none, 0) == 0);
    CHECK(redox_tree_path(tree, 0, none, 1) == 0 && !none[0]);
}

static int64_t draw(uint64_t *state, int64_t least, int64_t most) {
    uint64_t number = next_number(state);
    return number % 8 == 0 ? least : number % 8 == 1 ? most : (int64_t)(number / 8 % 16) - 2;
}

// Every answer is an entry, a name within the names, or "none": a sanitizer reports the rest.
static void test_damage_never_leads_outside(void) {
    uint64_t state = 9;
    for (int round = 0; round < 20000; round++) {
        redox_tree tree = whole();
        for (uint64_t damage = next_number(&state) % 4 + 1; damage > 0; damage--) {
            size_t entry = next_number(&state) % ENTRIES;
            switch (next_number(&state) % 4) {
                case 0: ((int64_t *)tree.name_at)[entry + 1] = draw(&state, INT64_MIN, INT64_MAX); break;
                case 1: ((int32_t *)tree.parent)[entry] = (int32_t)draw(&state, INT32_MIN, INT32_MAX); break;
                case 2: ((int32_t *)tree.first_child)[entry] = (int32_t)draw(&state, INT32_MIN, INT32_MAX); break;
                default: ((int32_t *)tree.children)[entry] = (int32_t)draw(&state, INT32_MIN, INT32_MAX);
            }
        }
        for (size_t entry = 0; entry < ENTRIES; entry++) {
            const char *name;
            size_t length = redox_tree_name(&tree, entry, &name);
            CHECK(length == SIZE_MAX || (name >= tree.names && name + length <= tree.names + NAME_BYTES));
            char path[12];
            size_t path_length = redox_tree_path(&tree, entry, path, sizeof path);
            CHECK(path_length < sizeof path && strlen(path) == path_length);
            int64_t found = redox_tree_lookup(&tree, entry, "ab", 2);
            CHECK(found >= -1 && found < ENTRIES);
        }
        release(&tree);
    }
}

static redox_tree shared;

static void *look_up(void *number) {
    (void)number;
    for (int round = 0; round < 1000; round++) {
        check_whole(&shared);
    }
    return NULL;
}

int main(void) {
    shared = whole();
    check_whole(&shared);
    run_threads(THREADS, look_up);
    release(&shared);
    test_damage_never_leads_outside();
    return 0;
}
