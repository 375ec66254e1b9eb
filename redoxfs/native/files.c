// Reads files in place, beneath a directory.
//
// Others may write to the source while it is served: a directory may have become a symlink to /etc when a file in it is
// opened, a file may have become a FIFO, and a file may change while it is read. openat2 resolves a whole path with the
// rule "beneath, and through no symlink" in one call. Where the kernel or a seccomp filter refuses it, the path is
// walked component by component, with the same result in more calls.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sources.h"
#include "times.h"

// A failed read is retried once: after a network error the second attempt mostly succeeds.
enum { ATTEMPTS = 2 };

// Linux reads no more at once (read(2)).
enum { LONGEST_READ_BYTES = 0x7ffff000 };

enum {
    DIRECTORY_FLAGS = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_DIRECTORY,
    // A FIFO that replaced a file must not block the open.
    FILE_FLAGS = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
};

static const struct open_how how = {
    .flags = FILE_FLAGS,
    .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
};

static long call_openat2(int directory, const char *path, const struct open_how *how, size_t size) {
    return syscall(SYS_openat2, directory, path, how, size);
}

struct redox_storage_calls redox_storage_calls = {call_openat2, preadv2};

// Opens a path that ends in a file; the directories before it one by one. Writes to `path`. -1 with errno set.
static int walk(int root, char *path) {
    int at = root;
    char *name = path;
    for (char *slash; (slash = strchr(name, '/')); name = slash + 1) {
        *slash = 0;
        int inner = strcmp(name, "..") ? openat(at, name, DIRECTORY_FLAGS) : (errno = EXDEV, -1);
        int failure = errno;
        if (at != root) {
            close(at);
        }
        if (inner < 0) {
            errno = failure;
            return -1;
        }
        at = inner;
    }
    bool is_name = *name && strcmp(name, ".") && strcmp(name, "..");
    int fd = is_name ? openat(at, name, FILE_FLAGS) : (errno = EXDEV, -1);
    int failure = errno;
    if (at != root) {
        close(at);
    }
    errno = failure;
    return fd;
}

// Opens an entry. -1 with errno set.
static int open_entry(const redox_files *files, int32_t entry, const atomic_bool *stop) {
    char path[PATH_MAX];
    if (entry < 0 || !redox_tree_path(files->tree, (size_t)entry, path, sizeof path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    while (!atomic_load_explicit(stop, memory_order_relaxed)) {
        long fd = files->has_openat2 ? redox_storage_calls.openat2(files->root, path, &how, sizeof how)
                                     : walk(files->root, path);
        // EAGAIN: something was renamed while the kernel checked "beneath".
        if (fd >= 0 || !files->has_openat2 || (errno != EAGAIN && errno != EINTR)) {
            return (int)fd;
        }
    }
    errno = ECANCELED;
    return -1;
}

// Reads from the start until `size` bytes are here. Returns how many there are, or -1 with errno set.
static int64_t read_all(int fd, char *data, size_t size, const atomic_bool *stop) {
    size_t have = 0;
    while (have < size && !atomic_load_explicit(stop, memory_order_relaxed)) {
        size_t most = size - have < LONGEST_READ_BYTES ? size - have : LONGEST_READ_BYTES;
        struct iovec part = {data + have, most};
        ssize_t got = redox_storage_calls.preadv2(fd, &part, 1, (off_t)have, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -1;
        }
        if (!got) {
            break;
        }
        have += (size_t)got;
    }
    return (int64_t)have;
}

static bool same(const struct stat *one, const struct stat *other) {
    return one->st_size == other->st_size && one->st_ino == other->st_ino &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

bool redox_is_as_readable(const redox_tree *tree, int32_t entry, const struct stat *now) {
    enum { READ = 0444 };
    return (now->st_mode & READ) == READ || (now->st_uid == tree->uid[entry] && now->st_gid == tree->gid[entry] &&
                                             !(tree->mode[entry] & READ & ~now->st_mode));
}

static void set_stamp(redox_file *file, const struct stat *of) {
    file->mtime_ns = redox_time_ns(of->st_mtim.tv_sec, of->st_mtim.tv_nsec);
    file->inode = of->st_ino;
}

static void read_open_file(const redox_files *files, int fd, int32_t entry, redox_file *file, const atomic_bool *stop) {
    struct stat before, after;
    if (fstat(fd, &before)) {
        redox_file_fail(file, errno, REDOX_FAILED);
    } else if (!S_ISREG(before.st_mode) || before.st_size < 0) {
        redox_file_fail(file, EIO, REDOX_NOT_REGULAR);
    } else if (files->guards && !redox_is_as_readable(files->tree, entry, &before)) {
        redox_file_fail(file, EACCES, REDOX_NARROWED);
        file->mode = before.st_mode & 07777;
        file->uid = before.st_uid;
        file->gid = before.st_gid;
    } else if (before.st_size > files->tree->size[entry]) {
        // Memory was planned for the size of the scan, and a file may grow to any size. Its readers get it in parts.
        file->grown_bytes = before.st_size;
        file->buffer = redox_buffer_allocate(0);
        set_stamp(file, &before);
        if (!file->buffer) {
            redox_file_fail(file, ENOMEM, REDOX_FAILED);
        }
    } else if ((uint64_t)before.st_size > files->largest_bytes ||
               !(file->buffer = redox_buffer_allocate((size_t)before.st_size))) {
        redox_file_fail(file, ENOMEM, REDOX_FAILED);
    } else {
        int64_t got = read_all(fd, file->buffer->data, (size_t)before.st_size, stop);
        if (got < 0 || fstat(fd, &after)) {
            redox_file_fail(file, errno, REDOX_FAILED);
        } else if (got != before.st_size || !same(&before, &after)) {
            // A file that is being written must not be returned half old, half new.
            redox_file_fail(file, EIO, REDOX_CHANGED);
        } else {
            set_stamp(file, &before);
        }
    }
}

static void read_file(const redox_files *files, int32_t entry, redox_file *file, const atomic_bool *stop) {
    for (int attempt = 0; attempt < ATTEMPTS && !atomic_load_explicit(stop, memory_order_relaxed); attempt++) {
        *file = (redox_file){0};
        int fd = open_entry(files, entry, stop);
        if (fd < 0) {
            redox_file_fail(file, errno, REDOX_FAILED);
            continue;
        }
        read_open_file(files, fd, entry, file, stop);
        close(fd);
        if (file->buffer) {
            const redox_tree *tree = files->tree;
            file->changed = (int64_t)file->buffer->size != tree->size[entry] || file->grown_bytes ||
                            file->mtime_ns != tree->mtime_ns[entry];
            return;
        }
    }
}

static void read_files(const redox_source *source, const int32_t *entries, size_t count, redox_file *files,
                       const atomic_bool *stop) {
    for (size_t i = 0; i < count; i++) {
        files[i] = (redox_file){.error = ECANCELED, .fault = REDOX_FAILED};
        read_file((const redox_files *)source, entries[i], &files[i], stop);
    }
}

void redox_files_init(redox_files *files, const redox_tree *tree, int root) {
    // Without a directory the call fails anyhow: EBADF shows that it exists and is allowed.
    bool has_openat2 = redox_storage_calls.openat2(-1, ".", &how, sizeof how) < 0 && errno == EBADF;
    *files = (redox_files){
        .source = {read_files},
        .tree = tree,
        .root = root,
        .has_openat2 = has_openat2,
        .largest_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
    };
}
