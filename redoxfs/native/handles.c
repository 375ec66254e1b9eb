#include "handles.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "times.h"

void redox_handles_init(redox_handles *handles) {
    memset(handles, 0, sizeof *handles);
    pthread_mutex_init(&handles->lock, NULL);
}

// The record of a number, or NULL if there is none yet.
static redox_handle *record(redox_handles *handles, uint64_t number) {
    if (!number || number >= REDOX_HANDLES) {
        return NULL;
    }
    redox_handle *part = handles->parts[number / REDOX_HANDLES_AT_ONCE];
    return part ? &part[number % REDOX_HANDLES_AT_ONCE] : NULL;
}

static redox_handle *open_record(redox_handles *handles, uint64_t number) {
    redox_handle *handle = record(handles, number);
    return handle && handle->inode ? handle : NULL;
}

// As `record`, and makes it if there is none. NULL: out of memory.
static redox_handle *make_record(redox_handles *handles, uint64_t number) {
    redox_handle **part = &handles->parts[number / REDOX_HANDLES_AT_ONCE];
    if (!*part) {
        *part = calloc(REDOX_HANDLES_AT_ONCE, sizeof **part);
    }
    return record(handles, number);
}

static void set_first(redox_handles *handles, uint64_t inode, uint32_t number) {
    if (number) {
        redox_map_set(&handles->first, inode, number);
    } else {
        redox_map_remove(&handles->first, inode);
    }
}

static void link_in(redox_handles *handles, redox_handle *handle, uint32_t number) {
    int64_t first = redox_map_get(&handles->first, handle->inode);
    handle->next = first < 0 ? 0 : (uint32_t)first;
    if (handle->next) {
        record(handles, handle->next)->previous = number;
    }
    set_first(handles, handle->inode, number);
}

static void take_out(redox_handles *handles, redox_handle *handle) {
    if (handle->next) {
        record(handles, handle->next)->previous = handle->previous;
    }
    if (handle->previous) {
        record(handles, handle->previous)->next = handle->next;
    } else {
        set_first(handles, handle->inode, handle->next);
    }
}

static redox_buffer *end(redox_handles *handles, uint64_t number, redox_handle *handle) {
    redox_buffer *data = handle->data;
    take_out(handles, handle);
    if (redox_map_get(&handles->opened_by, handle->thread) == (int64_t)number) {
        redox_map_remove(&handles->opened_by, handle->thread);
    }
    *handle = (redox_handle){0};
    handles->open--;
    return data;
}

void redox_handles_free(redox_handles *handles) {
    for (uint64_t number = 1; number < REDOX_HANDLES; number++) {
        if (!handles->parts[number / REDOX_HANDLES_AT_ONCE]) {
            number |= REDOX_HANDLES_AT_ONCE - 1;
            continue;
        }
        redox_handle *handle = open_record(handles, number);
        if (handle) {
            redox_buffer_drop(end(handles, number, handle));
        }
    }
    for (size_t i = 0; i < REDOX_HANDLES / REDOX_HANDLES_AT_ONCE; i++) {
        free(handles->parts[i]);
        handles->parts[i] = NULL;
    }
    redox_map_clear(&handles->bound);
    redox_map_clear(&handles->first);
    redox_map_clear(&handles->opened_by);
}

static int open_locked(redox_handles *handles, uint64_t number, uint64_t inode, uint32_t thread, redox_buffer *data,
                       int64_t size, bool direct_io, bool *bound_here) {
    redox_handle *handle = make_record(handles, number);
    if (!handle || !redox_map_reserve(&handles->bound) || !redox_map_reserve(&handles->first) ||
        !redox_map_reserve(&handles->opened_by)) {
        return ENOMEM;
    }
    if (handle->inode) {
        return EINVAL;
    }
    *handle = (redox_handle){
        .inode = inode,
        .thread = thread,
        .direct_io = direct_io,
        .since_ns = size >= 0 ? redox_now_ns() : 0,
        .data = data ? redox_buffer_take(data) : NULL,
    };
    link_in(handles, handle, (uint32_t)number);
    handles->open++;
    // 0 is any caller of another pid namespace, so nothing is known of it.
    if (thread) {
        redox_map_set(&handles->opened_by, thread, (int64_t)number);
    }
    *bound_here = size >= 0 && redox_map_get(&handles->bound, inode) < 0;
    if (size >= 0) {
        redox_map_set(&handles->bound, inode, size);
    }
    return 0;
}

int redox_handles_open(redox_handles *handles, uint64_t number, uint64_t inode, uint32_t thread, redox_buffer *data,
                       int64_t size, bool direct_io, bool *bound_here) {
    if (!number || number >= REDOX_HANDLES || !inode) {
        return EINVAL;
    }
    pthread_mutex_lock(&handles->lock);
    int error = open_locked(handles, number, inode, thread, data, size, direct_io, bound_here);
    pthread_mutex_unlock(&handles->lock);
    return error;
}

bool redox_handles_close(redox_handles *handles, uint64_t number, redox_buffer **data, uint32_t *reads) {
    *data = NULL;
    pthread_mutex_lock(&handles->lock);
    redox_handle *handle = open_record(handles, number);
    if (handle) {
        *reads = handle->direct_io ? handle->reads : 0;
        *data = end(handles, number, handle);
    }
    pthread_mutex_unlock(&handles->lock);
    return handle;
}

