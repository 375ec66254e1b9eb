/* A slow store to try redoxfs on: SOURCE again, read-only, with a delay in each open and each read.
 *
 *     gcc -O2 -o slow_store slow_store.c $(pkg-config --cflags --libs fuse3)
 *     slow_store SOURCE MOUNTPOINT DELAY_MS [names] [cached] [at-once=N] [mb-per-s=N]
 *
 * The delay stands for the round trip to storage that is far away, such as a network filesystem, or for the seek of a
 * disk. Requests wait in parallel: the store delays each request, but does not limit how many it serves a second. With
 * "at-once" it has so many requests in service, and the others wait for a place. With "mb-per-s" bytes take time, one
 * request's after the other's.
 *
 * A read that goes on where another one of the same open file ends is no request of its own: it has no delay and takes
 * no place, its bytes alone take time. The kernel cuts a long read into many, leaves out the pages that it has, and
 * sends some before a program asks.
 *
 * The kernel drops a file's pages at each open, so each open causes a read, as with a dataset far larger than memory;
 * with "cached" it keeps them. Names and attributes are cached and have no delay; with "names" they are not cached, and
 * each lookup, each stat, each open of a directory and each piece of its listing is delayed, as when a dataset is
 * scanned for the first time. The extended attribute user.read of the store's root has how many opens and reads were
 * requests of their own, how many bytes were read, and how many were in service at once at most: three numbers.
 *
 * One thread serves all requests and wakes only when one arrives or is due. A thread for each request would take the
 * processor from the programs that the store is to slow down. While the source itself has to be read from a disk, other
 * requests wait for it.
 *
 * The program stays in the foreground, prints one line when the store is mounted, and unmounts on SIGTERM, SIGINT and
 * SIGHUP. It needs no root where fusermount3 works.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <limits.h>
#include <poll.h>
#include <search.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    CACHED_S = 3600, /* names and attributes: the source does not change */
    LONGEST_DELAY_MS = 60 * 1000,
    MOST = 1000 * 1000, /* requests at once, megabytes a second */
    AT_A_TIME = 512, /* reads that the kernel sends in advance of programs, and releases; by default 12 */
    RUNS = 32,       /* of an open file */
    MOST_SKIPPED = 16 * 1024, /* bytes that the kernel has, between two pieces of a read */
};

/* A request that waits. */
struct waiting {
    struct waiting *next;
    int64_t due_ns;
    fuse_req_t request;
    fuse_ino_t inode;
    struct fuse_file_info file;
    void (*answer)(struct waiting *);
    char *name; /* of a lookup */
    size_t size;
    off_t at;
    struct waiting *continued; /* reads that go on where this one ends, and are to follow it */
    int leaves; /* a place is free once it is answered */
};

/* Those that wait for the same thing, the first to arrive first. The delay is the same for all, and bytes come one
 * after the other, so the first is also the first that is due. */
struct queue {
    struct waiting *first, **last;
};

/* Reads of an open file, one after the other. Those of several threads are under way at once. */
struct run {
    off_t end;
    struct waiting *delayed; /* the first read, while its delay lasts */
};

struct open_file {
    int fd;
    unsigned newest;
    struct run runs[RUNS];
};

static int root;
static int64_t delay_ns;
static long at_once; /* requests in service; 0: any number */
static double ns_per_byte;
static int delays_names, keeps_pages;
static struct queue held = {NULL, &held.first}, delayed = {NULL, &delayed.first}, moving = {NULL, &moving.first};
static long in_service, most_in_service;
static int64_t all_moved_ns; /* when the bytes of all in `moving` have come */
static unsigned long long requests, bytes_read;

/* Inode i is the path paths[i - 1] below the source. Paths are never forgotten. */
static char **paths;
static size_t path_count;
static void *inode_by_path; /* a tree of the elements of struct known */

