#include "buffer.h"

#include <stdint.h>
#include <stdlib.h>

static atomic_size_t all_bytes;

redox_buffer *redox_buffer_allocate(size_t size) {
    if (size > SIZE_MAX - sizeof(redox_buffer)) {
        return NULL;
    }
    redox_buffer *buffer = malloc(sizeof *buffer + size);
    if (!buffer) {
        return NULL;
    }
    atomic_init(&buffer->references, 1);
    buffer->size = size;
    buffer->data = (char *)(buffer + 1);
    atomic_fetch_add_explicit(&all_bytes, size, memory_order_relaxed);
    return buffer;
}

redox_buffer *redox_buffer_take(redox_buffer *buffer) {
    // Whoever takes a reference has one already, so nothing has to be ordered before it.
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
    return buffer;
}

void redox_buffer_drop(redox_buffer *buffer) {
    // What each thread did with the bytes comes before the thread that frees them.
    if (!buffer || atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    atomic_fetch_sub_explicit(&all_bytes, buffer->size, memory_order_relaxed);
    free(buffer);
}

size_t redox_buffer_bytes(void) { return atomic_load_explicit(&all_bytes, memory_order_relaxed); }
