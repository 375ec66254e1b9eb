#include "requests.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "times.h"

// The name of the control folder in the root of DATA.
static const char CONTROL_NAME[] = ".redoxfs";

// What this was written for. The fields of INIT's reply up to max_pages are from 7.28, cached directories too.
enum { OLDEST_MINOR = 31 };

// Linux 6.6, in the upper half of the flags.
static const uint32_t DIRECT_IO_ALLOW_MMAP = UINT32_C(1) << (36 - 32);

static bool is_log_handle(uint64_t handle) { return handle >> REDOX_LOG_HANDLES_SHIFT; }

static bool is_relayed_handle(uint64_t handle) {
    return handle >> REDOX_RELAY_HANDLES_SHIFT && !is_log_handle(handle);
}

static void find_entry(const redox_tree *tree, uint64_t inode, redox_request *request) {
    uint64_t branch = inode >> REDOX_BRANCH_SHIFT, number = inode & ((UINT64_C(1) << REDOX_BRANCH_SHIFT) - 1);
    request->branch = branch < REDOX_BRANCHES ? (int)branch : -1;
    request->entry = (size_t)number - 1;
    // The folder of CONTROL is number 0.
    if (request->branch != REDOX_CONTROL && request->entry >= tree->entries) {
        request->branch = -1;
    }
}

static bool in_tree(const redox_request *request) {
    return request->branch == REDOX_DATA || request->branch == REDOX_EXACT;
}

static bool is_log(const redox_request *request) {
    return request->header->nodeid == redox_inode(REDOX_CONTROL, REDOX_ACCESS_LOG);
}

static bool is_redirected(const redox_core *core, const redox_request *request) {
    return request->branch == REDOX_DATA && core->tree->sample_of[request->entry] >= 0;
}

// The body as a struct of the protocol, or NULL if it is too short.
#define BODY(request, type) ((request)->body_bytes >= sizeof(type) ? (type *)(request)->body : NULL)

static void fail(redox_core *core, redox_request *request, int error) {
    redox_reply_error(&core->devices, request->ticket, error);
}

// A request that the kernel does not send.
static void refuse(redox_core *core, redox_request *request, int error) {
    atomic_fetch_add_explicit(&core->malformed, 1, memory_order_relaxed);
    fail(core, request, error);
}

// Keeps a request whose answer comes later, for the next session if this one does not get to it. False: it is answered
// with EAGAIN, or will be.
static bool keep(redox_core *core, redox_request *request) {
    redox_shared *shared = core->devices.shared;
    if (shared && !request->kept) {
        unsigned device = (unsigned)(request->at_kernel >> REDOX_TICKET_SHIFT);
        bool is_release = request->header->opcode == FUSE_RELEASE;
        request->kept = redox_shared_keep(shared, device, request->header, request->size, is_release);
        request->refused = !request->kept;
    }
    return !request->refused;
}

// Keeps a request that is answered when its event is.
static bool keep_unanswered(redox_core *core, redox_request *request) {
    if (!keep(core, request)) {
        return false;
    }
    request->ticket = request->kept ? request->kept : request->ticket;
    return true;
}

void redox_pass_to_relay(redox_core *core, redox_request *request) {
    if (!keep_unanswered(core, request)) {
        fail(core, request, EAGAIN);
        return;
    }
    enum { LONGEST_LINK = 4096 };
    size_t reply_bytes = request->header->opcode == FUSE_READLINK ? LONGEST_LINK : 0;
    if (request->header->opcode == FUSE_READ || request->header->opcode == FUSE_READDIR ||
        request->header->opcode == FUSE_READDIRPLUS) {
        struct fuse_read_in *in = BODY(request, struct fuse_read_in);
        if (!in) {
            refuse(core, request, EINVAL);
            return;
        }
        if (in->size > REDOX_RELAY_BYTES) {
            in->size = REDOX_RELAY_BYTES;
        }
        reply_bytes = in->size;
        if (request->header->opcode != FUSE_READ) {
            // The kernel lists directories without an OPENDIR. pyfuse3 tells its handler the handle only, which
            // our operations take for the inode.
            in->fh = request->header->nodeid;
        }
    }
    request->header->unique = request->ticket;
    int error =
        redox_relay_forward(&core->relay, request->ticket, request->header, request->size, reply_bytes, false);
    if (error) {
        fail(core, request, error);
    }
}

