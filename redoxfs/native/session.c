#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "requests.h"
#include "threads.h"
#include "times.h"

enum {
    // Events that the owner has not taken. Beyond them, nothing is received: programs wait in the kernel.
    QUEUE = 4096,
    // Work in one turn of the owner, in requests, and how long a turn may go on if requests keep coming: about 2 ms,
    // or as long as the owner lets it sleep, if that is longer.
    TURN = 256,
    TURN_NS = 2000000,
    MILLISECOND = 1000000,
    // Requests between two looks at the watched descriptors. A look costs about 1 us.
    BETWEEN_LOOKS = 16,
    // Descriptors that one look finds ready: the device, the relay, the helpers' events, and those that are watched.
    READY = 16,
};

// After which request a look for the next one begins.
typedef enum { AFTER_OPEN, AFTER_READ, AFTER_RELEASE, AFTER_OTHER, AFTER_KINDS } after;

// The chance that a look finds something, in parts of CERTAIN, as the last looks after such a request did.
enum {
    CERTAIN = 256,
    // Below this, a look costs more than it saves. A program that waits for a processor sends nothing during a look,
    // which takes the processor from it; one that computes sends its next OPEN later.
    WORTH_A_LOOK = CERTAIN / 2,
    // The weight of one look is 1 / LOOKS_REMEMBERED.
    LOOKS_REMEMBERED = 8,
    // Of the looks that are not worth it, one in so many is done.
    TRIED_EVERY = 16,
};

typedef struct {
    int chance;
    int left_out;  // since the last look
} look_odds;

// One thread that receives: the owner is number 0.
typedef struct {
    redox_session *session;
    unsigned device;  // its number in `devices`
    char *request;    // REDOX_REQUEST_BYTES; shared memory if the session has any
    char *reply;      // REDOX_LISTING_BYTES
    int epoll;        // of a helper: its descriptor, and `stop`
    pthread_t thread;
    bool started;
} worker;

struct redox_session {
    redox_core core;
    int epoll;
    int events_fd;  // readable while the queue has events that no call of take is about to return
    int stop_fd;    // readable when the helpers have to end
    unsigned since_look;
    after last;  // what the owner received
    look_odds odds[AFTER_KINDS];

    // The order of events: a request is received and its event queued under this lock.
    pthread_mutex_t order;
    pthread_cond_t room;  // the queue has room, or the helpers have to end
    redox_event queue[QUEUE];
    unsigned head;
    atomic_uint queued;
    atomic_bool stopping;
    atomic_int error;  // why no request can be received any more, as an errno; 0 if the mount has ended

    // Requests of a former session, which the owner delivers again before any other thread receives one.
    uint64_t *again;
    unsigned again_count, again_next;

    unsigned workers_count;
    worker workers[];
};

typedef enum { SERVED, NOTHING, FULL, OVER } step_result;

