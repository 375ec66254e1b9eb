#include "relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

// Replies are no longer than what was asked for, notifications shorter.
enum { REPLY_ROOM = REDOX_RELAY_BYTES + 4096 };

int redox_relay_init(redox_relay *relay, int fd, int epoll) {
    memset(relay, 0, sizeof *relay);
    pthread_mutex_init(&relay->lock, NULL);
    relay->fd = fd;
    relay->epoll = epoll;
    if (fd < 0) {
        return 0;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) {
        return errno;
    }
    relay->reply = malloc(REPLY_ROOM);
    return relay->reply ? 0 : ENOMEM;
}

// Takes the first message off the queue.
static redox_relayed drop_first(redox_relay *relay) {
    struct redox_relay_message *first = &relay->queue[relay->head++ % REDOX_RELAYED];
    relay->queued--;
    free(first->message);
    return first->request;
}

void redox_relay_free(redox_relay *relay) {
    while (relay->queued) {
        drop_first(relay);
    }
    free(relay->reply);
    relay->reply = NULL;
    relay->fd = -1;
}

// These run under the lock ------------------------------------------------------------------------------------------

static bool has_room(const redox_relay *relay, const redox_relayed *request) {
    return !relay->sent_count || relay->room + request->room <= REDOX_RELAY_ROOM;
}

static void poll_for_room(redox_relay *relay, bool full) {
    if (relay->full != full) {
        relay->full = full;
        struct epoll_event event = {.events = EPOLLIN | (full ? EPOLLOUT : 0), .data.fd = relay->fd};
        epoll_ctl(relay->epoll, EPOLL_CTL_MOD, relay->fd, &event);
    }
}

// Returns 0, EAGAIN, or EIO if the relay has ended.
static int send_now(redox_relay *relay, const redox_relayed *request, const void *message, size_t size) {
    ssize_t sent;
    do {
        sent = send(relay->fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        poll_for_room(relay, errno == EAGAIN);
        return errno == EAGAIN ? EAGAIN : EIO;
    }
    poll_for_room(relay, false);
    relay->sent[relay->sent_count++] = *request;
    relay->room += request->room;
    return 0;
}

static int send_later(redox_relay *relay, const redox_relayed *request, const void *message, size_t size) {
    void *copy = malloc(size);
    if (!copy) {
        return EAGAIN;
    }
    memcpy(copy, message, size);
    relay->queue[(relay->head + relay->queued++) % REDOX_RELAYED] =
        (struct redox_relay_message){.request = *request, .message = copy, .size = size};
    return 0;
}

static int forward(redox_relay *relay, const redox_relayed *request, const void *message, size_t size) {
    if (relay->fd < 0) {
        return relay->reply ? EIO : ENOSYS;
    }
    if (size > REDOX_RELAYED_BYTES || request->room > REDOX_RELAY_ROOM) {
        return EINVAL;
    }
    if (relay->sent_count + relay->queued >= REDOX_RELAYED) {
        return EAGAIN;
    }
    int error = EAGAIN;
    if (!relay->queued && has_room(relay, request)) {
        error = send_now(relay, request, message, size);
    }
    if (error == EAGAIN) {
        error = send_later(relay, request, message, size);
    }
    relay->total += !error;
    return error;
}

// Sends what waits, as far as there is room.
static void flush(redox_relay *relay) {
    while (relay->fd >= 0 && relay->queued) {
        struct redox_relay_message *first = &relay->queue[relay->head % REDOX_RELAYED];
        // After another error the next receive finds that the relay has ended, and answers all.
        if (!has_room(relay, &first->request) || send_now(relay, &first->request, first->message, first->size)) {
            return;
        }
        drop_first(relay);
    }
}

// Takes a request off those that were sent. False if it is not among them.
static bool settle(redox_relay *relay, uint64_t ticket, redox_relayed *request) {
    for (unsigned i = 0; i < relay->sent_count; i++) {
        if (relay->sent[i].ticket == ticket) {
            *request = relay->sent[i];
            relay->sent[i] = relay->sent[--relay->sent_count];
            relay->room -= request->room;
            return true;
        }
    }
    return false;
}

// -------------------------------------------------------------------------------------------------------------------

int redox_relay_forward(redox_relay *relay, uint64_t ticket, const void *message, size_t size, size_t reply_bytes,
                        bool dropped) {
    if (reply_bytes > REDOX_RELAY_BYTES) {
        return EINVAL;
    }
    redox_relayed request = {
        .ticket = ticket, .room = (uint32_t)reply_bytes + REDOX_SHORT_REPLY, .dropped = dropped};
    pthread_mutex_lock(&relay->lock);
    int error = forward(relay, &request, message, size);
    pthread_mutex_unlock(&relay->lock);
    return error;
}

// The other end is closed: nobody answers what is there.
static void hang_up(redox_relay *relay, const redox_devices *devices) {
    redox_relayed left[REDOX_RELAYED];
    pthread_mutex_lock(&relay->lock);
    unsigned count = relay->sent_count;
    memcpy(left, relay->sent, count * sizeof *left);
    while (relay->queued) {
        left[count++] = drop_first(relay);
    }
    relay->sent_count = 0;
    relay->room = 0;
    epoll_ctl(relay->epoll, EPOLL_CTL_DEL, relay->fd, NULL);
    relay->fd = -1;
    pthread_mutex_unlock(&relay->lock);
    for (unsigned i = 0; i < count; i++) {
        if (!left[i].dropped) {
            redox_reply_error(devices, left[i].ticket, EIO);
        }
    }
}

static void pass_on(redox_relay *relay, const redox_devices *devices, size_t size) {
    struct fuse_out_header header;
    if (size < sizeof header) {
        return;
    }
    memcpy(&header, relay->reply, sizeof header);
    bool whole = size <= REPLY_ROOM && header.len == size;
    if (!header.unique) {
        // A notification. It says the same on any descriptor.
        if (whole) {
            redox_reply_message(devices, 0, relay->reply, size);
        }
        return;
    }
    redox_relayed request;
    pthread_mutex_lock(&relay->lock);
    bool found = settle(relay, header.unique, &request);
    pthread_mutex_unlock(&relay->lock);
    if (!found || request.dropped) {
        return;
    }
    if (!whole || redox_reply_message(devices, request.ticket, relay->reply, size) == EINVAL) {
        redox_reply_error(devices, request.ticket, EIO);
    }
}

unsigned redox_relay_move(redox_relay *relay, const redox_devices *devices, unsigned most) {
    if (relay->fd < 0) {
        return 0;
    }
    unsigned moved = 0;
    while (moved < most) {
        ssize_t size = recv(relay->fd, relay->reply, REPLY_ROOM, MSG_DONTWAIT | MSG_TRUNC);
        if (size > 0) {
            pass_on(relay, devices, (size_t)size);
            moved++;
        } else if (size == 0 || (errno != EINTR && errno != EAGAIN)) {
            hang_up(relay, devices);
            break;
        } else if (errno == EAGAIN) {
            break;
        }
    }
    pthread_mutex_lock(&relay->lock);
    flush(relay);
    pthread_mutex_unlock(&relay->lock);
    return moved;
}

unsigned redox_relay_waiting(redox_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    unsigned waiting = relay->sent_count + relay->queued;
    pthread_mutex_unlock(&relay->lock);
    return waiting;
}

uint64_t redox_relay_total(redox_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    uint64_t total = relay->total;
    pthread_mutex_unlock(&relay->lock);
    return total;
}
