// A hash table from a number to a number. Not for several threads at once.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    struct redox_slot {
        uint64_t key;  // 0: empty
        int64_t value;
    } *slots;
    size_t room;  // of `slots`: a power of two, or 0
    size_t used;
} redox_map;

// Makes room for one more key. False: out of memory.
bool redox_map_reserve(redox_map *map);

// After `redox_map_reserve`. The key is not 0.
void redox_map_set(redox_map *map, uint64_t key, int64_t value);

// The value of a key, or -1.
int64_t redox_map_get(const redox_map *map, uint64_t key);

void redox_map_remove(redox_map *map, uint64_t key);

void redox_map_clear(redox_map *map);
