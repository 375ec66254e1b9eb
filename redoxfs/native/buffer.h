// Counted memory for the bytes of one file. Any thread may take and drop references; that takes no lock.
#pragma once

#include <stdatomic.h>
#include <stddef.h>

typedef struct redox_buffer {
    atomic_size_t references;
    size_t size;  // bytes of data
    char *data;
    void *span;  // where the memory comes from; buffer.c's own
} redox_buffer;

// A buffer of `size` bytes with one reference, or NULL. The bytes are not set.
redox_buffer *redox_buffer_allocate(size_t size);

redox_buffer *redox_buffer_take(redox_buffer *buffer);

// Drops one reference. The last one returns the memory. NULL is allowed.
void redox_buffer_drop(redox_buffer *buffer);

// Bytes in all buffers, for statistics and leak tests.
size_t redox_buffer_bytes(void);

// The memory that they take, in bytes: with the rest of each page, and what is kept for the next buffers.
size_t redox_buffer_resident_bytes(void);
