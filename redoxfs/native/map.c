#include "map.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

// Where the search for a key begins. Multiplying spreads numbers that follow each other.
static size_t start_of(const redox_map *map, uint64_t key) {
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (map->room - 1);
}

// The slot of a key, or the empty one where it would be. There is one, since half of the slots stay empty.
static size_t find(const redox_map *map, uint64_t key) {
    size_t at = start_of(map, key);
    while (map->slots[at].key && map->slots[at].key != key) {
        at = (at + 1) & (map->room - 1);
    }
    return at;
}

bool redox_map_reserve(redox_map *map) {
    if (2 * (map->used + 1) <= map->room) {
        return true;
    }
    redox_map larger = {.room = map->room ? 2 * map->room : FIRST_ROOM, .used = map->used};
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (!larger.slots) {
        return false;
    }
    for (size_t i = 0; i < map->room; i++) {
        if (map->slots[i].key) {
            larger.slots[find(&larger, map->slots[i].key)] = map->slots[i];
        }
    }
    free(map->slots);
    *map = larger;
    return true;
}

void redox_map_set(redox_map *map, uint64_t key, int64_t value) {
    size_t at = find(map, key);
    map->used += !map->slots[at].key;
    map->slots[at] = (struct redox_slot){key, value};
}

int64_t redox_map_get(const redox_map *map, uint64_t key) {
    if (!map->used || !key) {
        return -1;
    }
    const struct redox_slot *slot = &map->slots[find(map, key)];
    return slot->key ? slot->value : -1;
}

void redox_map_remove(redox_map *map, uint64_t key) {
    if (!map->used || !key) {
        return;
    }
    size_t mask = map->room - 1, hole = find(map, key);
    if (!map->slots[hole].key) {
        return;
    }
    map->used--;
    // Later keys of the same run move up, so that no search ends early at the hole.
    for (size_t at = (hole + 1) & mask; map->slots[at].key; at = (at + 1) & mask) {
        size_t start = start_of(map, map->slots[at].key);
        if (((at - start) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole].key = 0;
}

void redox_map_clear(redox_map *map) {
    free(map->slots);
    *map = (redox_map){0};
}