int64_t redox_size_now(redox_core *core, unsigned branch, size_t entry, bool *lasts) {
    const redox_tree *tree = core->tree;
    *lasts = true;
    if (branch != REDOX_DATA || tree->sample_of[entry] < 0) {
        return tree->size[entry];
    }
    int64_t size = redox_handles_show(&core->handles, redox_inode(REDOX_DATA, entry), &tree->flags[entry]);
    *lasts = size >= 0 && !redox_sizes_differ(core);
    return size >= 0 ? size : tree->size[entry];
}

void redox_size_at_relay(redox_core *core, unsigned branch, size_t entry) {
    bool lasts;
    redox_size_now(core, branch, entry, &lasts);
}

// The beginning

// For the sessions that follow: the kernel sends INIT once.
static void remember_init(redox_core *core, const redox_request *request, uint64_t maps) {
    if (!core->devices.shared) {
        return;
    }
    redox_shared_head *head = core->devices.shared->head;
    size_t size = request->size < REDOX_INIT_BYTES ? request->size : REDOX_INIT_BYTES;
    memcpy(head->init, request->header, size);
    head->init_maps = (uint32_t)maps;
    head->init_lists = core->lists_without_open;
    atomic_store_explicit(&head->init_bytes, (uint32_t)size, memory_order_release);
}

// The relay negotiates for itself. It reads and writes a socket, which is not the kernel's pipe.
static void tell_relay(redox_core *core, uint64_t ticket, struct fuse_in_header *header, size_t size) {
    ((struct fuse_init_in *)(header + 1))->flags &= ~(FUSE_SPLICE_READ | FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE);
    header->unique = ticket;
    redox_relay_forward(&core->relay, ticket, header, size, 0, true);
}

void redox_begin_relay(redox_core *core) {
    const redox_shared_head *head = core->devices.shared->head;
    union {
        struct fuse_in_header header;
        char bytes[REDOX_INIT_BYTES];
    } message;
    memcpy(message.bytes, head->init, sizeof message.bytes);
    tell_relay(core, message.header.unique, &message.header, head->init_bytes);
}

static bool begin(redox_core *core, redox_request *request, redox_event *event) {
    // Older kernels send less: major, minor, max_readahead, flags.
    enum { LEAST = 16 };
    if (request->body_bytes < LEAST || atomic_load_explicit(&core->begun, memory_order_relaxed)) {
        refuse(core, request, EIO);
        return false;
    }
    redox_init_in in = {0};
    memcpy(&in, request->body, request->body_bytes < sizeof in ? request->body_bytes : sizeof in);
    redox_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = REDOX_FUSE_MINOR};
    if (in.major > FUSE_KERNEL_VERSION) {
        // The kernel then sends another INIT, of this version.
        redox_reply(&core->devices, request->ticket, &out, sizeof out);
        return false;
    }
    if (in.major < FUSE_KERNEL_VERSION || in.minor < OLDEST_MINOR) {
        refuse(core, request, EPROTO);
        event->offset = in.minor;
        return true;
    }
    // As libfuse and pyfuse3 choose: READDIRPLUS always, pages void when the mtime or the size changes. Besides, several
    // lookups and listings in one directory at a time, and symlinks that the kernel keeps, since the tree does not
    // change.
    uint32_t wanted = FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS | FUSE_MAX_PAGES |
                      FUSE_PARALLEL_DIROPS | FUSE_CACHE_SYMLINKS | FUSE_NO_OPENDIR_SUPPORT | FUSE_BIG_WRITES |
                      FUSE_ATOMIC_O_TRUNC;
    out.flags = wanted & in.flags;
    if (in.flags & FUSE_INIT_EXT && in.flags2 & DIRECT_IO_ALLOW_MMAP) {
        out.flags |= FUSE_INIT_EXT;
        out.flags2 = DIRECT_IO_ALLOW_MMAP;
    }
    out.minor = in.minor < out.minor ? in.minor : out.minor;
    out.max_readahead = in.max_readahead;
    out.max_background = REDOX_BACKGROUND;
    out.congestion_threshold = REDOX_BACKGROUND;
    out.max_write = 4096;
    out.time_gran = 1;
    out.max_pages = (uint16_t)((core->max_read + 4095) / 4096);
    core->lists_without_open = out.flags & FUSE_NO_OPENDIR_SUPPORT;
    int error = redox_reply(&core->devices, request->ticket, &out, sizeof out);
    // A session that ended just then may have answered.
    if (error && !(request->kept && error == ENOENT)) {
        return false;
    }
    event->number = out.flags2 & DIRECT_IO_ALLOW_MMAP ? 1 : 0;
    remember_init(core, request, event->number);
    atomic_store_explicit(&core->begun, true, memory_order_release);
    tell_relay(core, request->ticket, request->header, request->size);
    return true;
}

