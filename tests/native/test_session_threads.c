// The session with helpers: several programs at once, an owner that decides as Python does, and a relay.
//
// A reply must have the bytes of its own open, whatever is shed meanwhile; events must come in the order of the
// requests; each open file must end once. The thread sanitizer looks at the rest.
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "session.h"

enum {
    HELPERS = 3,
    PROGRAMS = 6,
    ROUNDS = 120,
    AT_ONCE = 4,  // opens that a program sends before it waits
    FILES = 40,
    ENTRIES = 1 + FILES,
    DATA_BYTES = 3000,
    HANDLES = PROGRAMS * AT_ONCE + 1,
    REPLY_BYTES = 1 << 16,
    HEAD_BYTES = 16,
    EVENTS = 64,
    // A hang ends the test. It takes some seconds.
    LONGEST_S = 240,
};

#include "columns.h"

// Uniques: even, increasing in each program, and they say which one sent the request.
static uint64_t unique_of(unsigned program, unsigned number) { return 2 * ((uint64_t)number * PROGRAMS + program + 1); }
static unsigned program_of(uint64_t unique) { return (unsigned)((unique / 2 - 1) % PROGRAMS); }
static unsigned number_of(uint64_t unique) { return (unsigned)((unique / 2 - 1) / PROGRAMS); }

static redox_session *session;
static int kernel, device, relay_end, relay;

// The tree: a folder of files. Every fourth is not redirected.

static void make_tree(void) {
    first_child[0] = 1;
    children[0] = FILES;
    for (int entry = 0; entry < ENTRIES; entry++) {
        set_entry(entry, !entry, DATA_BYTES, entry % 4 ? entry : -1);
    }
}

// The programs, and the thread that receives their replies

typedef struct {
    bool is_here;
    int error;
    size_t size;
    char head[HEAD_BYTES];
} answer;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    answer answers[2 * AT_ONCE];
} programs[PROGRAMS];

static void send_request(uint64_t unique, unsigned opcode, uint64_t inode, unsigned thread, const void *body,
                         size_t size) {
    char message[256];
    struct fuse_in_header header = {
        .len = (uint32_t)(sizeof header + size), .opcode = opcode, .unique = unique, .nodeid = inode, .pid = thread};
    memcpy(message, &header, sizeof header);
    if (size) {
        memcpy(message + sizeof header, body, size);
    }
    CHECK(send(kernel, message, header.len, 0) == (ssize_t)header.len);
}

static void *receive_replies(void *none) {
    static char message[REPLY_BYTES];
    (void)none;
    for (;;) {
        ssize_t size = recv(kernel, message, sizeof message, 0);
        struct fuse_out_header header;
        if (size <= 0) {
            return NULL;
        }
        CHECK((size_t)size >= sizeof header);
        memcpy(&header, message, sizeof header);
        CHECK(header.len == size);
        if (!header.unique) {
            continue;
        }
        unsigned program = program_of(header.unique);
        pthread_mutex_lock(&programs[program].lock);
        answer *to = &programs[program].answers[number_of(header.unique) % (2 * AT_ONCE)];
        CHECK(!to->is_here);
        *to = (answer){.is_here = true, .error = -header.error, .size = (size_t)size - sizeof header};
        memcpy(to->head, message + sizeof header, to->size < HEAD_BYTES ? to->size : HEAD_BYTES);
        pthread_cond_signal(&programs[program].arrived);
        pthread_mutex_unlock(&programs[program].lock);
    }
}

static answer wait_for(unsigned program, unsigned number) {
    pthread_mutex_lock(&programs[program].lock);
    answer *from = &programs[program].answers[number % (2 * AT_ONCE)];
    while (!from->is_here) {
        pthread_cond_wait(&programs[program].arrived, &programs[program].lock);
    }
    answer found = *from;
    from->is_here = false;
    pthread_mutex_unlock(&programs[program].lock);
    return found;
}

static answer ask(unsigned program, unsigned *number, unsigned opcode, uint64_t inode, const void *body, size_t size) {
    send_request(unique_of(program, *number), opcode, inode, program + 1, body, size);
    return wait_for(program, (*number)++);
}

static void read_file(unsigned program, unsigned *number, uint64_t inode, uint64_t handle, uint64_t mark,
                      uint64_t *state) {
    struct fuse_read_in in = {.fh = handle, .size = 4096};
    for (int times = 0; times < 3; times++) {
        in.offset = next_number(state) % 4 ? 0 : 1000;
        answer got = ask(program, number, FUSE_READ, inode, &in, sizeof in);
        CHECK(!got.error && got.size == DATA_BYTES - in.offset);
        uint64_t found;
        memcpy(&found, got.head, sizeof found);
        CHECK(found == mark);
    }
}

