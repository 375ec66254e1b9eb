// Indexes tar archives: reads their headers, and skips the bytes between them.
//
// It knows ustar, pax (path, linkpath, size, mtime; also global), GNU's long names, base-256 numbers and the names of
// v7. An archive is not trusted: each header has to have its checksum, no number leads out of the archive, and texts and
// headers are bounded. A member that cannot be served is counted and left out. A damaged archive has a state and a place.
//
// Several threads share the archives of an index, and each archive is read by one of them.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REDOX_TAR_BLOCK = 512 };

typedef enum redox_member_kind {
    REDOX_MEMBER_FILE,
    REDOX_MEMBER_DIRECTORY,
    REDOX_MEMBER_SYMLINK,
    REDOX_MEMBER_HARD_LINK,
} redox_member_kind;

// What a header says. Its texts follow each other: the path, without "." and slashes too many, and the target of a link.
typedef struct redox_member {
    int64_t size;
    int64_t data_at;  // where its bytes begin in the file that holds the archive
    int64_t mtime_ns;
    uint32_t kind, path_length, target_length, unused;
} redox_member;

// States of an archive; an errno is positive.
enum {
    REDOX_ARCHIVE_DONE = 0,
    REDOX_ARCHIVE_NOT_TAR = -1,    // the first header is none
    REDOX_ARCHIVE_DAMAGED = -2,    // a later header is none, or says what no header may
    REDOX_ARCHIVE_TRUNCATED = -3,  // a member, or a header, ends beyond the end
    REDOX_ARCHIVE_TOO_MANY = -4,   // more headers than the index may have
    REDOX_ARCHIVE_NOT_BEGUN = -5,
};

// Reads `size` bytes from a place of a file, all of them. Returns 0, an errno, or REDOX_ARCHIVE_TRUNCATED.
typedef int redox_archive_read(void *context, int fd, char *to, size_t size, int64_t at);

// A range of a file, which holds an archive. The caller sets the first three fields, and zeros the rest.
typedef struct redox_archive {
    int fd;
    int64_t begin, end;

    int state;
    int64_t at;  // of the header at which it failed; or of the end mark, or of the end
    redox_member *members;
    size_t count, room;
    char *texts;
    size_t text_bytes, text_room;
    size_t sparse, special;    // left out: sparse files; devices, FIFOs and types that only some programs know
    size_t unnameable;         // left out: a name with "..", NUL or more bytes than Linux allows, or none
    bool has_end_mark, has_rest;  // `has_rest`: bytes other than zero follow the end mark
} redox_archive;

typedef struct redox_index {
    redox_archive *archives;
    size_t archive_count;
    size_t most_headers;      // of all archives together
    int64_t through_bytes;  // a gap between two headers is read if it is as short, and skipped if it is longer
    size_t long_window, short_window;  // read at once: where gaps are read, and where they are skipped
    bool salvages;          // members before a fault count, and a faulty archive ends no other
    redox_archive_read *read;  // NULL: pread of `fd`. Threads call it at the same time.
    void *context;

    pthread_mutex_t lock;
    pthread_cond_t news;
    bool stops;
    size_t begun, done, headers;
    size_t running;  // threads
} redox_index;

// Begins; the caller has set the fields before `lock`. Returns 0 or an errno.
int redox_index_init(redox_index *index);

// Works until no archive is left to be begun, or `stops` is set. To be called by each thread.
void redox_index_work(redox_index *index);

// Makes all threads return after the call that they are in.
void redox_index_stop(redox_index *index);

// Frees what the threads have made. They have returned.
void redox_index_free(redox_index *index);