// Requests that may become events

static void make_event(const redox_request *request, int kind, uint64_t number, redox_event *event) {
    *event = (redox_event){
        .kind = kind, .unique = request->ticket, .number = number, .thread = request->header->pid};
}

static bool event_of_open(redox_core *core, redox_request *request, redox_event *event) {
    const struct fuse_open_in *in = BODY(request, struct fuse_open_in);
    if (!in || !(in_tree(request) || is_log(request)) || !keep_unanswered(core, request)) {
        return false;
    }
    make_event(request, REDOX_OPEN, request->header->nodeid, event);
    event->offset = in->flags;
    event->size = (uint64_t)redox_now_ns();
    return true;
}

static bool event_of_stat(redox_core *core, redox_request *request, redox_event *event) {
    if (!is_redirected(core, request)) {
        return false;
    }
    request->held_size = redox_handles_held(&core->handles, request->header->nodeid, request->header->pid);
    if (request->held_size >= 0 || redox_asks(core, request->entry) || !keep_unanswered(core, request)) {
        return false;
    }
    make_event(request, REDOX_STAT, request->entry, event);
    return true;
}

// Its reader may have to wait. An INTERRUPT names the read by the number that the kernel gave it.
static bool event_of_log_read(redox_core *core, redox_request *request, const struct fuse_read_in *in,
                              redox_event *event) {
    if (!keep_unanswered(core, request)) {
        return false;
    }
    make_event(request, in->flags & O_NONBLOCK ? REDOX_LOG_TRY : REDOX_LOG_READ, in->fh, event);
    event->offset = request->header->unique;
    event->size = in->size < core->max_read ? in->size : core->max_read;
    return true;
}

static bool event_of_read(redox_core *core, redox_request *request, redox_event *event) {
    const struct fuse_read_in *in = BODY(request, struct fuse_read_in);
    if (in && is_log_handle(in->fh)) {
        return event_of_log_read(core, request, in, event);
    }
    if (!in || is_relayed_handle(in->fh) ||
        redox_handles_read(&core->handles, in->fh, &request->data) != REDOX_WITHOUT_BYTES ||
        !keep_unanswered(core, request)) {
        return false;
    }
    make_event(request, REDOX_READ, in->fh, event);
    event->offset = in->offset;
    event->size = in->size < core->max_read ? in->size : core->max_read;
    return true;
}

// The handle ends here, in the order of the requests; the answer comes later.
static bool event_of_release(redox_core *core, redox_request *request, redox_event *event) {
    const struct fuse_release_in *in = BODY(request, struct fuse_release_in);
    uint32_t reads;
    if (in && is_log_handle(in->fh)) {
        make_event(request, REDOX_LOG_RELEASE, in->fh, event);
        return true;
    }
    if (!in || is_relayed_handle(in->fh) || !redox_handles_close(&core->handles, in->fh, &request->data, &reads)) {
        return false;
    }
    // Kept beyond its answer, until the caller has closed the file as well. It cannot be refused.
    keep(core, request);
    request->refused = false;
    make_event(request, REDOX_RELEASE, in->fh, event);
    event->unique = request->kept ? request->kept : request->at_kernel;
    request->ticket = request->at_kernel;
    event->size = reads;
    return true;
}

static bool event_of_poll(redox_core *core, redox_request *request, redox_event *event) {
    const struct fuse_poll_in *in = BODY(request, struct fuse_poll_in);
    if (!in || !is_log_handle(in->fh) || !keep_unanswered(core, request)) {
        return false;
    }
    make_event(request, REDOX_LOG_POLL, in->fh, event);
    event->offset = in->flags & FUSE_POLL_SCHEDULE_NOTIFY ? in->kh : 0;
    return true;
}

static bool event_of_interrupt(redox_request *request, redox_event *event) {
    const struct fuse_interrupt_in *in = BODY(request, struct fuse_interrupt_in);
    if (!in) {
        return false;
    }
    make_event(request, REDOX_INTERRUPT, in->unique, event);
    return true;
}

