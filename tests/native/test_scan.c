// Scans by many threads: the same result whatever their number, links that lead out, entries that vanish, an end in the
// middle, and storage that says ESTALE.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "scan.h"

enum { DIRECTORIES = 12, FILES = 300, THREADS = 8, LEVELS = 40 };

static redox_scan scan;

// An entry at which a server says ESTALE: `times` times, and then that it is not there.
static struct {
    const char *name;
    atomic_int times;
} stale_entry;

// In place of that of libc.
int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    if (stale_entry.name && !strcmp(path, stale_entry.name)) {
        errno = atomic_fetch_sub(&stale_entry.times, 1) > 0 ? ESTALE : ENOENT;
        return -1;
    }
    return (int)syscall(SYS_statx, fd, path, flags, mask, found);
}

// A symlink at whose target a server says ESTALE so many times.
static atomic_int stale_targets;

// In place of that of libc.
ssize_t readlinkat(int fd, const char *restrict path, char *restrict target, size_t bytes) {
    if (atomic_fetch_sub(&stale_targets, 1) > 0) {
        errno = ESTALE;
        return -1;
    }
    return (ssize_t)syscall(SYS_readlinkat, fd, path, target, bytes);
}

// The directory whose listing fails with ESTALE; and whether it is removed then. Set before the threads begin.
static struct {
    ino_t inode;
    int root;
    const char *removed;
} stale;

// In place of libc's, by which the scan lists.
long syscall(long number, ...) {
    va_list given;
    va_start(given, number);
    long args[6];
    for (int i = 0; i < 6; i++) {
        args[i] = va_arg(given, long);
    }
    va_end(given);
    struct stat of;
    if (number == SYS_getdents64 && stale.inode && !fstat((int)args[0], &of) && of.st_ino == stale.inode) {
        if (stale.removed) {
            CHECK(!unlinkat(stale.root, stale.removed, AT_REMOVEDIR));
        }
        errno = ESTALE;
        return -1;
    }
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

static void *work(void *number) {
    (void)number;
    redox_scan_work(&scan);
    return NULL;
}

static void *stop(void *number) {
    if ((intptr_t)number == 1) {
        redox_scan_stop(&scan);
    } else {
        redox_scan_work(&scan);
    }
    return NULL;
}

static void make_file(int at, const char *name, size_t bytes) {
    int fd = openat(at, name, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes) && !close(fd));
}

static int make_directory(int at, const char *name) {
    CHECK(!mkdirat(at, name, 0700));
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0);
    return fd;
}

// Directories 0 to 11 of files, the first with a link and a FIFO; and "out", a link to the directory above.
static void make_tree(int root) {
    char name[32];
    for (int i = 0; i < DIRECTORIES; i++) {
        snprintf(name, sizeof name, "%d", i);
        int at = make_directory(root, name);
        for (int file = 0; file < FILES; file++) {
            snprintf(name, sizeof name, "%03d", file);
            make_file(at, name, (size_t)file);
        }
        if (!i) {
            CHECK(!symlinkat("001", at, "link") && !mkfifoat(at, "fifo", 0600));
        }
        close(at);
    }
    CHECK(!symlinkat(".", root, "out"));
    close(make_directory(root, REDOX_CONTROL_NAME));
}

static void begin(int root, redox_directory *directories, size_t count, bool has_openat2) {
    scan = (redox_scan){.root = root, .directories = directories, .directory_count = count, .most_entries = SIZE_MAX};
    CHECK(!redox_scan_init(&scan));
    scan.has_openat2 = scan.has_openat2 && has_openat2;
    scan.running = THREADS;
}

static redox_directory at_path(const char *path) {
    return (redox_directory){.path = path, .path_length = strlen(path)};
}

static void check_files(const redox_directory *directory, bool has_link) {
    CHECK(directory->state == REDOX_LISTED && directory->child_count == FILES + (size_t)has_link);
    CHECK(directory->skipped == (size_t)has_link);
    for (size_t i = 0; i < FILES; i++) {
        const redox_child *child = directory->children[i];
        CHECK(child->length == 3 && (size_t)atoi(child->name) == i && child->row.size == (int64_t)i);
        CHECK(S_ISREG(child->row.mode) && child->row.inode && !child->link);
    }
    if (has_link) {
        const redox_child *link = directory->children[FILES];
        CHECK(S_ISLNK(link->row.mode) && link->link->length == 3 && !memcmp(link->link->target, "001", 3));
        CHECK(link->link->inode == directory->children[1]->row.inode);
    }
}

