// A libFuzzer target: the session against a kernel, a relay and a caller that do what the input says.
//
// The first two bytes of the input say how the session begins, the others are records. A record is a kind, and what that
// kind needs (see `play`): a request with any body, a message of any bytes, a reply of the relay, a call of the session,
// or its end, after which another goes on from its shared memory. The tree is damaged in each way that its reader has to
// notice. Beside the sanitizers, `finish` checks that each request got one answer.
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "requests.h"
#include "session.h"

enum {
    FOLDERS = 10,
    CHILDREN = 28,
    ENTRIES = 1 + FOLDERS + FOLDERS * CHILDREN,
    MESSAGE_BYTES = 1 << 17,
    MOST_REQUESTS = 200,
    EVENTS = 64,
    HANDLES = 8,
    // What the socket pair of the device holds, at most: all replies to one request.
    ROOM_BYTES = 1 << 22,
    // The relay's is full after some requests that it does not receive.
    RELAY_ROOM_BYTES = 1 << 17,
};

#include "columns.h"

static void damage(void) {
    // Folders 1 to 3 are whole.
    first_child[4] = -5;
    children[5] = INT32_MAX;
    first_child[6] = ENTRIES - 3;
    children[7] = -1;
    first_child[8] = INT32_MAX;
    first_child[9] = 0;
    int first = first_child[10];
    name_at[first + 3] = -1;
    name_at[first + 6] = INT64_MAX;
    name_at[first + 9] = name_at[first + 8] - 2;
    name_at[first + 12] = INT64_MIN;
    name_at[ENTRIES] += 3;
    size_of[first + 1] = INT64_MIN;
    size_of[first + 2] = INT64_MAX;
    times[first + 1] = INT64_MIN;
    times[first + 2] = INT64_MAX;
    sample_of[first + 4] = INT32_MAX;
}

static void make_tree(void) {
    for (int entry = 0; entry < ENTRIES; entry++) {
        bool is_folder = entry <= FOLDERS;
        int parent = entry == 0 || is_folder ? 0 : 1 + (entry - 1 - FOLDERS) / CHILDREN;
        set_entry(entry, is_folder, entry * 1000, is_folder || entry % 5 == 0 ? -1 : entry);
        parent_of[entry] = parent;
        first_child[entry] = entry == 0 ? 1 : is_folder ? 1 + FOLDERS + (entry - 1) * CHILDREN : 0;
        children[entry] = entry == 0 ? FOLDERS : is_folder ? CHILDREN : 0;
        nlink[entry] = 1;
        times[entry] = entry;
    }
    damage();
}

// One run

typedef struct {
    const uint8_t *at, *end;

    redox_session *session;
    redox_session_options options;
    redox_shared shared;
    int memory;  // of `shared`; -1: nothing outlives the session
    bool has_gone_on;
    uint32_t opcodes[MOST_REQUESTS];
    int kernel, device, relay_end, relay;
    char *message;  // MESSAGE_BYTES

    // Requests that `request` made: their numbers are 2, 4, 6, …
    unsigned made;
    bool awaits[MOST_REQUESTS], answered[MOST_REQUESTS];
    uint8_t decisions[MOST_REQUESTS];  // what to do with the event, if one comes of it
    uint64_t relayed[MOST_REQUESTS];  // tickets at the relay
    unsigned relayed_count;
    redox_event undecided[EVENTS];  // events that have no answer yet
    unsigned undecided_count;
    unsigned opened;  // so many times
    bool is_told_lies;  // a message or a reply of any bytes was sent, or the end: then answers are not counted
    bool is_over;
    bool is_idle_relay;  // the relay receives nothing, apart from what it replies to
    unsigned inits;
} run;

static uint8_t byte(run *self) { return self->at < self->end ? *self->at++ : 0; }

static unsigned number(run *self) {
    unsigned low = byte(self), high = byte(self);
    return low | high << 8;
}

// Up to `most` bytes of the input; *size says how many.
static const void *bytes(run *self, size_t most, size_t *size) {
    size_t left = (size_t)(self->end - self->at);
    *size = most < left ? most : left;
    const void *start = self->at;
    self->at += *size;
    return start;
}