static bool event_of(redox_core *core, redox_request *request, redox_event *event) {
    switch (request->header->opcode) {
    case FUSE_OPEN:
        return event_of_open(core, request, event);
    case FUSE_GETATTR:
        return event_of_stat(core, request, event);
    case FUSE_READ:
        return event_of_read(core, request, event);
    case FUSE_RELEASE:
        return event_of_release(core, request, event);
    case FUSE_POLL:
        return event_of_poll(core, request, event);
    case FUSE_INTERRUPT:
        return event_of_interrupt(request, event);
    default:
        return false;
    }
}

redox_next redox_receive(redox_core *core, unsigned device, void *message, size_t size, uint64_t kept,
                         redox_request *request, redox_event *event, bool *has_event) {
    *has_event = false;
    *request = (redox_request){.header = message, .size = size, .kept = kept, .held_size = -1};
    struct fuse_in_header *header = request->header;
    if (size < sizeof *header) {
        atomic_fetch_add_explicit(&core->malformed, 1, memory_order_relaxed);
        return REDOX_FINISHED;
    }
    atomic_fetch_add_explicit(&core->requests, 1, memory_order_relaxed);
    if (header->unique >> REDOX_TICKET_SHIFT) {
        // It would name another descriptor. The kernel's numbers do not get there.
        atomic_fetch_add_explicit(&core->malformed, 1, memory_order_relaxed);
        return REDOX_FINISHED;
    }
    request->at_kernel = redox_ticket(device, header->unique);
    request->ticket = kept ? kept : request->at_kernel;
    request->body = header + 1;
    request->body_bytes = size - sizeof *header;
    find_entry(core->tree, header->nodeid, request);
    if (header->len != size) {
        refuse(core, request, EINVAL);
        return REDOX_FINISHED;
    }
    if (header->opcode == FUSE_INIT) {
        *event = (redox_event){.kind = REDOX_INIT};
        *has_event = begin(core, request, event);
        return REDOX_FINISHED;
    }
    if (!atomic_load_explicit(&core->begun, memory_order_acquire)) {
        return REDOX_TO_ANSWER;
    }
    redox_handles_heard(&core->handles, header->pid);
    *has_event = event_of(core, request, event);
    if (request->refused) {
        fail(core, request, EAGAIN);
        return REDOX_FINISHED;
    }
    if (*has_event && header->opcode != FUSE_RELEASE) {
        return REDOX_FINISHED;
    }
    return REDOX_TO_ANSWER;
}

// Requests that are answered here

static void look_up(redox_core *core, redox_request *request) {
    const char *name = request->body, *end = memchr(name, 0, request->body_bytes);
    if (!end) {
        refuse(core, request, EINVAL);
        return;
    }
    if (!in_tree(request)) {
        redox_pass_to_relay(core, request);
        return;
    }
    size_t length = (size_t)(end - name);
    bool is_root = request->branch == REDOX_DATA && request->entry == 0;
    if (is_root && length == sizeof CONTROL_NAME - 1 && !memcmp(name, CONTROL_NAME, length)) {
        redox_pass_to_relay(core, request);
        return;
    }
    struct fuse_entry_out out;
    int64_t found = redox_tree_lookup(core->tree, request->entry, name, length);
    if (found < 0) {
        redox_fill_no_entry(&out);
    } else if (redox_asks(core, (size_t)found)) {
        redox_size_at_relay(core, (unsigned)request->branch, (size_t)found);
        redox_pass_to_relay(core, request);
        return;
    } else {
        bool lasts;
        int64_t size = redox_size_now(core, (unsigned)request->branch, (size_t)found, &lasts);
        uint64_t inode = redox_inode((unsigned)request->branch, (size_t)found);
        redox_fill_entry(core->tree, inode, (size_t)found, size, lasts, &out);
    }
    redox_reply(&core->devices, request->ticket, &out, sizeof out);
}

static void get_attributes(redox_core *core, redox_request *request) {
    if (!in_tree(request)) {
        redox_pass_to_relay(core, request);
        return;
    }
    if (request->held_size < 0 && redox_asks(core, request->entry)) {
        redox_size_at_relay(core, (unsigned)request->branch, request->entry);
        redox_pass_to_relay(core, request);
        return;
    }
    bool is_held = request->held_size >= 0, lasts = !(is_held && redox_sizes_differ(core));
    int64_t size = is_held ? request->held_size : core->tree->size[request->entry];
    redox_reply_attributes(&core->devices, request->ticket, core->tree, request->header->nodeid, request->entry, size,
                           lasts);
}