static void check_tree(int root, bool has_openat2) {
    char paths[DIRECTORIES][16];
    redox_directory directories[DIRECTORIES + 3];
    for (int i = 0; i < DIRECTORIES; i++) {
        snprintf(paths[i], sizeof paths[i], "%d", i);
        directories[i] = at_path(paths[i]);
    }
    directories[DIRECTORIES] = at_path("");
    directories[DIRECTORIES + 1] = at_path("out/0");
    directories[DIRECTORIES + 2] = at_path("none");
    begin(root, directories, DIRECTORIES + 3, has_openat2);
    run_threads(THREADS, work);
    for (int i = 0; i < DIRECTORIES; i++) {
        check_files(&directories[i], !i);
    }
    const redox_directory *top = &directories[DIRECTORIES];
    CHECK(top->state == REDOX_LISTED && top->child_count == DIRECTORIES + 1 && top->has_control_name);
    CHECK(directories[DIRECTORIES + 1].state == REDOX_GONE && directories[DIRECTORIES + 2].state == REDOX_GONE);
    CHECK(scan.done == DIRECTORIES + 3 && !scan.listing && !scan.slice_count);
    redox_scan_free(&scan);
}

static void check_known(int root) {
    redox_directory one = at_path("3");
    begin(root, &one, 1, true);
    run_threads(THREADS, work);
    redox_known known = {one.own.inode, one.own.mtime_ns, one.own.ctime_ns};
    redox_scan_free(&scan);
    for (int changed = 0; changed < 2; changed++) {
        known.mtime_ns += changed;
        one = at_path("3");
        one.known = &known;
        begin(root, &one, 1, true);
        scan.checks_only = true;
        run_threads(THREADS, work);
        CHECK(one.state == (changed ? REDOX_CHANGED : REDOX_UNCHANGED) && !one.child_count);
        redox_scan_free(&scan);
    }
}

// An entry that another machine has removed is left out. One that is there, as far as anybody knows, is an error.
static void check_vanished(int root) {
    for (int fails = 0; fails < 2; fails++) {
        for (int of_root = 0; of_root < 2; of_root++) {
            redox_directory one = at_path(of_root ? "" : "3");
            stale_entry.name = of_root ? "out" : "013";
            stale_entry.times = fails ? 2 : 1;
            begin(root, &one, 1, true);
            run_threads(THREADS, work);
            CHECK(one.state == (fails ? ESTALE : REDOX_LISTED));
            CHECK(fails || one.child_count == (size_t)(of_root ? DIRECTORIES : FILES - 1));
            redox_scan_free(&scan);
        }
    }
    stale_entry.name = NULL;
    // Nor is a link left without its target.
    for (int fails = 0; fails < 2; fails++) {
        redox_directory one = at_path("0");
        stale_targets = fails ? 2 : 1;
        begin(root, &one, 1, true);
        run_threads(THREADS, work);
        CHECK(one.state == (fails ? ESTALE : REDOX_LISTED));
        if (!fails) {
            check_files(&one, true);
        }
        redox_scan_free(&scan);
    }
    stale_targets = 0;
}

static void check_stop(int root) {
    redox_directory directories[DIRECTORIES];
    for (int i = 0; i < DIRECTORIES; i++) {
        directories[i] = at_path("5");
    }
    begin(root, directories, DIRECTORIES, true);
    scan.running = THREADS - 1;
    run_threads(THREADS, stop);
    redox_scan_free(&scan);
}

// Deeper than one path may be, with and without openat2.
static void check_deep(int root) {
    char path[LEVELS * 201], name[201];
    memset(name, 'n', 200);
    name[200] = 0;
    size_t length = 0;
    int at = make_directory(root, name);
    for (int i = 0; i < LEVELS; i++) {
        if (i) {
            int inner = make_directory(at, name);
            close(at);
            at = inner;
            path[length++] = '/';
        }
        memcpy(path + length, name, 200);
        length += 200;
    }
    make_file(at, "x", 7);
    close(at);
    for (int has_openat2 = 0; has_openat2 < 2; has_openat2++) {
        redox_directory one = {.path = path, .path_length = length};
        begin(root, &one, 1, has_openat2);
        run_threads(THREADS, work);
        CHECK(one.state == REDOX_LISTED && one.child_count == 1 && one.children[0]->row.size == 7);
        redox_scan_free(&scan);
    }
}

// A directory that is still there is an error, and no directory that vanished.
static void check_stale(int root) {
    for (int is_removed = 0; is_removed < 2; is_removed++) {
        int at = make_directory(root, "stale");
        struct stat of;
        CHECK(!fstat(at, &of) && !close(at));
        stale.inode = of.st_ino;
        stale.root = root;
        stale.removed = is_removed ? "stale" : NULL;
        redox_directory one = at_path("stale");
        begin(root, &one, 1, true);
        run_threads(THREADS, work);
        CHECK(one.state == (is_removed ? REDOX_GONE : ESTALE));
        redox_scan_free(&scan);
        stale.inode = 0;
        CHECK(is_removed || !unlinkat(root, "stale", AT_REMOVEDIR));
    }
}

int main(void) {
    char folder[] = "scan-XXXXXX";
    CHECK(mkdtemp(folder));
    int root = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(root >= 0);
    make_tree(root);
    for (int round = 0; round < 4; round++) {
        check_tree(root, round % 2);
        check_stop(root);
    }
    check_known(root);
    check_vanished(root);
    check_deep(root);
    check_stale(root);
    int descriptor = dup(root);
    CHECK(descriptor == root + 1);  // none was left open
    return 0;
}