struct known {
    char *path;
    fuse_ino_t inode;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *not_null(void *memory) {
    if (!memory)
        fail("slow_store");
    return memory;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static const char *path_of(fuse_ino_t inode) { return paths[inode - 1]; }

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct known *)a)->path, ((const struct known *)b)->path);
}

/* The inode of a path, a new one where the path is new. Takes the path. */
static fuse_ino_t inode_of(char *path) {
    struct known *known = not_null(malloc(sizeof *known));
    *known = (struct known){path, path_count + 1};
    struct known **found = not_null(tsearch(known, &inode_by_path, by_path));
    if (*found != known) {
        free(known);
        free(path);
        return (*found)->inode;
    }
    if (!(path_count & (path_count - 1))) /* a power of two: full */
        paths = not_null(realloc(paths, (path_count ? 2 * path_count : 1) * sizeof *paths));
    paths[path_count++] = path;
    return known->inode;
}

/* Fill in the entry `name` of a directory. Returns an error number or 0. */
static int find_entry(fuse_ino_t parent, const char *name, struct fuse_entry_param *entry) {
    char *path;
    if (asprintf(&path, "%s/%s", path_of(parent), name) < 0)
        return ENOMEM;
    double lasts_s = delays_names ? 0 : CACHED_S;
    *entry = (struct fuse_entry_param){.attr_timeout = lasts_s, .entry_timeout = lasts_s};
    if (fstatat(root, path, &entry->attr, AT_SYMLINK_NOFOLLOW)) {
        int error = errno;
        free(path);
        return error;
    }
    entry->ino = inode_of(path);
    return 0;
}

static void do_init(void *unused, struct fuse_conn_info *connection) {
    (void)unused;
    connection->want &= ~FUSE_CAP_READDIRPLUS_AUTO; /* so one function is all that lists */
    if (delays_names)
        connection->want &= ~FUSE_CAP_READDIRPLUS;
    connection->max_background = AT_A_TIME;
    connection->congestion_threshold = AT_A_TIME;
}

static void push(struct queue *queue, struct waiting *waiting) {
    waiting->next = NULL;
    *queue->last = waiting;
    queue->last = &waiting->next;
}

static struct waiting *pop(struct queue *queue) {
    struct waiting *waiting = queue->first;
    queue->first = waiting->next;
    if (!queue->first)
        queue->last = &queue->first;
    return waiting;
}

/* The bytes of a request begin to come at `from_ns`, if no others are before them. */
static void move(struct waiting *waiting, int64_t from_ns) {
    if (all_moved_ns < from_ns)
        all_moved_ns = from_ns;
    all_moved_ns += (int64_t)((double)waiting->size * ns_per_byte);
    waiting->due_ns = all_moved_ns;
    push(&moving, waiting);
}

/* A request is in service from `from_ns` on, or waits for a place. */
static void start(struct waiting *waiting, int64_t from_ns) {
    if (at_once && in_service == at_once) {
        push(&held, waiting);
        return;
    }
    if (++in_service > most_in_service)
        most_in_service = in_service;
    waiting->due_ns = from_ns + delay_ns;
    push(&delayed, waiting);
}

static struct waiting *delay(struct waiting arrived) {
    struct waiting *waiting = not_null(malloc(sizeof *waiting));
    *waiting = arrived;
    start(waiting, now_ns());
    return waiting;
}

/* The delay of a request is over: its bytes come, and then those of the reads that go on where it ends. */
static void end_delay(struct waiting *waiting) {
    struct waiting *continued = waiting->continued, *last = waiting;
    int64_t from_ns = waiting->due_ns;
    move(waiting, from_ns);
    while (continued) {
        last = continued;
        continued = continued->next;
        move(last, from_ns);
    }
    last->leaves = 1;
}

/* Answer a request of names or attributes: later, or at once. */
static void answer_names(struct waiting arrived) {
    if (delays_names) {
        delay(arrived);
        return;
    }
    arrived.answer(&arrived);
}