static void read_bytes(redox_core *core, redox_request *request) {
    const struct fuse_read_in *in = BODY(request, struct fuse_read_in);
    if (!in) {
        refuse(core, request, EINVAL);
    } else if (is_relayed_handle(in->fh)) {
        redox_pass_to_relay(core, request);
    } else if (!request->data) {
        refuse(core, request, EBADF);
    } else {
        const redox_buffer *data = request->data;
        size_t from = in->offset < data->size ? (size_t)in->offset : data->size, bytes = data->size - from;
        bytes = bytes < in->size ? bytes : in->size;
        bytes = bytes < core->max_read ? bytes : core->max_read;
        if (!redox_reply(&core->devices, request->ticket, data->data + from, bytes)) {
            atomic_fetch_add_explicit(&core->bytes_served, bytes, memory_order_relaxed);
        }
    }
}

static void release(redox_core *core, redox_request *request) {
    const struct fuse_release_in *in = BODY(request, struct fuse_release_in);
    if (!in) {
        refuse(core, request, EINVAL);
    } else if (is_relayed_handle(in->fh)) {
        redox_pass_to_relay(core, request);
    } else {
        redox_reply(&core->devices, request->ticket, NULL, 0);
    }
}

// Files of a dataset never make a program wait for a poll.
static void poll_file(redox_core *core, redox_request *request) {
    if (!BODY(request, struct fuse_poll_in)) {
        refuse(core, request, EINVAL);
        return;
    }
    struct fuse_poll_out out = {.revents = POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM};
    redox_reply(&core->devices, request->ticket, &out, sizeof out);
}

static void open_directory(redox_core *core, redox_request *request) {
    if (core->lists_without_open) {
        // The kernel does not ask again, and keeps listings by itself.
        fail(core, request, ENOSYS);
        return;
    }
    struct fuse_open_out out = {.fh = request->header->nodeid, .open_flags = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE};
    redox_reply(&core->devices, request->ticket, &out, sizeof out);
}

static void answer(redox_core *core, redox_request *request, char *room) {
    switch (request->header->opcode) {
    case FUSE_LOOKUP:
        look_up(core, request);
        break;
    case FUSE_GETATTR:
        get_attributes(core, request);
        break;
    case FUSE_OPEN:
        if (request->body_bytes < sizeof(struct fuse_open_in)) {
            refuse(core, request, EINVAL);
        } else {
            redox_pass_to_relay(core, request);
        }
        break;
    case FUSE_READ:
        read_bytes(core, request);
        break;
    case FUSE_RELEASE:
        release(core, request);
        break;
    case FUSE_POLL:
        poll_file(core, request);
        break;
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        redox_list(core, request, room);
        break;
    case FUSE_OPENDIR:
        open_directory(core, request);
        break;
    case FUSE_RELEASEDIR:
        redox_reply(&core->devices, request->ticket, NULL, 0);
        break;
    case FUSE_STATFS:
    case FUSE_READLINK:
        redox_pass_to_relay(core, request);
        break;
    case FUSE_SETATTR:
    case FUSE_SYMLINK:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_LINK:
    case FUSE_WRITE:
    case FUSE_CREATE:
    case FUSE_SETXATTR:
    case FUSE_REMOVEXATTR:
        // On a read-only mount the kernel refuses these itself; this is for a mount that was remounted.
        fail(core, request, EROFS);
        break;
    default:
        // One ENOSYS ends FLUSH, ACCESS, GETXATTR, LISTXATTR and others for good: the kernel then does without.
        fail(core, request, ENOSYS);
        break;
    }
}

void redox_answer(redox_core *core, redox_request *request, char *room) {
    switch (request->header->opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    case FUSE_NOTIFY_REPLY:
        // These get no reply. Inodes are numbers of the tree, so nothing has to be forgotten. Every wait has a deadline.
        return;
    case FUSE_DESTROY:
        redox_reply(&core->devices, request->ticket, NULL, 0);
        atomic_store_explicit(&core->over, true, memory_order_release);
        return;
    default:
        break;
    }
    if (!atomic_load_explicit(&core->begun, memory_order_acquire) || request->branch < 0) {
        refuse(core, request, EIO);
    } else {
        answer(core, request, room);
    }
    redox_buffer_drop(request->data);
}
