/* A slow store to try redoxfs on: SOURCE again, read-only, with a delay in each open and each read.
 *
 *     gcc -O2 -o slow_store slow_store.c $(pkg-config --cflags --libs fuse3)
 *     slow_store SOURCE MOUNTPOINT DELAY_MS [names]
 *
 * The delay stands for the round trip to storage that is far away, such as a network filesystem. Requests wait in
 * parallel: the store delays each request, but does not limit how many it serves a second. The kernel drops a file's
 * pages at each open, so each open causes a read, as with a dataset far larger than memory. Names and attributes are
 * cached and have no delay; with "names" they are not cached, and each lookup, each stat, each open of a directory and
 * each piece of its listing is delayed, as when a dataset is scanned for the first time.
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
    AT_A_TIME = 512, /* reads that the kernel sends in advance of programs, and releases; by default 12 */
};

/* A request that waits. The delay is the same for all, so the first to arrive is the first that is due. */
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
};

static int root;
static int64_t delay_ns;
static int delays_names;
static struct waiting *first, **last = &first;

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

static void delay(struct waiting arrived) {
    struct waiting *waiting = not_null(malloc(sizeof *waiting));
    *waiting = arrived;
    waiting->due_ns = now_ns() + delay_ns;
    *last = waiting;
    last = &waiting->next;
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
    waiting->file.fh = fd;
    if (fuse_reply_open(waiting->request, &waiting->file)) /* the program that opened it was interrupted */
        close(fd);
}

static void read_now(struct waiting *waiting) {
    char *bytes = not_null(malloc(waiting->size));
    ssize_t got = pread(waiting->file.fh, bytes, waiting->size, waiting->at);
    if (got < 0)
        fuse_reply_err(waiting->request, errno);
    else
        fuse_reply_buf(waiting->request, bytes, got);
    free(bytes);
}

static void do_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    delay((struct waiting){.request = request, .inode = inode, .file = *file, .answer = open_now});
}

static void do_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *file) {
    delay((struct waiting){
        .request = request, .inode = inode, .file = *file, .answer = read_now, .size = size, .at = at});
}

static void answer_due(void) {
    while (first && first->due_ns <= now_ns()) {
        struct waiting *waiting = first;
        first = waiting->next;
        if (!first)
            last = &first;
        waiting->answer(waiting);
        free(waiting);
    }
}

static void do_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)inode;
    close(file->fh);
    fuse_reply_err(request, 0);
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
            int64_t left_ns = first ? first->due_ns - now_ns() : 0;
            struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
            struct pollfd device = {fuse_session_fd(session), POLLIN, 0};
            if (!first || left_ns > 0)
                ppoll(&device, 1, first ? &left : NULL, while_waiting);
        } else if (received != -EINTR) {
            break;
        }
    }
    free(request.mem);
}

int main(int argc, char **argv) {
    char *end = NULL;
    delays_names = argc == 5 && !strcmp(argv[4], "names");
    double delay_ms = argc == 4 || delays_names ? strtod(argv[3], &end) : -1;
    if (!(delay_ms >= 0 && delay_ms <= LONGEST_DELAY_MS) || end == argv[3] || *end) {
        fprintf(stderr, "usage: slow_store SOURCE MOUNTPOINT DELAY_MS [names] (DELAY_MS: 0 to %d)\n",
                LONGEST_DELAY_MS);
        return 2;
    }
    delay_ns = (int64_t)(delay_ms * 1e6);
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail(argv[1]);
    inode_of(not_null(strdup(".")));

    struct fuse_lowlevel_ops operations = {
        .init = do_init,       .lookup = do_lookup,           .getattr = do_getattr,       .readlink = do_readlink,
        .opendir = do_opendir, .readdirplus = do_readdirplus, .releasedir = do_releasedir, .open = do_open,
        .read = do_read,       .release = do_release,         .statfs = do_statfs,
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

    printf("%s: %s, with %g ms in each open and read%s\n", argv[2], argv[1], delay_ms,
           delays_names ? ", and of names and attributes" : "");
    fflush(stdout);
    serve(session, &while_waiting);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return 0;
}
