/* A slow store to try redoxfs on: SOURCE again, read-only, with a delay in each open and each read.
 *
 *     gcc -O2 -o slow_store slow_store.c $(pkg-config --cflags --libs fuse3)
 *     slow_store SOURCE MOUNTPOINT DELAY_MS
 *
 * The delay stands for the round trip to storage that is far away, such as a network filesystem. Requests wait in
 * parallel: the store delays each request, but does not limit how many it serves a second. The kernel drops a file's
 * pages at each open, so each open causes a read, as with a dataset far larger than memory. Names and attributes are
 * cached and have no delay.
 *
 * The program stays in the foreground, prints one line when the store is mounted, and unmounts on SIGTERM, SIGINT and
 * SIGHUP. It needs no root where fusermount3 works.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS = 128, /* requests at a time; redoxfs reads 32 files at a time, and each worker of a job one */
    CACHED_S = 3600, /* names and attributes: the source does not change */
    LONGEST_DELAY_MS = 60 * 1000,
};

static int root;
static struct timespec delay;

/* The path for openat and its kin, relative to the descriptor of the source. */
static const char *below_root(const char *path) { return path[1] ? path + 1 : "."; }

static void wait_for_storage(void) {
    struct timespec left = delay;
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    config->use_ino = 1; /* those of the source, which stay the same when the kernel forgets a file */
    config->entry_timeout = config->attr_timeout = CACHED_S;
    config->kernel_cache = 0;
    /* The kernel sends readahead and release requests in the background, by default 12 at a time. */
    connection->max_background = 2 * THREADS;
    connection->congestion_threshold = 2 * THREADS;
    return NULL;
}

static int do_getattr(const char *path, struct stat *stat, struct fuse_file_info *file) {
    int failed = file ? fstat(file->fh, stat) : fstatat(root, below_root(path), stat, AT_SYMLINK_NOFOLLOW);
    return failed ? -errno : 0;
}

static int do_readlink(const char *path, char *target, size_t size) {
    ssize_t length = readlinkat(root, below_root(path), target, size - 1);
    if (length < 0)
        return -errno;
    target[length] = 0;
    return 0;
}

static int do_readdir(const char *path, void *reply, fuse_fill_dir_t add, off_t at, struct fuse_file_info *file,
                      enum fuse_readdir_flags flags) {
    (void)at, (void)file;
    int fd = openat(root, below_root(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory)
        return -errno;
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat stat = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        enum fuse_fill_dir_flags filled = 0;
        if (flags & FUSE_READDIR_PLUS && !fstatat(fd, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW))
            filled = FUSE_FILL_DIR_PLUS;
        if (add(reply, entry->d_name, &stat, 0, filled))
            break;
    }
    closedir(directory);
    return 0;
}

static int do_open(const char *path, struct fuse_file_info *file) {
    wait_for_storage();
    int fd = openat(root, below_root(path), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    file->fh = fd;
    return 0;
}

static int do_read(const char *path, char *bytes, size_t size, off_t at, struct fuse_file_info *file) {
    (void)path;
    wait_for_storage();
    ssize_t got = pread(file->fh, bytes, size, at);
    return got < 0 ? -errno : (int)got;
}

static int do_release(const char *path, struct fuse_file_info *file) {
    (void)path;
    close(file->fh);
    return 0;
}

static int do_statfs(const char *path, struct statvfs *stat) {
    (void)path;
    return fstatvfs(root, stat) ? -errno : 0;
}

int main(int argc, char **argv) {
    char *end = NULL;
    double delay_ms = argc == 4 ? strtod(argv[3], &end) : -1;
    if (!(delay_ms >= 0 && delay_ms <= LONGEST_DELAY_MS) || end == argv[3] || *end) {
        fprintf(stderr, "usage: slow_store SOURCE MOUNTPOINT DELAY_MS (0 to %d)\n", LONGEST_DELAY_MS);
        return 2;
    }
    long delay_ns = (long)(delay_ms * 1e6);
    delay = (struct timespec){delay_ns / 1000000000, delay_ns % 1000000000};
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        perror(argv[1]);
        return 1;
    }

    static const struct fuse_operations operations = {
        .init = do_init, .getattr = do_getattr, .readlink = do_readlink, .readdir = do_readdir,
        .open = do_open, .read = do_read,       .release = do_release,   .statfs = do_statfs,
    };
    char *options[] = {argv[0], "-o", "ro,fsname=slow_store,subtype=slow_store"};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
    struct fuse *fuse = fuse_new(&arguments, &operations, sizeof operations, NULL);
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    if (!fuse || !loop || fuse_mount(fuse, argv[2]) || fuse_set_signal_handlers(fuse_get_session(fuse)))
        return 1; /* libfuse has printed the reason */
    fuse_loop_cfg_set_max_threads(loop, THREADS);
    fuse_loop_cfg_set_idle_threads(loop, THREADS);

    printf("%s: %s, with %g ms in each open and read\n", argv[2], argv[1], delay_ms);
    fflush(stdout);
    int failure = fuse_loop_mt(fuse, loop);
    fuse_unmount(fuse);
    fuse_destroy(fuse);
    /* Positive: ended by a signal, as intended. */
    return failure < 0;
}
