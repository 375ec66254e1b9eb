// Reads directories: their entries and the attributes of these, by several threads.
//
// Everything is opened beneath one directory and through no symlink. On network storage each call waits for a round
// trip, so threads share the directories, and also the attributes of one large directory. The result does not depend
// on their timing: children are sorted by name, and directories keep their order.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What stat says of an entry. Times are in ns since 1970.
typedef struct redox_row {
    int64_t size, mtime_ns, ctime_ns;
    uint64_t inode, device;
    uint32_t mode, uid, gid, nlink;
} redox_row;

// The target of a symlink, and the file at its end (0, 0: none that can be reached).
typedef struct redox_link {
    uint64_t device, inode;
    size_t length;
    char target[];
} redox_link;

// An entry of a directory. Of a directory among them, only the kind in `row.mode` is known.
typedef struct redox_child {
    const char *name;
    size_t length;
    redox_link *link;  // NULL except for a symlink
    redox_row row;     // with mode 0, it is left out
} redox_child;

enum {
    REDOX_LISTED = 0,
    // Instead of an errno:
    REDOX_UNCHANGED = -1,  // as `known`: it was not listed
    REDOX_CHANGED = -2,    // not as `known`, or cannot be read; only with `checks_only`
    REDOX_GONE = -3,     // it vanished before it could be listed, or meanwhile
    REDOX_NOT_BEGUN = -4,
};

// The identity of a directory when it was listed before.
typedef struct redox_known {
    uint64_t inode;
    int64_t mtime_ns, ctime_ns;
} redox_known;

// A directory to be read. The caller sets the first three fields, and zeros the rest.
typedef struct redox_directory {
    const char *path;  // relative to the root; "" for the root itself. Its length is not limited
    size_t path_length;
    const redox_known *known;  // NULL: list it

    int state;  // REDOX_LISTED and the like, or the errno of the call that failed
    redox_child *failed;  // the child at which it failed, or NULL: the directory itself
    redox_row own;  // taken before it was listed: a change during the listing gives it a later time
    redox_child **children;  // [child_count], sorted by name
    size_t child_count;
    size_t skipped;  // sockets, fifos and devices
    bool has_control_name;  // an entry called REDOX_CONTROL_NAME was left out of the root

    // Only for the threads:
    int fd;
    struct redox_block *blocks;
    size_t slices;  // that are not done
    bool is_listed, is_gone;
} redox_directory;

#define REDOX_CONTROL_NAME ".redoxfs"

typedef struct redox_slice {
    redox_directory *directory;
    redox_child *children;
    size_t count;
} redox_slice;

typedef struct redox_scan {
    int root;
    redox_directory *directories;
    size_t directory_count;
    size_t most_entries;  // no further directory is begun when so many entries were found
    bool checks_only;     // compare with `known`, list nothing

    pthread_mutex_t lock;
    pthread_cond_t news;
    bool has_openat2;
    bool stops;
    size_t begun, done, entries;
    size_t looked;  // entries of which all is known
    size_t listing;  // directories being listed
    size_t running;  // threads
    redox_slice *slices;
    size_t slice_count, slice_room;
} redox_scan;

// Begins a scan; the caller has set the fields before `lock`. Returns 0 or an errno.
int redox_scan_init(redox_scan *scan);

// Works until nothing is left to be begun, or `stops` is set. To be called by each thread.
void redox_scan_work(redox_scan *scan);

// Makes all threads return after the call that they are in.
void redox_scan_stop(redox_scan *scan);

// Frees what the threads have made. They have returned.
void redox_scan_free(redox_scan *scan);
