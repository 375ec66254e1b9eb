#include "scan.h"
#include "times.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "kernel.h"
#include "threads.h"

enum {
    // What getdents64 returns at once: about 2,000 entries.
    LISTING_BYTES = 64 << 10,
    // Entries whose attributes one thread asks for, one after the other. Few enough that the threads share a directory
    // of a thousand files, enough that the lock does not matter.
    SLICE = 64,
    // One open takes less than PATH_MAX bytes; deeper directories are reached in steps.
    STEP_BYTES = 4000,
    DIRECTORY_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    // No time of the last access, and no blocks: a network filesystem may have to ask another server for them.
    WANTED = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_UID | STATX_GID | STATX_SIZE | STATX_MTIME | STATX_CTIME |
             STATX_INO,
};

static const struct open_how how = {
    .flags = DIRECTORY_FLAGS,
    .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
};

// Entries that one call of getdents64 returned, and their names behind them.
typedef struct redox_block {
    struct redox_block *next;
    size_t count;
    redox_child children[];
} redox_block;

// An entry as the kernel returns it (getdents64(2)).
struct listed {
    uint64_t inode;
    int64_t offset;
    unsigned short bytes;
    unsigned char kind;
    char name[];
};

// Opening

static int open_step(const redox_scan *scan, int at, const char *path) {
    if (!scan->has_openat2) {
        return openat(at, path, DIRECTORY_FLAGS);
    }
    for (;;) {
        long fd = syscall(SYS_openat2, at, path, &how, sizeof how);
        // EAGAIN: something was renamed while the kernel checked "beneath".
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) {
            return (int)fd;
        }
    }
}

// The bytes of the next step: as many components as openat2 takes at once; without it, one.
static size_t step_length(const redox_scan *scan, const char *path, size_t length) {
    if (!scan->has_openat2) {
        const char *slash = memchr(path, '/', length);
        return slash ? (size_t)(slash - path) : length;
    }
    if (length < STEP_BYTES) {
        return length;
    }
    const char *slash = memrchr(path, '/', STEP_BYTES);
    return slash ? (size_t)(slash - path) : length;
}

// Opens a directory beneath the root, through no symlink. -1 with errno set.
static int open_directory(const redox_scan *scan, const char *path, size_t length) {
    int at = scan->root;
    do {
        char step[PATH_MAX] = ".";
        size_t taken = step_length(scan, path, length);
        if (taken >= sizeof step) {
            errno = ENAMETOOLONG;
            taken = length;
        } else if (taken) {
            memcpy(step, path, taken);
            step[taken] = 0;
        }
        int inner = taken < sizeof step ? open_step(scan, at, step) : -1;
        int failure = errno;
        if (at != scan->root) {
            close(at);
        }
        if (inner < 0) {
            errno = failure;
            return -1;
        }
        at = inner;
        taken += taken < length;  // the slash
        path += taken;
        length -= taken;
    } while (length);
    return at;
}

// Attributes

static int64_t as_ns(struct statx_timestamp time) { return redox_time_ns(time.tv_sec, time.tv_nsec); }

static int64_t spec_ns(struct timespec time) { return redox_time_ns(time.tv_sec, time.tv_nsec); }

// Fills in a row. `name` "" with AT_EMPTY_PATH: the descriptor's own. Returns 0 or an errno.
static int look(int fd, const char *name, int flags, redox_row *row) {
    struct statx found;
    if (!statx(fd, name, flags | AT_NO_AUTOMOUNT, WANTED, &found)) {
        *row = (redox_row){
            .size = (int64_t)found.stx_size,
            .mtime_ns = as_ns(found.stx_mtime),
            .ctime_ns = as_ns(found.stx_ctime),
            .inode = found.stx_ino,
            .device = makedev(found.stx_dev_major, found.stx_dev_minor),
            .mode = found.stx_mode,
            .uid = found.stx_uid,
            .gid = found.stx_gid,
            .nlink = found.stx_nlink,
        };
        return 0;
    }
    // Seccomp filters that are older than statx forbid it. An entry that is not permitted fails here, too.
    struct stat old;
    if (errno != EPERM && errno != ENOSYS) {
        return errno;
    }
    if (fstatat(fd, name, &old, flags)) {
        return errno;
    }
    *row = (redox_row){
        .size = old.st_size,
        .mtime_ns = spec_ns(old.st_mtim),
        .ctime_ns = spec_ns(old.st_ctim),
        .inode = old.st_ino,
        .device = old.st_dev,
        .mode = old.st_mode,
        .uid = old.st_uid,
        .gid = old.st_gid,
        .nlink = old.st_nlink < UINT32_MAX ? (uint32_t)old.st_nlink : UINT32_MAX,
    };
    return 0;
}