static void look_up_now(struct waiting *waiting) {
    struct fuse_entry_param entry;
    int error = find_entry(waiting->inode, waiting->name, &entry);
    free(waiting->name);
    if (error)
        fuse_reply_err(waiting->request, error);
    else
        fuse_reply_entry(waiting->request, &entry);
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    char *copy = not_null(strdup(name));
    answer_names((struct waiting){.request = request, .inode = parent, .answer = look_up_now, .name = copy});
}

static void stat_now(struct waiting *waiting) {
    struct stat stat;
    if (fstatat(root, path_of(waiting->inode), &stat, AT_SYMLINK_NOFOLLOW))
        fuse_reply_err(waiting->request, errno);
    else
        fuse_reply_attr(waiting->request, &stat, delays_names ? 0 : CACHED_S);
}

static void do_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)file;
    answer_names((struct waiting){.request = request, .inode = inode, .answer = stat_now});
}

static void do_readlink(fuse_req_t request, fuse_ino_t inode) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(root, path_of(inode), target, sizeof target - 1);
    if (length < 0) {
        fuse_reply_err(request, errno);
        return;
    }
    target[length] = 0;
    fuse_reply_readlink(request, target);
}

static void open_directory_now(struct waiting *waiting) {
    int fd = openat(root, path_of(waiting->inode), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        fuse_reply_err(waiting->request, errno);
        return;
    }
    waiting->file.fh = (uintptr_t)directory;
    if (fuse_reply_open(waiting->request, &waiting->file)) /* the program that opened it was interrupted */
        closedir(directory);
}

static void do_opendir(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    answer_names(
        (struct waiting){.request = request, .inode = inode, .file = *file, .answer = open_directory_now});
}

static void list_now(struct waiting *waiting) {
    DIR *directory = (DIR *)(uintptr_t)waiting->file.fh;
    char *reply = not_null(malloc(waiting->size));
    size_t used = 0;
    seekdir(directory, waiting->at);
    for (struct dirent *found; (found = readdir(directory));) {
        struct stat known = {.st_ino = found->d_ino, .st_mode = DTTOIF(found->d_type)};
        size_t room = waiting->size - used;
        size_t more =
            fuse_add_direntry(waiting->request, reply + used, room, found->d_name, &known, found->d_off);
        if (more > room)
            break;
        used += more;
    }
    fuse_reply_buf(waiting->request, reply, used);
    free(reply);
}

/* With "names" only: a listing without attributes. */
static void do_readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *file) {
    answer_names((struct waiting){
        .request = request, .inode = inode, .file = *file, .answer = list_now, .size = size, .at = at});
}

static void do_readdirplus(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *file) {
    DIR *directory = (DIR *)(uintptr_t)file->fh;
    char *reply = not_null(malloc(size));
    size_t used = 0;
    seekdir(directory, at);
    for (struct dirent *found; (found = readdir(directory));) {
        struct fuse_entry_param entry = {.attr = {.st_ino = found->d_ino, .st_mode = DTTOIF(found->d_type)}};
        int is_dot = !strcmp(found->d_name, ".") || !strcmp(found->d_name, "..");
        if (!is_dot && find_entry(inode, found->d_name, &entry))
            continue; /* it was removed */
        size_t more =
            fuse_add_direntry_plus(request, reply + used, size - used, found->d_name, &entry, found->d_off);
        if (more > size - used)
            break;
        used += more;
    }
    fuse_reply_buf(request, reply, used);
    free(reply);
}

static void do_releasedir(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)inode;
    closedir((DIR *)(uintptr_t)file->fh);
    fuse_reply_err(request, 0);
}

static void open_now(struct waiting *waiting) {
    int fd = openat(root, path_of(waiting->inode), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fuse_reply_err(waiting->request, errno);
        return;
    }
    struct open_file *opened = not_null(calloc(1, sizeof *opened));
    opened->fd = fd;
    for (int i = 0; i < RUNS; i++)
        opened->runs[i].end = -1;
    waiting->file.fh = (uintptr_t)opened;
    waiting->file.keep_cache = keeps_pages;
    if (fuse_reply_open(waiting->request, &waiting->file)) { /* the program that opened it was interrupted */
        close(fd);
        free(opened);
    }
}

