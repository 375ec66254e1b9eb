#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

// Replies are no longer than what was asked for, notifications shorter.
enum { REPLY_ROOM = 4 * REDOX_RELAY_BYTES };

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

void redox_relay_free(redox_relay *relay) {
    while (relay->queued) {
        free(relay->queue[relay->head++ % REDOX_RELAY_QUEUE].message);
        relay->queued--;
    }
    free(relay->reply);
    relay->reply = NULL;
    relay->fd = -1;
}

static int send_now(redox_relay *relay, const void *message, size_t size) {
    for (;;) {
        if (send(relay->fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

static void poll_for(redox_relay *relay, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = relay->fd};
    epoll_ctl(relay->epoll, EPOLL_CTL_MOD, relay->fd, &event);
}

// Sends a message, or keeps a copy of it until the socket has room. Returns 0, EAGAIN or EIO.
static int send_or_queue(redox_relay *relay, const void *message, size_t size) {
    int error = relay->queued ? EAGAIN : send_now(relay, message, size);
    if (error != EAGAIN) {
        return error ? EIO : 0;
    }
    if (relay->queued == REDOX_RELAY_QUEUE) {
        return EAGAIN;
    }
    void *copy = malloc(size);
    if (!copy) {
        return EAGAIN;
    }
    memcpy(copy, message, size);
    unsigned at = (relay->head + relay->queued) % REDOX_RELAY_QUEUE;
    relay->queue[at].message = copy;
    relay->queue[at].size = size;
    if (!relay->queued++) {
        poll_for(relay, EPOLLIN | EPOLLOUT);
    }
    return 0;
}

int redox_relay_forward(redox_relay *relay, uint64_t ticket, void *message, size_t size) {
    pthread_mutex_lock(&relay->lock);
    int error = 0;
    if (relay->fd < 0) {
        error = relay->reply ? EIO : ENOSYS;
    } else if (relay->relayed == REDOX_RELAYED) {
        error = EAGAIN;
    } else {
        error = send_or_queue(relay, message, size);
    }
    if (!error) {
        relay->tickets[relay->relayed++] = ticket;
        relay->total++;
    }
    pthread_mutex_unlock(&relay->lock);
    return error;
}

void redox_relay_tell(redox_relay *relay, void *message, size_t size) {
    pthread_mutex_lock(&relay->lock);
    if (relay->fd >= 0) {
        send_or_queue(relay, message, size);
    }
    pthread_mutex_unlock(&relay->lock);
}

// Removes a ticket. False if no such request is with the relay.
static bool settle(redox_relay *relay, uint64_t ticket) {
    bool found = false;
    pthread_mutex_lock(&relay->lock);
    for (unsigned i = 0; i < relay->relayed && !found; i++) {
        if (relay->tickets[i] == ticket) {
            relay->tickets[i] = relay->tickets[--relay->relayed];
            found = true;
        }
    }
    pthread_mutex_unlock(&relay->lock);
    return found;
}

static void flush(redox_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    while (relay->fd >= 0 && relay->queued) {
        unsigned at = relay->head % REDOX_RELAY_QUEUE;
        if (send_now(relay, relay->queue[at].message, relay->queue[at].size) == EAGAIN) {
            break;
        }
        // If it failed in another way, the relay has ended, and the next receive finds that out.
        free(relay->queue[at].message);
        relay->head++;
        if (!--relay->queued) {
            poll_for(relay, EPOLLIN);
        }
    }
    pthread_mutex_unlock(&relay->lock);
}

// The other end is closed: nobody answers what is there.
static void hang_up(redox_relay *relay, const redox_devices *devices) {
    uint64_t tickets[REDOX_RELAYED];
    pthread_mutex_lock(&relay->lock);
    unsigned count = relay->relayed;
    memcpy(tickets, relay->tickets, count * sizeof *tickets);
    relay->relayed = 0;
    epoll_ctl(relay->epoll, EPOLL_CTL_DEL, relay->fd, NULL);
    relay->fd = -1;
    pthread_mutex_unlock(&relay->lock);
    for (unsigned i = 0; i < count; i++) {
        redox_reply_error(devices, tickets[i], EIO);
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
    } else if (settle(relay, header.unique)) {
        if (!whole || redox_reply_message(devices, header.unique, relay->reply, size) == EINVAL) {
            redox_reply_error(devices, header.unique, EIO);
        }
    }
}

unsigned redox_relay_move(redox_relay *relay, const redox_devices *devices, unsigned most) {
    if (relay->fd < 0) {
        return 0;
    }
    flush(relay);
    unsigned moved = 0;
    while (moved < most) {
        ssize_t size = recv(relay->fd, relay->reply, REPLY_ROOM, MSG_DONTWAIT | MSG_TRUNC);
        if (size > 0) {
            pass_on(relay, devices, (size_t)size);
            moved++;
        } else if (size < 0 && errno == EINTR) {
            continue;
        } else if (size < 0 && errno == EAGAIN) {
            break;
        } else {
            hang_up(relay, devices);
            break;
        }
    }
    return moved;
}

short redox_relay_events(redox_relay *relay, int *fd) {
    pthread_mutex_lock(&relay->lock);
    *fd = relay->fd;
    short events = relay->queued ? POLLIN | POLLOUT : POLLIN;
    pthread_mutex_unlock(&relay->lock);
    return events;
}

unsigned redox_relay_waiting(redox_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    unsigned waiting = relay->relayed;
    pthread_mutex_unlock(&relay->lock);
    return waiting;
}

uint64_t redox_relay_total(redox_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    uint64_t total = relay->total;
    pthread_mutex_unlock(&relay->lock);
    return total;
}