static void look_around(unsigned program, unsigned *number, uint64_t inode, uint64_t *state) {
    char name[16];
    snprintf(name, sizeof name, "%04u", (unsigned)inode - 1);
    answer found = ask(program, number, FUSE_LOOKUP, 1, name, NAME_BYTES + 1);
    CHECK(!found.error && found.size == sizeof(struct fuse_entry_out));
    struct fuse_getattr_in stat = {0};
    CHECK(!ask(program, number, FUSE_GETATTR, inode, &stat, sizeof stat).error);
    struct fuse_read_in list = {.size = 4096, .offset = next_number(state) % FILES};
    CHECK(!ask(program, number, FUSE_READDIRPLUS, 1, &list, sizeof list).error);
    CHECK(!ask(program, number, FUSE_STATFS, 1, NULL, 0).error);
    struct fuse_forget_in forget = {1};
    send_request(unique_of(PROGRAMS, 1 << 20), FUSE_FORGET, inode, 0, &forget, sizeof forget);
}

static void *be_program(void *argument) {
    unsigned program = (unsigned)(intptr_t)argument - 1, number = 0;
    uint64_t state = program + 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t inode[AT_ONCE], handle[AT_ONCE], mark[AT_ONCE];
        unsigned first = number;
        for (int i = 0; i < AT_ONCE; i++) {
            struct fuse_open_in in = {0};
            inode[i] = 2 + next_number(&state) % FILES;
            mark[i] = unique_of(program, number);
            send_request(unique_of(program, number++), FUSE_OPEN, inode[i], program + 1, &in, sizeof in);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            answer opened = wait_for(program, first + (unsigned)i);
            CHECK(!opened.error && opened.size == sizeof(struct fuse_open_out));
            memcpy(&handle[i], opened.head, sizeof handle[i]);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            read_file(program, &number, inode[i], handle[i], mark[i], &state);
            look_around(program, &number, inode[i], &state);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            struct fuse_release_in in = {.fh = handle[i]};
            CHECK(!ask(program, &number, FUSE_RELEASE, inode[i], &in, sizeof in).error);
        }
    }
    return NULL;
}

// The relay: every request fits into one reply

static void *be_relay(void *none) {
    static char message[REPLY_BYTES];
    (void)none;
    for (;;) {
        ssize_t size = recv(relay_end, message, sizeof message, 0);
        if (size <= 0) {
            return NULL;
        }
        struct fuse_in_header request;
        memcpy(&request, message, sizeof request);
        struct {
            struct fuse_out_header header;
            char body[144];
        } reply = {{.unique = request.unique}, {0}};
        // Of the right size for LOOKUP and GETATTR, whose entries are asked for now and then.
        size_t body = request.opcode == FUSE_LOOKUP    ? sizeof(struct fuse_entry_out)
                      : request.opcode == FUSE_GETATTR ? sizeof(struct fuse_attr_out)
                                                       : 0;
        reply.header.len = (uint32_t)(sizeof reply.header + body);
        CHECK(send(relay_end, &reply, reply.header.len, MSG_NOSIGNAL) == (ssize_t)reply.header.len);
    }
}

// The owner

static struct {
    uint64_t entry, mark;  // entry 0: not open
} handles[HANDLES];
static unsigned open_of[ENTRIES], free_handles[HANDLES], free_count;
static uint64_t last_open[PROGRAMS + 1];
static unsigned opens, releases;

static void fill(char *data, uint64_t mark, size_t offset, size_t size) {
    for (size_t i = 0; i < size; i++) {
        data[i] = ((const char *)&mark)[(offset + i) % sizeof mark];
    }
}

static void decide_open(const redox_event *event, uint64_t *state) {
    size_t entry = (size_t)event->number - 1;
    uint64_t mark = event->unique & ((UINT64_C(1) << 56) - 1);
    CHECK(mark > last_open[event->thread]);
    last_open[event->thread] = mark;
    CHECK(free_count);
    unsigned number = free_handles[--free_count];
    handles[number].entry = entry;
    handles[number].mark = mark;
    open_of[entry]++;
    opens++;
    redox_buffer *data = next_number(state) % 4 ? redox_buffer_allocate(DATA_BYTES) : NULL;
    if (data) {
        fill(data->data, mark, 0, DATA_BYTES);
    }
    redox_opening opening = {
        .unique = event->unique,
        .inode = event->number,
        .handle = number,
        .thread = event->thread,
        .data = data,
        .size = DATA_BYTES,
        .shares_pages = true,
    };
    CHECK(!redox_session_opened(session, &opening));
    redox_buffer_drop(data);
}