static void read_now(struct waiting *waiting) {
    struct open_file *opened = (struct open_file *)(uintptr_t)waiting->file.fh;
    char *bytes = not_null(malloc(waiting->size));
    ssize_t got = pread(opened->fd, bytes, waiting->size, waiting->at);
    if (got < 0) {
        fuse_reply_err(waiting->request, errno);
    } else {
        bytes_read += got;
        fuse_reply_buf(waiting->request, bytes, got);
    }
    free(bytes);
}

static void do_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    requests++;
    delay((struct waiting){.request = request, .inode = inode, .file = *file, .answer = open_now});
}

static void do_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *file) {
    struct open_file *opened = (struct open_file *)(uintptr_t)file->fh;
    struct waiting arrived = {
        .request = request, .inode = inode, .file = *file, .answer = read_now, .size = size, .at = at};
    struct run *run = NULL;
    for (int i = 0; i < RUNS && !run; i++)
        if (0 < opened->runs[i].end && opened->runs[i].end <= at && at <= opened->runs[i].end + MOST_SKIPPED)
            run = &opened->runs[i];
    if (!run) {
        requests++;
        run = &opened->runs[opened->newest++ % RUNS];
        *run = (struct run){at + (off_t)size, delay(arrived)};
        return;
    }
    run->end = at + (off_t)size;
    struct waiting *waiting = not_null(malloc(sizeof *waiting));
    *waiting = arrived;
    if (!run->delayed) {
        move(waiting, now_ns());
        return;
    }
    struct waiting **last = &run->delayed->continued;
    while (*last)
        last = &(*last)->next;
    *last = waiting;
}

/* Reads that go on where this one ends do not wait for it any more. */
static void forget_delayed(struct waiting *waiting) {
    if (waiting->answer != read_now)
        return;
    struct open_file *opened = (struct open_file *)(uintptr_t)waiting->file.fh;
    for (int i = 0; i < RUNS; i++)
        if (opened->runs[i].delayed == waiting)
            opened->runs[i].delayed = NULL;
}

static void answer_due(void) {
    for (;;) {
        int64_t now = now_ns();
        while (delayed.first && delayed.first->due_ns <= now) {
            struct waiting *waiting = pop(&delayed);
            forget_delayed(waiting);
            end_delay(waiting);
        }
        if (!moving.first || moving.first->due_ns > now)
            return;
        struct waiting *waiting = pop(&moving);
        waiting->answer(waiting);
        if (waiting->leaves) {
            in_service--;
            if (held.first)
                start(pop(&held), waiting->due_ns);
        }
        free(waiting);
    }
}

static int64_t next_due_ns(void) {
    int64_t due_ns = delayed.first ? delayed.first->due_ns : INT64_MAX;
    return moving.first && moving.first->due_ns < due_ns ? moving.first->due_ns : due_ns;
}

static void do_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    struct open_file *opened = (struct open_file *)(uintptr_t)file->fh;
    (void)inode;
    close(opened->fd);
    free(opened);
    fuse_reply_err(request, 0);
}

static void do_getxattr(fuse_req_t request, fuse_ino_t inode, const char *name, size_t size) {
    char told[80];
    int length = snprintf(told, sizeof told, "%llu %llu %ld", requests, bytes_read, most_in_service);
    if (inode != FUSE_ROOT_ID || strcmp(name, "user.read"))
        fuse_reply_err(request, ENODATA);
    else if (!size)
        fuse_reply_xattr(request, length);
    else if (size < (size_t)length)
        fuse_reply_err(request, ERANGE);
    else
        fuse_reply_buf(request, told, length);
}

