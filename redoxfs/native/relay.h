// Requests that another FUSE server answers, at the other end of a SOCK_SEQPACKET pair.
//
// It gets them as the kernel wrote them, but for `unique` (the ticket, see replies.h) and the limits of a reply's size.
// Its replies go back to the kernel. Any thread may forward; one thread receives.
//
// The server may run in the thread that receives. If its replies filled the socket it would block there for ever. So
// only as many requests are sent as have room for their replies; the others wait here.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replies.h"

enum {
    // The largest reply to ask for.
    REDOX_RELAY_BYTES = 64 * 1024,
    // What replies may take in the socket, which has 208 KiB if nobody has changed that.
    REDOX_RELAY_ROOM = 192 * 1024,
    // What a short message takes there, at most.
    REDOX_SHORT_REPLY = 1024,
    // The longest request to forward. The kernel's are shorter: a name has at most 255 bytes.
    REDOX_RELAYED_BYTES = 4096,
    // Requests with the relay and waiting here at one time.
    REDOX_RELAYED = 512,
};

typedef struct {
    uint64_t ticket;
    uint32_t room;  // that its reply takes
    bool dropped;   // nobody waits for its reply
} redox_relayed;

typedef struct {
    pthread_mutex_t lock;
    int fd;     // -1: there is no relay, or it has ended. Changed by the thread that receives alone
    int epoll;  // where `fd` is a member while it is open
    redox_relayed sent[REDOX_RELAYED];
    unsigned sent_count;
    size_t room;  // that the replies to `sent` take
    struct redox_relay_message {
        redox_relayed request;
        void *message;
        size_t size;
    } queue[REDOX_RELAYED];
    unsigned head, queued;
    bool full;       // the socket was: it is polled for room
    uint64_t total;  // requests forwarded so far
    char *reply;     // for the thread that receives
} redox_relay;

// `fd` may be -1. Returns 0 or an errno.
int redox_relay_init(redox_relay *relay, int fd, int epoll);

void redox_relay_free(redox_relay *relay);

// Forwards a request, whose header says `ticket` instead of the kernel's `unique`, and whose reply has at most
// `reply_bytes`. Returns 0; or an errno that the request is to be answered with: ENOSYS without a relay, EIO if it has
// ended, EAGAIN if too many wait, EINVAL if the request is too long. `dropped`: its reply goes no further.
int redox_relay_forward(redox_relay *relay, uint64_t ticket, const void *message, size_t size, size_t reply_bytes,
                        bool dropped);

// Moves what is there: waiting requests to the relay, replies to the kernel. At most `most` replies; returns how many.
unsigned redox_relay_move(redox_relay *relay, const redox_devices *devices, unsigned most);

// Requests that have no reply yet.
unsigned redox_relay_waiting(redox_relay *relay);

uint64_t redox_relay_total(redox_relay *relay);