// Makes an eventfd readable.
static void signal_fd(int fd) {
    uint64_t one = 1;
    // Fails only where the counter is full, which is as good.
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

// Receives one message under the lock of the order. Returns its size, or an errno, negative.
static ssize_t receive(worker *self) {
    ssize_t size = read(self->session->core.devices.fds[self->device], self->request, REDOX_REQUEST_BYTES);
    // No bytes: the other end of a socket, which a test has in place of the kernel.
    return size < 0 ? -errno : size ? size : -ENODEV;
}

static bool wait_for_room(worker *self) {
    redox_session *session = self->session;
    while (atomic_load_explicit(&session->queued, memory_order_relaxed) == QUEUE) {
        if (!self->device || atomic_load_explicit(&session->stopping, memory_order_relaxed)) {
            return false;
        }
        pthread_cond_wait(&session->room, &session->order);
    }
    return true;
}

// Adds an event, under the lock of the order. Whether it is the only one.
static bool enqueue(redox_session *session, const redox_event *event) {
    unsigned queued = atomic_load_explicit(&session->queued, memory_order_relaxed);
    session->queue[(session->head + queued) % QUEUE] = *event;
    atomic_store_explicit(&session->queued, queued + 1, memory_order_release);
    return !queued;
}

// What was received is answered, or kept.
static void landed(worker *self) {
    if (self->session->core.devices.shared) {
        redox_shared_landed(self->request);
    }
}

static after kind_of(const struct fuse_in_header *header) {
    switch (header->opcode) {
    case FUSE_OPEN:
        return AFTER_OPEN;
    case FUSE_READ:
        return AFTER_READ;
    case FUSE_RELEASE:
        return AFTER_RELEASE;
    default:
        return AFTER_OTHER;
    }
}

// Receives one request and answers it, or queues its event.
static step_result serve_one(worker *self) {
    redox_session *session = self->session;
    redox_core *core = &session->core;
    redox_request request;
    redox_event event;
    bool has_event = false, was_empty = false;
    redox_next next = REDOX_FINISHED;
    pthread_mutex_lock(&session->order);
    if (!wait_for_room(self)) {
        pthread_mutex_unlock(&session->order);
        return FULL;
    }
    ssize_t size = receive(self);
    if (size > 0) {
        next = redox_receive(core, self->device, self->request, (size_t)size, 0, &request, &event, &has_event);
        if (!self->device && (size_t)size >= sizeof(struct fuse_in_header)) {
            session->last = kind_of((const struct fuse_in_header *)self->request);
        }
    }
    if (has_event) {
        // Before the owner sees the event: once that is answered the request must not be here any more.
        landed(self);
        was_empty = enqueue(session, &event);
    }
    pthread_mutex_unlock(&session->order);
    if (was_empty && self->device) {
        signal_fd(session->events_fd);
    }
    if (next == REDOX_TO_ANSWER) {
        redox_answer(core, &request, self->reply);
    }
    if (size > 0) {
        landed(self);
        return atomic_load_explicit(&core->over, memory_order_relaxed) ? OVER : SERVED;
    }
    switch (-size) {
    case EAGAIN:
        return NOTHING;
    case EINTR:
    case ENOENT:  // the program was killed before its request was received
        return SERVED;
    case ENODEV:        // unmounted
    case ECONNABORTED:  // the kernel ended the connection
    case ENOTCONN:
        break;
    default:
        // The mount is still there. As an end, this would leave the empty folder below it.
        atomic_store_explicit(&session->error, (int)-size, memory_order_relaxed);
        break;
    }
    atomic_store_explicit(&core->over, true, memory_order_release);
    return OVER;
}

// Delivers requests of a former session, up to `most` events.
static void deliver_again(redox_session *session, unsigned most) {
    redox_core *core = &session->core;
    while (session->again_next < session->again_count) {
        if (atomic_load_explicit(&session->queued, memory_order_relaxed) >= most) {
            return;
        }
        uint64_t kept = session->again[session->again_next++];
        const redox_kept *found = redox_shared_find(core->devices.shared, kept);
        if (!found) {
            continue;  // the caller has answered it
        }
        union {
            struct fuse_in_header header;
            char bytes[REDOX_KEPT_BYTES];
        } message;
        memcpy(message.bytes, found->message, sizeof message.bytes);
        redox_request request;
        redox_event event;
        bool has_event;
        redox_next next = redox_receive(core, found->device, message.bytes, found->size, kept, &request, &event,
                                        &has_event);
        if (has_event) {
            enqueue(session, &event);
        }
        if (next == REDOX_TO_ANSWER) {
            redox_answer(core, &request, session->workers[0].reply);
        }
    }
    free(session->again);
    session->again = NULL;
}

// Helpers

static void *help(void *argument) {
    worker *self = argument;
    redox_session *session = self->session;
    pthread_setname_np(pthread_self(), "redoxfs-serve");
    while (!atomic_load_explicit(&session->stopping, memory_order_relaxed)) {
        step_result result = serve_one(self);
        if (result == OVER) {
            signal_fd(session->events_fd);
            break;
        }
        if (result == NOTHING) {
            struct epoll_event ready;
            epoll_wait(self->epoll, &ready, 1, -1);
        }
    }
    return NULL;
}

static int add_to_epoll(int epoll, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
}

static bool make_worker(redox_session *session, unsigned number) {
    worker *self = &session->workers[number];
    *self = (worker){.session = session, .device = number, .epoll = -1};
    redox_shared *shared = session->core.devices.shared;
    self->request = shared ? redox_shared_landing(shared, number) : malloc(REDOX_REQUEST_BYTES);
    self->reply = malloc(REDOX_LISTING_BYTES);
    session->workers_count++;
    return self->request && self->reply;
}

// Returns 0 or an errno.
static int make_helper(redox_session *session, unsigned number) {
    if (!make_worker(session, number)) {
        return ENOMEM;
    }
    worker *self = &session->workers[number];
    redox_devices *devices = &session->core.devices;
    if (number == devices->count) {
        devices->fds[devices->count++] = devices->fds[0];
    }
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll < 0) {
        return errno;
    }
    // Exclusive: a request wakes one helper, not all of them.
    int error = add_to_epoll(self->epoll, devices->fds[number], EPOLLIN | EPOLLEXCLUSIVE);
    if (!error) {
        error = add_to_epoll(self->epoll, session->stop_fd, EPOLLIN);
    }
    return error;
}

