/* The least that any program can do, for comparison: serves one directory of files from memory, with one thread and
 * nothing but libfuse.
 *
 *     bare_fuse SOURCE MOUNTPOINT direct_io|page-cache
 *
 * The kernel sends it the same requests as redoxfs: it asks for the size after each open, as it must where a path's
 * answer changes, and keeps no pages. Like redoxfs, the program polls for the next request for 50 us before it sleeps.
 */
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const double FOREVER_S = 1e8, WHILE_OPEN_S = 1, SPIN_S = 50e-6;

struct file {
    char *name, *data;
    size_t size;
};
static struct file *files; /* inode 1 is the directory, file i has inode i + 2 */
static int count, direct_io;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static void read_source(const char *source) {
    DIR *directory = opendir(source);
    if (!directory || chdir(source))
        fail(source);
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct stat stat;
        int fd = open(entry->d_name, O_RDONLY);
        if (fd < 0 || fstat(fd, &stat))
            fail(entry->d_name);
        if (S_ISREG(stat.st_mode)) {
            files = realloc(files, (count + 1) * sizeof *files);
            char *data = malloc(stat.st_size + 1);
            if (!files || !data || read(fd, data, stat.st_size) != stat.st_size)
                fail(entry->d_name);
            files[count++] = (struct file){strdup(entry->d_name), data, stat.st_size};
        }
        close(fd);
    }
    closedir(directory);
    qsort(files, count, sizeof *files, by_name);
}

static struct stat attributes(fuse_ino_t inode) {
    struct stat stat = {.st_ino = inode, .st_mode = S_IFDIR | 0555, .st_nlink = 1, .st_blksize = 128 * 1024};
    if (inode > 1) {
        stat.st_mode = S_IFREG | 0444;
        stat.st_size = files[inode - 2].size;
    }
    return stat;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    (void)parent;
    struct file key = {.name = (char *)name};
    struct file *found = bsearch(&key, files, count, sizeof *files, by_name);
    if (!found) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    struct fuse_entry_param entry = {.ino = found - files + 2, .entry_timeout = FOREVER_S};
    entry.attr = attributes(entry.ino);
    fuse_reply_entry(request, &entry);
}

static void do_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)info;
    struct stat stat = attributes(inode);
    fuse_reply_attr(request, &stat, WHILE_OPEN_S);
}

static void do_readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *info) {
    (void)inode, (void)info;
    char *buffer = malloc(size);
    size_t used = 0;
    for (; buffer && at < count; at++) {
        struct stat stat = attributes(at + 2);
        size_t more = fuse_add_direntry(request, buffer + used, size - used, files[at].name, &stat, at + 1);
        if (more > size - used)
            break;
        used += more;
    }
    fuse_reply_buf(request, buffer, used);
    free(buffer);
}

static void do_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)inode;
    info->direct_io = direct_io;
    fuse_reply_open(request, info);
}

static void do_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t at, struct fuse_file_info *info) {
    (void)info;
    struct file *file = &files[inode - 2];
    size_t from = (size_t)at < file->size ? (size_t)at : file->size;
    fuse_reply_buf(request, file->data + from, size < file->size - from ? size : file->size - from);
}

static void do_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)inode, (void)info;
    fuse_reply_err(request, 0);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    static const struct fuse_lowlevel_ops operations = {
        .lookup = do_lookup, .getattr = do_getattr, .readdir = do_readdir,
        .open = do_open,     .read = do_read,       .release = do_release,
    };
    char *options[] = {argv[0], "-o", "ro"};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, argv[2]))
        return 1;
    direct_io = !strcmp(argv[3], "direct_io");
    read_source(argv[1]);
    struct fuse_buf request = {0};
    struct pollfd device = {fuse_session_fd(session), POLLIN, 0};
    while (!fuse_session_exited(session)) {
        for (double until = now_s() + SPIN_S; !poll(&device, 1, 0) && now_s() < until;)
            ;
        int received = fuse_session_receive_buf(session, &request);
        if (received == -EINTR)
            continue;
        if (received <= 0)
            break;
        fuse_session_process_buf(session, &request);
    }
    fuse_session_unmount(session);
    return 0;
}