// The target of a symlink. Returns 0 or an errno. One that vanished meanwhile has no target.
static int read_link(int fd, redox_child *child) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(fd, child->name, target, sizeof target);
    if (length < 0) {
        if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EINVAL) {
            return errno;
        }
        length = 0;
    }
    child->link = calloc(1, sizeof *child->link + (size_t)length);
    if (!child->link) {
        return ENOMEM;
    }
    child->link->length = (size_t)length;
    memcpy(child->link->target, target, (size_t)length);
    redox_row end;
    if (length && !look(fd, child->name, 0, &end)) {
        child->link->device = end.device;
        child->link->inode = end.inode;
    }
    return 0;
}

// Fills in an entry, also the target of a symlink. Returns 0 or an errno.
static int look_from(int fd, redox_child *child) {
    int failure = look(fd, child->name, AT_SYMLINK_NOFOLLOW, &child->row);
    return failure || !S_ISLNK(child->row.mode) ? failure : read_link(fd, child);
}

// As `look_from`, by the path of its directory.
static int look_anew(const redox_scan *scan, const redox_directory *directory, redox_child *child) {
    int fd = open_directory(scan, directory->path, directory->path_length);
    if (fd < 0) {
        return errno;
    }
    int failure = look_from(fd, child);
    close(fd);
    return failure;
}

// Fills in an entry. Returns 0 or an errno.
static int look_at_child(const redox_scan *scan, const redox_directory *directory, redox_child *child) {
    int failure = look_from(directory->fd, child);
    if (failure == ESTALE) {
        // A server does not know the entry any more, or its directory. Storage that fails says so, too: only the path
        // shows what is there.
        failure = look_anew(scan, directory, child);
    }
    if (failure) {
        child->row.mode = 0;
        bool has_vanished = failure == ENOENT || (directory->path_length && (failure == ENOTDIR || failure == ELOOP));
        return has_vanished ? 0 : failure;
    }
    return 0;
}

// The threads. Functions that end in _locked are called with the lock held.


static void fail_locked(redox_scan *scan, redox_directory *directory, int failure, redox_child *child) {
    if (directory->state <= 0) {
        directory->state = failure;
        directory->failed = child;
    }
    scan->stops = true;
    pthread_cond_broadcast(&scan->news);
}

static bool is_kept(const redox_child *child) {
    return S_ISREG(child->row.mode) || S_ISDIR(child->row.mode) || S_ISLNK(child->row.mode);
}

static int by_name(const void *a, const void *b) {
    const redox_child *one = *(redox_child *const *)a, *other = *(redox_child *const *)b;
    int order = memcmp(one->name, other->name, one->length < other->length ? one->length : other->length);
    return order ? order : (one->length > other->length) - (one->length < other->length);
}

// Collects and sorts the children of a directory. Returns 0 or an errno.
static int collect(redox_directory *directory) {
    size_t count = 0;
    for (redox_block *block = directory->blocks; block; block = block->next) {
        for (size_t i = 0; i < block->count; i++) {
            bool kept = is_kept(&block->children[i]);
            count += kept;
            directory->skipped += !kept && block->children[i].row.mode;
        }
    }
    directory->children = malloc((count ? count : 1) * sizeof *directory->children);
    if (!directory->children) {
        return ENOMEM;
    }
    for (redox_block *block = directory->blocks; block; block = block->next) {
        for (size_t i = 0; i < block->count; i++) {
            if (is_kept(&block->children[i])) {
                directory->children[directory->child_count++] = &block->children[i];
            }
        }
    }
    qsort(directory->children, count, sizeof *directory->children, by_name);
    // A file that is removed and written again during the listing can be listed twice.
    size_t unique = 0;
    for (size_t i = 0; i < count; i++) {
        redox_child *child = directory->children[i];
        if (!unique || by_name(&directory->children[unique - 1], &child)) {
            directory->children[unique++] = child;
        }
    }
    directory->child_count = unique;
    return 0;
}

// Nothing of a directory is left to do.
static void end_directory_locked(redox_scan *scan, redox_directory *directory, int state) {
    pthread_mutex_unlock(&scan->lock);
    if (directory->fd >= 0) {
        close(directory->fd);
        directory->fd = -1;
    }
    int failure = state == REDOX_LISTED ? collect(directory) : 0;
    pthread_mutex_lock(&scan->lock);
    scan->done++;
    if (failure) {
        fail_locked(scan, directory, failure, NULL);
    } else {
        directory->state = state;
    }
}