static uint64_t inode_of(unsigned number) {
    uint64_t branch = number >> 13, entry = number & 0x1fff;
    return (branch << 40) + (entry == 0x1fff ? 0 : entry % (ENTRIES + 3) + 1);
}

static size_t entry_of(run *self) { return number(self) % ENTRIES; }

// What goes to the kernel: whole messages, with an error that it would accept, one for each request.
static void drain(run *self) {
    for (ssize_t size; (size = recv(self->kernel, self->message, MESSAGE_BYTES, MSG_DONTWAIT | MSG_TRUNC)) > 0;) {
        struct fuse_out_header header;
        CHECK((size_t)size >= sizeof header);
        memcpy(&header, self->message, sizeof header);
        if (self->is_told_lies) {
            continue;
        }
        CHECK(header.len == size);
        CHECK(!header.unique || (header.error <= 0 && header.error > -512));
        uint64_t index = header.unique / 2 - 1;
        if (header.unique && index < self->made) {
            // The kernel drops the second answer of a close that was answered and not done.
            bool is_again = self->has_gone_on && self->opcodes[index] == FUSE_RELEASE;
            CHECK(self->awaits[index] && (is_again || !self->answered[index]));
            self->answered[index] = true;
        }
    }
}

// What goes to the relay.
static void drain_relay(run *self) {
    for (ssize_t size; (size = recv(self->relay_end, self->message, MESSAGE_BYTES, MSG_DONTWAIT)) > 0;) {
        struct fuse_in_header header;
        CHECK((size_t)size >= sizeof header);
        memcpy(&header, self->message, sizeof header);
        if (header.opcode != FUSE_INIT && self->relayed_count < MOST_REQUESTS) {
            self->relayed[self->relayed_count++] = header.unique;
        }
    }
}

// Answers or releases an event, as the input says. Returns whether it is done with.
static bool decide(run *self, const redox_event *event, unsigned how) {
    size_t entry = event->number % ENTRIES;
    if (event->kind == REDOX_RELEASE) {
        redox_session_freed(self->session, entry);
        redox_session_released(self->session, event->unique, event->number);
        return true;
    }
    if (event->kind == REDOX_INIT || event->kind == REDOX_INTERRUPT || event->kind == REDOX_LOG_RELEASE) {
        return true;
    }
    if (how % 8 == 7) {
        return false;
    }
    if (how % 8 == 6) {
        redox_session_failed(self->session, event->unique, 1 + how / 8);
        return true;
    }
    if (event->kind == REDOX_OPEN && event->number == redox_inode(REDOX_CONTROL, REDOX_ACCESS_LOG)) {
        redox_session_log_opened(self->session, event->unique, UINT64_C(1) << REDOX_LOG_HANDLES_SHIFT);
    } else if (event->kind == REDOX_OPEN) {
        redox_buffer *data = how % 8 < 4 ? redox_buffer_allocate(how * 700u) : NULL;
        if (data) {
            memset(data->data, 'x', data->size);
        }
        redox_opening opening = {
            .unique = event->unique,
            .inode = event->number,
            // Few, so that the input's reads meet them; a number that is in use is refused.
            .handle = how % 8 == 5 ? how * 5000u : 1 + self->opened++ % HANDLES,
            .thread = event->thread,
            .data = data,
            .size = how % 2 ? (int64_t)how * 700 : -1,
            .keep_pages = how & 16,
            .shares_pages = how & 32,
        };
        int error = redox_session_opened(self->session, &opening);
        redox_buffer_drop(data);
        if (error == EINVAL || error == ENOMEM) {
            redox_session_failed(self->session, event->unique, EIO);
        }
    } else if (event->kind == REDOX_STAT) {
        redox_session_stat(self->session, event->unique, entry, how * 100, how & 64);
    } else if (event->kind == REDOX_LOG_POLL) {
        redox_session_polled(self->session, event->unique, how);
        redox_session_wake(self->session, event->offset);
    } else if (event->kind == REDOX_READ || event->kind == REDOX_LOG_READ || event->kind == REDOX_LOG_TRY) {
        redox_session_data(self->session, event->unique, self->message, how * 30u);
    }
    return true;
}

// The kernel's number of a request.
static uint64_t kernels(run *self, uint64_t unique) {
    const redox_kept *kept = redox_is_kept(unique) ? redox_shared_find(&self->shared, unique) : NULL;
    return kept ? ((const struct fuse_in_header *)kept->message)->unique : unique;
}