static void do_statfs(fuse_req_t request, fuse_ino_t inode) {
    (void)inode;
    struct statvfs stat;
    if (fstatvfs(root, &stat))
        fuse_reply_err(request, errno);
    else
        fuse_reply_statfs(request, &stat);
}

/* Serve until the store is unmounted or a signal arrives. Signals are blocked except where this waits. */
static void serve(struct fuse_session *session, const sigset_t *while_waiting) {
    struct fuse_buf request = {0};
    while (!fuse_session_exited(session)) {
        answer_due();
        int received = fuse_session_receive_buf(session, &request);
        if (received > 0) {
            fuse_session_process_buf(session, &request);
        } else if (received == -EAGAIN) {
            int64_t due_ns = next_due_ns(), left_ns = due_ns == INT64_MAX ? 1 : due_ns - now_ns();
            struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
            struct pollfd device = {fuse_session_fd(session), POLLIN, 0};
            if (left_ns > 0)
                ppoll(&device, 1, due_ns == INT64_MAX ? NULL : &left, while_waiting);
        } else if (received != -EINTR) {
            break;
        }
    }
    free(request.mem);
}

/* The number that is all of `text`, from `least` to `most`; else -1. */
static double number(const char *text, double least, double most) {
    char *end;
    double found = strtod(text, &end);
    return end != text && !*end && found >= least && found <= most ? found : -1;
}

int main(int argc, char **argv) {
    double delay_ms = argc < 4 ? -1 : number(argv[3], 0, LONGEST_DELAY_MS), mb_per_s = 0, places = 0;
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "names"))
            delays_names = 1;
        else if (!strcmp(argv[i], "cached"))
            keeps_pages = 1;
        else if (!strncmp(argv[i], "at-once=", 8))
            places = number(argv[i] + 8, 1, MOST);
        else if (!strncmp(argv[i], "mb-per-s=", 9))
            mb_per_s = number(argv[i] + 9, 0.001, MOST);
        else
            delay_ms = -1;
    }
    if (delay_ms < 0 || mb_per_s < 0 || places < 0) {
        fprintf(stderr,
                "usage: slow_store SOURCE MOUNTPOINT DELAY_MS [names] [cached] [at-once=N] [mb-per-s=N]\n"
                "(DELAY_MS: 0 to %d; N: 1 to %d, mb-per-s from 0.001)\n",
                LONGEST_DELAY_MS, MOST);
        return 2;
    }
    delay_ns = (int64_t)(delay_ms * 1e6);
    at_once = (long)places;
    ns_per_byte = mb_per_s > 0 ? 1e3 / mb_per_s : 0;
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail(argv[1]);
    inode_of(not_null(strdup(".")));

    struct fuse_lowlevel_ops operations = {
        .init = do_init,       .lookup = do_lookup,           .getattr = do_getattr,       .readlink = do_readlink,
        .opendir = do_opendir, .readdirplus = do_readdirplus, .releasedir = do_releasedir, .open = do_open,
        .read = do_read,       .release = do_release,         .statfs = do_statfs,         .getxattr = do_getxattr,
    };
    if (delays_names) {
        operations.readdir = do_readdir;
        operations.readdirplus = NULL;
    }
    char *options[] = {argv[0], "-o", "ro,fsname=slow_store,subtype=slow_store"};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[2]))
        return 1; /* libfuse has printed the reason */
    fcntl(fuse_session_fd(session), F_SETFL, O_NONBLOCK);

    sigset_t ending, while_waiting;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGHUP);
    sigprocmask(SIG_BLOCK, &ending, &while_waiting);

    printf("%s: %s, with %g ms in each open and read%s", argv[2], argv[1], delay_ms,
           delays_names ? ", and of names and attributes" : "");
    if (at_once)
        printf(", %ld at once", at_once);
    if (mb_per_s > 0)
        printf(", %g MB/s", mb_per_s);
    printf("\n");
    fflush(stdout);
    serve(session, &while_waiting);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return 0;
}