static void decide_read(const redox_event *event) {
    char data[DATA_BYTES];
    CHECK(event->number && event->number < HANDLES && handles[event->number].entry);
    CHECK(event->offset <= DATA_BYTES);
    size_t size = DATA_BYTES - (size_t)event->offset;
    fill(data, handles[event->number].mark, (size_t)event->offset, size);
    redox_session_data(session, event->unique, data, size);
}

static void decide_release(const redox_event *event) {
    CHECK(event->number && event->number < HANDLES && handles[event->number].entry);
    size_t entry = handles[event->number].entry;
    handles[event->number].entry = 0;
    free_handles[free_count++] = (unsigned)event->number;
    releases++;
    if (!--open_of[entry]) {
        redox_session_freed(session, entry);
    }
}

static void interfere(uint64_t *state) {
    size_t entry = 1 + next_number(state) % FILES;
    switch (next_number(state) % 6) {
    case 0:
        redox_session_shed(session, entry);
        break;
    case 1:
        redox_session_unhold(session, (int64_t)(next_number(state) % (PROGRAMS + 2)) - 1);
        break;
    case 2:
        redox_session_turned(session, entry);
        break;
    case 3:
        redox_session_ask(session, entry, next_number(state) % 4 == 0);
        break;
    case 4:
        CHECK(!redox_session_bind(session, entry, DATA_BYTES));
        break;
    default:
        redox_session_counts(session);
        break;
    }
}

static void *be_owner(void *none) {
    uint64_t state = 99;
    (void)none;
    redox_event events[EVENTS];
    for (int count; (count = redox_session_take(session, 50, 1, events, EVENTS)) >= 0;) {
        for (int i = 0; i < count; i++) {
            switch (events[i].kind) {
            case REDOX_OPEN:
                decide_open(&events[i], &state);
                break;
            case REDOX_STAT:
                redox_session_stat(session, events[i].unique, (size_t)events[i].number, DATA_BYTES, false);
                break;
            case REDOX_READ:
                decide_read(&events[i]);
                break;
            case REDOX_RELEASE:
                decide_release(&events[i]);
                break;
            default:
                CHECK(events[i].kind == REDOX_INIT);
                break;
            }
        }
        interfere(&state);
    }
    return NULL;
}

static void make_pair(int *ours, int *theirs, int ours_flags) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    for (int i = 0; i < 2; i++) {
        int room = 1 << 22;
        setsockopt(ends[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    }
    CHECK(!fcntl(ends[1], F_SETFL, O_NONBLOCK) && !fcntl(ends[0], F_SETFL, ours_flags));
    *ours = ends[0];
    *theirs = ends[1];
}

static void begin(void) {
    struct fuse_init_in body = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    send_request(unique_of(0, (1 << 20) * 2 * AT_ONCE), FUSE_INIT, 0, 0, &body, sizeof body);
    redox_event event;
    while (redox_session_take(session, 0, 10, &event, 1) != 1) {
    }
    CHECK(event.kind == REDOX_INIT);
    char message[256];
    CHECK(recv(kernel, message, sizeof message, 0) > 0);
}

int main(void) {
    alarm(LONGEST_S);
    make_tree();
    make_pair(&kernel, &device, 0);
    make_pair(&relay_end, &relay, 0);
    for (unsigned number = 1; number < HANDLES; number++) {
        free_handles[free_count++] = number;
    }
    for (int i = 0; i < PROGRAMS; i++) {
        pthread_mutex_init(&programs[i].lock, NULL);
        pthread_cond_init(&programs[i].arrived, NULL);
    }
    redox_session_options options = {
        .devices = &device, .devices_count = 1, .relay = relay, .tree = &tree, .max_read = 1 << 17, .helpers = HELPERS};
    session = redox_session_new(&options);
    CHECK(session);
    begin();
    pthread_t owner, receiver, relaying;
    CHECK(!pthread_create(&receiver, NULL, receive_replies, NULL));
    CHECK(!pthread_create(&relaying, NULL, be_relay, NULL));
    CHECK(!pthread_create(&owner, NULL, be_owner, NULL));
    run_threads(PROGRAMS, be_program);
    // The mount ends.
    shutdown(kernel, SHUT_WR);
    CHECK(!pthread_join(owner, NULL));
    CHECK(opens == PROGRAMS * ROUNDS * AT_ONCE && releases == opens);
    CHECK(redox_session_counts(session).handles == 0);
    redox_session_close(session);
    redox_session_free(session);
    close(device);
    close(relay);
    CHECK(!pthread_join(receiver, NULL));
    CHECK(!pthread_join(relaying, NULL));
    CHECK(redox_buffer_bytes() == 0);
    return 0;
}
