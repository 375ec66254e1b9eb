// Requests that another FUSE server answers, at the other end of a SOCK_SEQPACKET pair.
//
// It gets them as the kernel wrote them, but for `unique` (the ticket, see replies.h) and the limits of a reply's size.
// Its replies go back to the kernel. Any thread may forward; one thread receives.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replies.h"

enum {
    // The largest reply to ask for. Without root a message on the socket is limited to some 200 kB.
    REDOX_RELAY_BYTES = 64 * 1024,
    // Requests with the relay at one time. A libfuse server handles fewer at once, and reads the next ones later.
    REDOX_RELAYED = 512,
    // Messages kept here while the socket is full.
    REDOX_RELAY_QUEUE = 64,
};

typedef struct {
    pthread_mutex_t lock;
    int fd;     // -1: there is no relay, or it has ended
    int epoll;  // where `fd` is a member while it is open
    uint64_t tickets[REDOX_RELAYED];
    unsigned relayed;  // of `tickets`
    struct {
        void *message;
        size_t size;
    } queue[REDOX_RELAY_QUEUE];
    unsigned head, queued;
    uint64_t total;  // requests forwarded so far
    char *reply;     // for the thread that receives
} redox_relay;

// `fd` may be -1. Returns 0 or an errno.
int redox_relay_init(redox_relay *relay, int fd, int epoll);

void redox_relay_free(redox_relay *relay);

// Forwards a request, whose header says `ticket` instead of the kernel's `unique`. Returns 0; or an errno that the
// request is to be answered with: ENOSYS without a relay, EIO if it has ended, EAGAIN if too many wait there.
int redox_relay_forward(redox_relay *relay, uint64_t ticket, void *message, size_t size);

// Sends a message that gets no reply, or whose reply is dropped.
void redox_relay_tell(redox_relay *relay, void *message, size_t size);

// Moves what is there: queued messages to the relay, replies to the kernel. At most `most` replies; returns how many.
unsigned redox_relay_move(redox_relay *relay, const redox_devices *devices, unsigned most);

// What to poll the relay's descriptor for; *fd is -1 without one.
short redox_relay_events(redox_relay *relay, int *fd);

unsigned redox_relay_waiting(redox_relay *relay);

uint64_t redox_relay_total(redox_relay *relay);