// Starts as many as the limit of processes allows; the owner answers by itself what no helper does.
static void start_helpers(redox_session *session) {
    for (unsigned i = 1; i < session->workers_count; i++) {
        worker *helper = &session->workers[i];
        helper->started = !redox_thread_start(&helper->thread, NULL, help, helper);
    }
}

static void end_helpers(redox_session *session) {
    pthread_mutex_lock(&session->order);
    atomic_store_explicit(&session->stopping, true, memory_order_relaxed);
    pthread_cond_broadcast(&session->room);
    pthread_mutex_unlock(&session->order);
    signal_fd(session->stop_fd);
    for (unsigned i = 1; i < session->workers_count; i++) {
        if (session->workers[i].started) {
            pthread_join(session->workers[i].thread, NULL);
            session->workers[i].started = false;
        }
    }
}

// The session

// Goes on after a former session, whose shared memory this is. Returns 0 or an errno.
static int go_on(redox_session *session, bool blames) {
    redox_core *core = &session->core;
    const redox_shared_head *head = core->devices.shared->head;
    session->again = malloc(REDOX_SLOTS * sizeof *session->again);
    if (!session->again) {
        return ENOMEM;
    }
    session->again_count = redox_shared_waiting(core->devices.shared, blames, session->again);
    if (head->init_bytes) {
        core->lists_without_open = head->init_lists;
        atomic_store_explicit(&core->begun, true, memory_order_release);
        redox_begin_relay(core);
        // The kernel may have got the size of any file while it had no answer.
        for (size_t entry = 0; entry < core->tree->entries; entry++) {
            atomic_fetch_or_explicit(&core->tree->flags[entry], REDOX_SIZED_WHILE_FREE, memory_order_relaxed);
        }
        redox_event begun = {.kind = REDOX_INIT, .number = head->init_maps};
        enqueue(session, &begun);
    }
    // After a former session the caller first says what is open.
    if (!session->again_count && !head->init_bytes) {
        free(session->again);
        session->again = NULL;
    }
    return 0;
}

static int set_up(redox_session *session, const redox_session_options *options) {
    redox_core *core = &session->core;
    redox_handles_init(&core->handles);
    // Adaptive: the lock is held for a microsecond or two, for which it is better to look than to sleep.
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&session->order, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
    pthread_cond_init(&session->room, NULL);
    core->tree = options->tree;
    core->max_read = options->max_read;
    core->devices.shared = options->shared;
    memcpy(core->devices.fds, options->devices, options->devices_count * sizeof *options->devices);
    core->devices.count = options->devices_count;
    session->epoll = epoll_create1(EPOLL_CLOEXEC);
    session->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    session->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->epoll < 0 || session->events_fd < 0 || session->stop_fd < 0) {
        return errno;
    }
    int error = redox_relay_init(&core->relay, options->relay, session->epoll);
    if (!error) {
        error = add_to_epoll(session->epoll, options->devices[0], EPOLLIN);
    }
    if (!error) {
        error = add_to_epoll(session->epoll, session->events_fd, EPOLLIN);
    }
    if (error) {
        return error;
    }
    if (!make_worker(session, 0)) {
        return ENOMEM;
    }
    for (unsigned i = 1; i <= options->helpers && !error; i++) {
        error = make_helper(session, i);
    }
    if (!error && options->shared) {
        error = go_on(session, options->blames);
    }
    // They receive nothing before what waits is delivered again.
    if (!error && !session->again) {
        start_helpers(session);
    }
    return error;
}

