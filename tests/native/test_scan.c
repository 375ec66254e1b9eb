// Scans by many threads: the same result whatever their number, links that lead out, entries that vanish, and an end in
// the middle.
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "scan.h"

enum { DIRECTORIES = 12, FILES = 300, THREADS = 8, LEVELS = 40 };

static redox_scan scan;

// An entry that a server no longer knows, as NFS says of one that another machine has removed. With `spreads`, neither
// does the server know the directory from then on.
static const char *stale;
static bool spreads;
static atomic_bool has_spread;

// In place of that of libc.
int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    bool is_entry = stale && !strcmp(path, stale);
    if (is_entry && spreads) {
        has_spread = true;
    }
    if (is_entry || (has_spread && !*path)) {
        errno = ESTALE;
        return -1;
    }
    return (int)syscall(SYS_statx, fd, path, flags, mask, found);
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

static void check_vanished(int root) {
    for (int round = 0; round < 2; round++) {
        redox_directory directories[] = {at_path("3"), at_path("")};
        stale = round ? "out" : "013";
        begin(root, directories, 2, true);
        run_threads(THREADS, work);
        CHECK(directories[0].state == REDOX_LISTED && directories[0].child_count == FILES - (size_t)!round);
        CHECK(directories[1].state == REDOX_LISTED && directories[1].child_count == DIRECTORIES + (size_t)!round);
        redox_scan_free(&scan);
    }
    // A root that is gone has no entries that it could have lost.
    spreads = true;
    redox_directory top = at_path("");
    begin(root, &top, 1, true);
    run_threads(THREADS, work);
    CHECK(top.state == ESTALE);
    redox_scan_free(&scan);
    spreads = has_spread = false;
    stale = NULL;
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
    int descriptor = dup(root);
    CHECK(descriptor == root + 1);  // none was left open
    return 0;
}