static void take(run *self) {
    redox_event events[EVENTS];
    int count = redox_session_take(self->session, 0, 0, events, EVENTS);
    self->is_over |= count < 0;
    drain(self);
    for (int i = 0; i < count; i++) {
        uint64_t index = (kernels(self, events[i].unique) & ((UINT64_C(1) << 56) - 1)) / 2 - 1;
        if (!decide(self, &events[i], index < self->made ? self->decisions[index] : 0) && self->undecided_count < EVENTS) {
            self->undecided[self->undecided_count++] = events[i];
        }
    }
    drain(self);
    if (!self->is_idle_relay) {
        drain_relay(self);
    }
}

static bool has_answer(unsigned opcode) {
    return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT &&
           opcode != FUSE_NOTIFY_REPLY;
}

static void request(run *self, unsigned opcode) {
    if (self->made == MOST_REQUESTS) {
        return;
    }
    size_t size;
    struct fuse_in_header header = {.opcode = opcode, .unique = 2 * (self->made + 1)};
    // One by one: the compiler may choose the order within an expression.
    header.nodeid = inode_of(number(self));
    header.pid = byte(self);
    self->decisions[self->made] = byte(self);
    unsigned most = number(self);
    const void *body = bytes(self, most % 65536, &size);
    header.len = (uint32_t)(sizeof header + size);
    memcpy(self->message, &header, sizeof header);
    memcpy(self->message + sizeof header, body, size);
    self->opcodes[self->made] = opcode;
    self->awaits[self->made++] = has_answer(opcode);
    self->is_told_lies |= opcode == FUSE_DESTROY;
    CHECK(send(self->kernel, self->message, header.len, 0) == (ssize_t)header.len);
}

static void send_init(run *self, uint32_t major, uint32_t minor, uint32_t flags) {
    struct {
        struct fuse_in_header header;
        struct fuse_init_in body;
    } init = {
        .header = {.len = sizeof init, .opcode = FUSE_INIT, .unique = (UINT64_C(1) << 40) + 2 * self->inits++},
        .body = {.major = major, .minor = minor, .flags = flags},
    };
    CHECK(send(self->kernel, &init, sizeof init, 0) == sizeof init);
    take(self);
}

// Most often as today's kernel begins.
static void begin(run *self, unsigned how) {
    if (how & 8) {
        send_init(self, FUSE_KERNEL_VERSION + 1, 0, 0);
    }
    if ((how & 48) != 48) {
        uint32_t minor = (how & 48) == 32 ? 20 : FUSE_KERNEL_MINOR_VERSION;
        send_init(self, FUSE_KERNEL_VERSION, minor, how & 2 ? UINT32_MAX : ~(uint32_t)FUSE_NO_OPENDIR_SUPPORT);
    }
}

static void reply_of_relay(run *self) {
    size_t size;
    struct fuse_out_header header = {.error = -(byte(self) % 3)};
    const void *body = bytes(self, number(self), &size);
    drain_relay(self);
    if (!self->relayed_count) {
        return;
    }
    header.unique = self->relayed[--self->relayed_count];
    size = header.error ? 0 : size;
    header.len = (uint32_t)(sizeof header + size);
    memcpy(self->message, &header, sizeof header);
    memcpy(self->message + sizeof header, body, size);
    send(self->relay_end, self->message, header.len, MSG_NOSIGNAL);
}

static void call(run *self) {
    unsigned which = byte(self) % 9;
    size_t entry = entry_of(self);
    unsigned argument = number(self);
    switch (which) {
    case 0:
        redox_session_shed(self->session, entry);
        break;
    case 1:
        redox_session_unhold(self->session, (int64_t)(argument % 6) - 1);
        break;
    case 2:
        redox_session_turned(self->session, entry);
        break;
    case 3:
        redox_session_freed(self->session, entry);
        break;
    case 4:
        redox_session_ask(self->session, entry, argument & 1);
        break;
    case 5:
        redox_session_bind(self->session, entry, argument);
        break;
    case 6:
        redox_session_changed(self->session, inode_of(argument));
        break;
    case 7:
        for (unsigned left = self->undecided_count; left; left--) {
            redox_event event = self->undecided[--self->undecided_count];
            if (!decide(self, &event, argument & 0xff)) {
                self->undecided[self->undecided_count++] = event;
                break;
            }
        }
        break;
    default:
        redox_session_counts(self->session);
        break;
    }
}