redox_session *redox_session_new(const redox_session_options *options) {
    if (options->helpers > REDOX_MOST_HELPERS || !options->max_read || options->max_read > REDOX_MOST_READ ||
        !options->devices_count || options->devices_count > REDOX_DEVICES) {
        errno = EINVAL;
        return NULL;
    }
    for (unsigned i = 0; i < options->devices_count; i++) {
        int flags = fcntl(options->devices[i], F_GETFL);
        if (flags < 0 || fcntl(options->devices[i], F_SETFL, flags | O_NONBLOCK)) {
            return NULL;
        }
    }
    redox_session *session = calloc(1, sizeof *session + (options->helpers + 1) * sizeof *session->workers);
    if (!session) {
        errno = ENOMEM;
        return NULL;
    }
    session->epoll = session->events_fd = session->stop_fd = -1;
    for (unsigned i = 0; i < AFTER_KINDS; i++) {
        session->odds[i].chance = CERTAIN;
    }
    int error = set_up(session, options);
    if (error) {
        redox_session_free(session);
        errno = error;
        return NULL;
    }
    return session;
}

void redox_session_close(redox_session *session) {
    if (session->core.closed) {
        return;
    }
    end_helpers(session);
    session->core.closed = true;
    atomic_store_explicit(&session->core.over, true, memory_order_relaxed);
    redox_handles_free(&session->core.handles);
    // The caller may close its descriptors now, whose numbers other files get.
    session->core.devices.count = 0;
}