static void end_if_complete_locked(redox_scan *scan, redox_directory *directory) {
    if (directory->is_listed && !directory->slices && directory->state <= 0) {
        end_directory_locked(scan, directory, directory->is_gone ? REDOX_GONE : REDOX_LISTED);
    }
}

// Puts entries whose attributes are to be asked for into the queue. Returns 0 or an errno.
static int share_locked(redox_scan *scan, redox_directory *directory, redox_child *children, size_t count) {
    for (size_t at = 0; at < count; at += SLICE) {
        if (scan->slice_count == scan->slice_room) {
            size_t room = scan->slice_room ? 2 * scan->slice_room : 1024;
            redox_slice *more = realloc(scan->slices, room * sizeof *more);
            if (!more) {
                return ENOMEM;
            }
            scan->slices = more;
            scan->slice_room = room;
        }
        size_t left = count - at;
        scan->slices[scan->slice_count++] = (redox_slice){directory, children + at, left < SLICE ? left : SLICE};
        directory->slices++;
    }
    pthread_cond_broadcast(&scan->news);
    return 0;
}

static void work_on_slice_locked(redox_scan *scan) {
    redox_slice slice = scan->slices[--scan->slice_count];
    pthread_mutex_unlock(&scan->lock);
    int failure = 0;
    redox_child *failed = NULL;
    for (size_t i = 0; i < slice.count && !failure; i++) {
        failure = look_at_child(scan, slice.directory, &slice.children[i]);
        failed = failure ? &slice.children[i] : NULL;
    }
    pthread_mutex_lock(&scan->lock);
    if (failure) {
        fail_locked(scan, slice.directory, failure, failed);
    }
    scan->looked += slice.count;
    slice.directory->slices--;
    end_if_complete_locked(scan, slice.directory);
}

static int by_inode(const void *a, const void *b) {
    uint64_t one = ((const redox_child *)a)->row.inode, other = ((const redox_child *)b)->row.inode;
    return (one > other) - (one < other);
}

static bool is_dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

// Adds what getdents64 returned to a directory. *unknown: how many entries, from the first, need a look. NULL: no memory.
static redox_block *add_block(redox_directory *directory, const char *listing, size_t bytes, size_t *unknown) {
    size_t count = 0, name_bytes = 0;
    for (size_t at = 0; at < bytes; at += ((const struct listed *)(listing + at))->bytes) {
        count++;
        name_bytes += strlen(((const struct listed *)(listing + at))->name) + 1;
    }
    redox_block *block = malloc(sizeof *block + count * sizeof *block->children + name_bytes);
    if (!block) {
        return NULL;
    }
    char *names = (char *)(block->children + count);
    size_t front = 0, back = count;  // entries without a kind of their own in front, directories at the back
    for (size_t at = 0; at < bytes; at += ((const struct listed *)(listing + at))->bytes) {
        const struct listed *found = (const struct listed *)(listing + at);
        if (is_dots(found->name)) {
            continue;
        }
        if (!directory->path_length && !strcmp(found->name, REDOX_CONTROL_NAME)) {
            directory->has_control_name = true;
            continue;
        }
        bool needs_no_look = found->kind != DT_REG && found->kind != DT_LNK && found->kind != DT_UNKNOWN;
        redox_child *child = &block->children[needs_no_look ? --back : front++];
        size_t length = strlen(found->name);
        *child = (redox_child){.name = names, .length = length};
        child->row.inode = found->inode;
        child->row.mode = needs_no_look ? DTTOIF(found->kind) : 0;
        memcpy(names, found->name, length + 1);
        names += length + 1;
    }
    memmove(&block->children[front], &block->children[back], (count - back) * sizeof *block->children);
    block->count = front + count - back;
    block->next = directory->blocks;
    directory->blocks = block;
    *unknown = front;
    // Close to the order on disk of most filesystems, where a listing is in the order of hashes.
    qsort(block->children, front, sizeof *block->children, by_inode);
    return block;
}

// Lists a directory. Returns 0 or an errno.
static int list(redox_scan *scan, redox_directory *directory, char *listing) {
    for (;;) {
        long got = syscall(SYS_getdents64, directory->fd, listing, LISTING_BYTES);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got ? errno : 0;
        }
        size_t unknown;
        redox_block *block = add_block(directory, listing, (size_t)got, &unknown);
        if (!block) {
            return ENOMEM;
        }
        pthread_mutex_lock(&scan->lock);
        scan->entries += block->count;
        scan->looked += block->count - unknown;
        int failure = scan->stops ? ECANCELED : share_locked(scan, directory, block->children, unknown);
        pthread_mutex_unlock(&scan->lock);
        if (failure) {
            return failure;
        }
    }
}