redox_handle_state redox_handles_read(redox_handles *handles, uint64_t number, redox_buffer **data) {
    redox_handle_state state = REDOX_NOT_OPEN;
    pthread_mutex_lock(&handles->lock);
    redox_handle *handle = open_record(handles, number);
    if (handle && handle->reads < UINT32_MAX) {
        handle->reads++;
    }
    if (handle && handle->data) {
        *data = redox_buffer_take(handle->data);
        state = REDOX_WITH_BYTES;
    } else if (handle) {
        state = REDOX_WITHOUT_BYTES;
    }
    pthread_mutex_unlock(&handles->lock);
    return state;
}

int redox_handles_bind(redox_handles *handles, uint64_t inode, int64_t size) {
    pthread_mutex_lock(&handles->lock);
    bool room = redox_map_reserve(&handles->bound);
    if (room) {
        redox_map_set(&handles->bound, inode, size);
    }
    pthread_mutex_unlock(&handles->lock);
    return room ? 0 : ENOMEM;
}

void redox_handles_unbind(redox_handles *handles, uint64_t inode) {
    pthread_mutex_lock(&handles->lock);
    redox_map_remove(&handles->bound, inode);
    pthread_mutex_unlock(&handles->lock);
}

int64_t redox_handles_show(redox_handles *handles, uint64_t inode, _Atomic uint8_t *flags) {
    pthread_mutex_lock(&handles->lock);
    int64_t size = redox_map_get(&handles->bound, inode);
    // Set under the lock, so that a binding that is made at the same time either sees the flag or is seen here.
    if (size < 0 && !(atomic_load_explicit(flags, memory_order_relaxed) & REDOX_SIZED_WHILE_FREE)) {
        atomic_fetch_or_explicit(flags, REDOX_SIZED_WHILE_FREE, memory_order_relaxed);
    }
    pthread_mutex_unlock(&handles->lock);
    return size;
}

int64_t redox_handles_held(redox_handles *handles, uint64_t inode, uint32_t thread) {
    pthread_mutex_lock(&handles->lock);
    int64_t number = redox_map_get(&handles->opened_by, thread), size = -1;
    redox_handle *handle = number < 0 ? NULL : open_record(handles, (uint64_t)number);
    if (handle && handle->inode == inode) {
        size = redox_map_get(&handles->bound, inode);
    }
    if (size >= 0 && !handle->settled) {
        handle->told = true;
        handle->since_ns = redox_now_ns();
    }
    pthread_mutex_unlock(&handles->lock);
    return size;
}

void redox_handles_heard(redox_handles *handles, uint32_t thread) {
    if (!thread) {
        return;
    }
    pthread_mutex_lock(&handles->lock);
    int64_t number = redox_map_get(&handles->opened_by, thread);
    redox_handle *handle = number < 0 ? NULL : open_record(handles, (uint64_t)number);
    if (handle && handle->told) {
        handle->settled = true;
    }
    pthread_mutex_unlock(&handles->lock);
}

bool redox_handles_settled(redox_handles *handles, uint64_t inode, int64_t before_ns) {
    bool settled = false, recent = false;
    pthread_mutex_lock(&handles->lock);
    int64_t first = redox_map_get(&handles->first, inode);
    for (uint32_t number = first < 0 ? 0 : (uint32_t)first; number && !settled;) {
        const redox_handle *handle = record(handles, number);
        settled = handle->settled;
        recent = recent || (handle->since_ns && handle->since_ns >= before_ns);
        number = handle->next;
    }
    pthread_mutex_unlock(&handles->lock);
    return settled || !recent;
}

bool redox_handles_turn(redox_handles *handles, _Atomic uint8_t *flags) {
    pthread_mutex_lock(&handles->lock);
    bool set = atomic_load_explicit(flags, memory_order_relaxed) & REDOX_SIZED_WHILE_FREE;
    if (set) {
        atomic_fetch_and_explicit(flags, (uint8_t)~REDOX_SIZED_WHILE_FREE, memory_order_relaxed);
    }
    pthread_mutex_unlock(&handles->lock);
    return set;
}

// Takes the bytes of up to `room` handles of an inode. Returns how many it took.
static unsigned take_bytes(redox_handles *handles, uint64_t inode, redox_buffer **taken, unsigned room) {
    unsigned count = 0;
    pthread_mutex_lock(&handles->lock);
    int64_t first = redox_map_get(&handles->first, inode);
    for (uint32_t number = first < 0 ? 0 : (uint32_t)first; number && count < room;) {
        redox_handle *handle = record(handles, number);
        if (handle->data) {
            taken[count++] = handle->data;
            handle->data = NULL;
        }
        number = handle->next;
    }
    pthread_mutex_unlock(&handles->lock);
    return count;
}

void redox_handles_shed(redox_handles *handles, uint64_t inode) {
    // Freeing memory may be a system call, which has no place under the lock.
    enum { AT_ONCE = 256 };
    redox_buffer *taken[AT_ONCE];
    unsigned count;
    do {
        count = take_bytes(handles, inode, taken, AT_ONCE);
        for (unsigned i = 0; i < count; i++) {
            redox_buffer_drop(taken[i]);
        }
    } while (count == AT_ONCE);
}

void redox_handles_unhold(redox_handles *handles, int64_t thread) {
    pthread_mutex_lock(&handles->lock);
    if (thread < 0) {
        redox_map_clear(&handles->opened_by);
    } else {
        redox_map_remove(&handles->opened_by, (uint64_t)thread);
    }
    pthread_mutex_unlock(&handles->lock);
}

redox_handles_count redox_handles_counts(redox_handles *handles) {
    pthread_mutex_lock(&handles->lock);
    redox_handles_count counts = {.open = handles->open, .bound = handles->bound.used};
    pthread_mutex_unlock(&handles->lock);
    return counts;
}