static void close_fd(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

void redox_session_free(redox_session *session) {
    redox_session_close(session);
    for (unsigned i = 0; i < session->workers_count; i++) {
        worker *self = &session->workers[i];
        close_fd(self->epoll);
        if (!session->core.devices.shared) {
            free(self->request);
        }
        free(self->reply);
    }
    redox_relay_free(&session->core.relay);
    free(session->again);
    close_fd(session->epoll);
    close_fd(session->events_fd);
    close_fd(session->stop_fd);
    pthread_mutex_destroy(&session->order);
    pthread_cond_destroy(&session->room);
    free(session);
}

redox_core *redox_core_of(redox_session *session) { return &session->core; }

int redox_session_fd(const redox_session *session) { return session->epoll; }

int redox_session_watch(redox_session *session, int fd) { return add_to_epoll(session->epoll, fd, EPOLLIN); }

// Taking events

// What a look found. More than one may hold.
enum { FOUND_REQUEST = 1, FOUND_REPLY = 2, FOUND_FOR_CALLER = 4 };

static int look(redox_session *session, int wait_ms) {
    struct epoll_event ready[READY];
    int found = 0, count = epoll_wait(session->epoll, ready, READY, wait_ms);
    session->since_look = 0;
    for (int i = 0; i < count; i++) {
        int fd = ready[i].data.fd;
        found |= fd == session->core.devices.fds[0] ? FOUND_REQUEST
                 : fd == session->core.relay.fd     ? FOUND_REPLY
                                                    : FOUND_FOR_CALLER;
    }
    return found;
}

// Whether to look again before sleeping.
static bool is_worth_a_look(look_odds *odds) {
    if (odds->chance >= WORTH_A_LOOK || ++odds->left_out == TRIED_EVERY) {
        odds->left_out = 0;
        return true;
    }
    return false;
}

// Looks for `look_us`, or until something is there, if it is worth it.
static int keep_looking(redox_session *session, uint32_t look_us) {
    look_odds *odds = &session->odds[session->last];
    if (!look_us || !is_worth_a_look(odds)) {
        return 0;
    }
    session->core.looks++;
    int64_t now = redox_now_ns(), until = now + (int64_t)look_us * 1000;
    int found;
    while (!(found = look(session, 0)) && (now = redox_now_ns()) < until) {
    }
    // A look that lost the processor in between ends late. A sleep would have found as much.
    bool is_found = found && now < until;
    odds->chance += ((is_found ? CERTAIN : 0) - odds->chance) / LOOKS_REMEMBERED;
    return found;
}

static unsigned move_replies(redox_session *session) {
    return redox_relay_move(&session->core.relay, &session->core.devices, TURN);
}

// Moves events to the caller.
static int collect(redox_session *session, redox_event *events, int most) {
    int count = 0;
    pthread_mutex_lock(&session->order);
    unsigned queued = atomic_load_explicit(&session->queued, memory_order_relaxed);
    while (count < most && queued) {
        events[count++] = session->queue[session->head];
        session->head = (session->head + 1) % QUEUE;
        queued--;
    }
    atomic_store_explicit(&session->queued, queued, memory_order_relaxed);
    if (session->workers_count > 1) {
        uint64_t ignored;
        if (!queued && read(session->events_fd, &ignored, sizeof ignored) < 0) {
            // Nobody had signalled them.
        }
        pthread_cond_broadcast(&session->room);
    }
    pthread_mutex_unlock(&session->order);
    if (queued) {
        signal_fd(session->events_fd);
    }
    return count;
}

// What is left of a turn of `turn_ns`, which begins with the first question; 0 or less: it is over.
static int64_t left_of(int64_t turn_ns, int64_t *began) {
    int64_t now = redox_now_ns();
    *began = *began ? *began : now;
    return turn_ns - (now - *began);
}

// Serves requests until there is a reason to return.
static void serve_turn(redox_session *session, uint32_t look_us, uint32_t wait_ms, unsigned most) {
    int64_t began = 0, sleep_ns = (int64_t)wait_ms * MILLISECOND;
    int64_t turn_ns = sleep_ns > TURN_NS ? sleep_ns : TURN_NS;
    for (unsigned work = 0; work < TURN;) {
        if (atomic_load_explicit(&session->queued, memory_order_acquire) >= most) {
            return;
        }
        step_result result = serve_one(&session->workers[0]);
        if (result == SERVED) {
            work++;
            if (++session->since_look < BETWEEN_LOOKS) {
                continue;
            }
            int found = look(session, 0);
            if (found & FOUND_REPLY) {
                work += move_replies(session);
            }
            // Long reads take a turn's time with few requests.
            if (found & FOUND_FOR_CALLER || left_of(turn_ns, &began) <= 0) {
                return;
            }
            continue;
        }
        if (result != NOTHING || atomic_load_explicit(&session->queued, memory_order_relaxed)) {
            return;
        }
        // Nothing to receive, and nothing to return. Counted, since a helper may be quicker each time.
        work++;
        int found = look(session, 0);
        if (!found) {
            if (redox_relay_waiting(&session->core.relay) || left_of(turn_ns, &began) <= 0) {
                return;
            }
            found = keep_looking(session, look_us);
            if (!found && wait_ms) {
                int64_t left = left_of(sleep_ns, &began);
                found = left > 0 ? look(session, (int)((left + MILLISECOND - 1) / MILLISECOND)) : 0;
            }
        }
        if (found & FOUND_REPLY) {
            work += move_replies(session);
        }
        if (!found || found & FOUND_FOR_CALLER) {
            return;
        }
    }
}

unsigned redox_session_waiting(const redox_session *session, uint64_t uniques[REDOX_SLOTS]) {
    unsigned count = 0;
    for (unsigned i = session->again_next; session->again && i < session->again_count; i++) {
        if (redox_shared_find(session->core.devices.shared, session->again[i])) {
            uniques[count++] = session->again[i];
        }
    }
    return count;
}

int redox_session_take(redox_session *session, uint32_t look_us, uint32_t wait_ms, redox_event *events, int most) {
    if (session->again && !session->core.closed) {
        deliver_again(session, (unsigned)most);
        if (!session->again) {
            // With fewer of them, or none, the owner answers more.
            start_helpers(session);
        }
    }
    if (!session->again && !atomic_load_explicit(&session->core.over, memory_order_acquire)) {
        serve_turn(session, look_us, wait_ms, (unsigned)most);
    }
    int count = collect(session, events, most);
    return count || !atomic_load_explicit(&session->core.over, memory_order_acquire) ? count : -1;
}

int redox_session_error(const redox_session *session) {
    return atomic_load_explicit(&session->error, memory_order_relaxed);
}