// Opens and lists a directory. Returns its state, with REDOX_LISTED as soon as its entries are in the queue.
static int begin(redox_scan *scan, redox_directory *directory, char *listing) {
    directory->fd = open_directory(scan, directory->path, directory->path_length);
    int failure = directory->fd < 0 ? errno : look(directory->fd, "", AT_EMPTY_PATH, &directory->own);
    if (failure) {
        return scan->checks_only ? REDOX_CHANGED : failure;
    }
    const redox_known *known = directory->known;
    if (known && known->inode == directory->own.inode && known->mtime_ns == directory->own.mtime_ns &&
        known->ctime_ns == directory->own.ctime_ns) {
        return REDOX_UNCHANGED;
    }
    return scan->checks_only ? REDOX_CHANGED : list(scan, directory, listing);
}

// Whether a failure means that a directory vanished, or that something else took its place.
static bool is_gone(const redox_scan *scan, const redox_directory *directory, int failure) {
    if (failure == ESTALE) {
        // Storage that fails says so, too: only the path shows whether the directory is there.
        int fd = open_directory(scan, directory->path, directory->path_length);
        failure = fd < 0 ? errno : ESTALE;
        if (fd >= 0) {
            close(fd);
        }
    }
    return directory->path_length && (failure == ENOENT || failure == ENOTDIR || failure == ELOOP);
}

static void work_on_directory_locked(redox_scan *scan, char *listing) {
    redox_directory *directory = &scan->directories[scan->begun++];
    scan->listing++;
    pthread_mutex_unlock(&scan->lock);
    int state = begin(scan, directory, listing);
    bool gone = state > 0 && is_gone(scan, directory, state);
    pthread_mutex_lock(&scan->lock);
    if (state < 0) {
        end_directory_locked(scan, directory, state);
    } else if (state == REDOX_LISTED || gone) {
        directory->is_listed = true;
        directory->is_gone = gone;
        end_if_complete_locked(scan, directory);
    } else if (state != ECANCELED) {
        fail_locked(scan, directory, state, NULL);
    }
    scan->listing--;
    pthread_cond_broadcast(&scan->news);
}

void redox_scan_work(redox_scan *scan) {
    char *listing = malloc(LISTING_BYTES);
    pthread_mutex_lock(&scan->lock);
    // A thread without memory leaves the work to the others.
    while (listing && !scan->stops) {
        if (scan->slice_count) {
            work_on_slice_locked(scan);
        } else if (scan->begun < scan->directory_count && (!scan->begun || scan->entries < scan->most_entries)) {
            work_on_directory_locked(scan, listing);
        } else if (scan->listing) {
            pthread_cond_wait(&scan->news, &scan->lock);
        } else {
            break;
        }
    }
    scan->running--;
    pthread_cond_broadcast(&scan->news);
    pthread_mutex_unlock(&scan->lock);
    free(listing);
}

int redox_scan_init(redox_scan *scan) {
    int failure = pthread_mutex_init(&scan->lock, NULL);
    if (failure) {
        return failure;
    }
    failure = redox_condition_init(&scan->news);
    if (failure) {
        pthread_mutex_destroy(&scan->lock);
        return failure;
    }
    // Without a directory the call fails anyhow: EBADF shows that it exists and is allowed.
    scan->has_openat2 = syscall(SYS_openat2, -1, ".", &how, sizeof how) < 0 && errno == EBADF;
    scan->stops = false;
    scan->begun = scan->done = scan->entries = scan->looked = scan->listing = scan->running = 0;
    scan->slices = NULL;
    scan->slice_count = scan->slice_room = 0;
    for (size_t i = 0; i < scan->directory_count; i++) {
        scan->directories[i].state = REDOX_NOT_BEGUN;
        scan->directories[i].fd = -1;
    }
    return 0;
}

void redox_scan_stop(redox_scan *scan) {
    pthread_mutex_lock(&scan->lock);
    scan->stops = true;
    pthread_cond_broadcast(&scan->news);
    pthread_mutex_unlock(&scan->lock);
}

void redox_scan_free(redox_scan *scan) {
    for (size_t i = 0; i < scan->directory_count; i++) {
        redox_directory *directory = &scan->directories[i];
        if (directory->fd >= 0) {
            close(directory->fd);
        }
        for (redox_block *next, *block = directory->blocks; block; block = next) {
            next = block->next;
            for (size_t at = 0; at < block->count; at++) {
                free(block->children[at].link);
            }
            free(block);
        }
        free(directory->children);
    }
    free(scan->slices);
    pthread_cond_destroy(&scan->news);
    pthread_mutex_destroy(&scan->lock);
}
