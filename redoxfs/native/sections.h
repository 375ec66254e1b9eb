// The sections of the queues of the pool's classes: redoxfs.protocol.pool.queues, which says what they mean.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct redox_sections {
    size_t classes, members, samples;
    int32_t *queue;           // [members]: the samples, class by class
    int32_t *at;              // [samples]: their places; -1: in no section
    const int32_t *class_of;  // [samples]
    const int32_t *begun;     // [classes + 1]: places, as all borders
    int32_t *kept, *next, *served, *stream, *arrived, *loaded;  // [classes]
    int32_t *stock;           // [classes]
    uint8_t *had, *stays;     // [samples]
} redox_sections;

// In `had`, as redoxfs.protocol.pool.queues has it.
enum { REDOX_HAD_TURN = 1 };

enum { REDOX_NO_RESIDENT = -1, REDOX_NO_SUCH_SAMPLE = -1 };

// Moves the resident at a place of a class to those that had their turn; returns it, or REDOX_NO_RESIDENT.
int64_t redox_sections_take_out(redox_sections *sections, int64_t cls, int64_t place);

// A sample that had its turn stays for the next lap. False: it did not.
bool redox_sections_keep(redox_sections *sections, int64_t sample, bool retained);

// Undoes that. Returns whether the sample was in the retained section, or REDOX_NO_SUCH_SAMPLE.
int redox_sections_let_go(redox_sections *sections, int64_t sample);

// Makes a sample a resident: of this lap if it is fresh, which is returned, else of the next. REDOX_NO_SUCH_SAMPLE: it
// is a resident.
int redox_sections_load(redox_sections *sections, int64_t sample);