static void make_pair(int *ours, int *theirs, int room) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends));
    for (int i = 0; i < 2; i++) {
        setsockopt(ends[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    }
    *ours = ends[0];
    *theirs = ends[1];
}

static void make_session(run *self) {
    if (self->memory >= 0) {
        uint32_t layout;
        CHECK(!redox_shared_open(&self->shared, self->memory, 1 << 10, 4096, &layout));
        self->options.shared = &self->shared;
    }
    make_pair(&self->relay_end, &self->relay, RELAY_ROOM_BYTES);
    self->options.relay = self->options.relay < 0 ? -1 : self->relay;
    self->session = redox_session_new(&self->options);
    CHECK(self->session);
}

static void free_session(run *self) {
    redox_session_close(self->session);
    redox_session_free(self->session);
    if (self->memory >= 0) {
        redox_shared_close(&self->shared);
    }
    close(self->relay_end);
    close(self->relay);
}

// Another session, which knows only what is in shared memory.
static void go_on(run *self) {
    if (self->memory >= 0) {
        free_session(self);
        self->undecided_count = self->relayed_count = 0;
        self->has_gone_on = true;
        make_session(self);
    }
}

static void play(run *self) {
    unsigned kind = byte(self);
    size_t size;
    const void *any;
    switch (kind % 16) {
    case 0:  // any bytes from the kernel
        any = bytes(self, number(self), &size);
        if (size) {
            self->is_told_lies = true;
            CHECK(send(self->kernel, any, size, 0) == (ssize_t)size);
        }
        break;
    case 1:  // any bytes from the relay
        any = bytes(self, number(self), &size);
        if (size && send(self->relay_end, any, size, MSG_NOSIGNAL) > 0) {
            self->is_told_lies = true;
        }
        break;
    case 2:
    case 3:
        reply_of_relay(self);
        break;
    case 4:
    case 5:
        call(self);
        break;
    case 6:
        if (kind >> 4 == 15) {  // the relay ends
            shutdown(self->relay_end, SHUT_RDWR);
        } else if (kind & 32) {
            go_on(self);
        }
        break;
    default:
        request(self, byte(self));
        break;
    }
    // Some requests are received together.
    if (!(kind & 0x80)) {
        take(self);
    }
}

// Everything gets an answer, and nothing is left.
static void finish(run *self) {
    take(self);
    shutdown(self->relay_end, SHUT_RDWR);
    take(self);
    take(self);
    while (self->undecided_count) {
        redox_session_failed(self->session, self->undecided[--self->undecided_count].unique, EINTR);
    }
    drain(self);
    redox_session_count counts = redox_session_counts(self->session);
    for (unsigned i = 0; i < self->made && !self->is_told_lies; i++) {
        CHECK(!self->awaits[i] || self->answered[i]);
    }
    CHECK(self->is_told_lies || self->has_gone_on || counts.requests == self->made + self->inits);
    free_session(self);
    if (self->memory >= 0) {
        close(self->memory);
    }
    close(self->kernel);
    close(self->device);
    free(self->message);
    CHECK(redox_buffer_bytes() == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!name_at[1] && !nlink[0]) {
        make_tree();
    }
    memset((void *)flags, 0, sizeof flags);
    run self = {.at = data, .end = data + size, .message = malloc(MESSAGE_BYTES)};
    CHECK(self.message);
    memset(self.message, 0, MESSAGE_BYTES);
    make_pair(&self.kernel, &self.device, ROOM_BYTES);
    unsigned how = byte(&self), outlives = byte(&self) & 1;
    self.is_idle_relay = how & 128;
    self.memory = outlives ? memfd_create("redoxfs-fuzz", MFD_CLOEXEC) : -1;
    self.options = (redox_session_options){
        .devices = &self.device,
        .devices_count = 1,
        .relay = (how & 68) == 68 ? -1 : 0,
        .tree = &tree,
        .max_read = 1 << 17,
    };
    make_session(&self);
    begin(&self, how);
    while (self.at < self.end && !self.is_over) {
        play(&self);
    }
    finish(&self);
    return 0;
}
