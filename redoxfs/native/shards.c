// Reads files from packed shards, in one sweep, and checks them.
//
// A sweep is a preadv2 whose buffers are, in turn, one for a file's bytes and scratch for the gap between files. So
// memory is freed file by file, and nothing is copied. The bytes of scratch are never looked at, so all gaps of a sweep
// share one piece.
//
// Reads do not fill the page cache. If the kernel has uncached reads (Linux 6.14), pages go as soon as they are copied;
// otherwise they are dropped after the read.
//
// A file's checksums are compared before anybody gets its bytes. After a mismatch, or if the sweep failed, the file is
// read once more by itself, from the storage rather than from a cache.
//
// Bytes that something else has fetched are copied and checked in the same way (`redox_shards_scatter`).
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "sources.h"
#include "times.h"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

enum {
    PARTS = IOV_MAX,
    // A longer gap takes the same piece of scratch several times.
    SCRATCH_BYTES = 1 << 18,
    // A longer gap is not read. It lies between the files of one sample in an archive; all other sweeps are cut there.
    MOST_GAP_BYTES = 16 << 20,
};

// Where a sweep is: file number `file` follows, from its byte `offset`; `at` is the position in the shard.
typedef struct cursor {
    size_t file, offset;
    int64_t at;
} cursor;

static int64_t size_of(const redox_shards *shards, int32_t entry) { return shards->tree->size[entry]; }

// One system call, as uncached as can be.
static ssize_t read_parts(const redox_shards *shards, int fd, const struct iovec *parts, int count, int64_t at) {
    atomic_int *uncached = (atomic_int *)&shards->uncached;
    int flags = atomic_load_explicit(uncached, memory_order_relaxed);
    ssize_t got;
    do {
        got = redox_storage_calls.preadv2(fd, parts, count, at, flags);
        if (got < 0 && flags && (errno == EOPNOTSUPP || errno == EINVAL)) {
            atomic_store_explicit(uncached, flags = 0, memory_order_relaxed);
            errno = EINTR;
        }
    } while (got < 0 && errno == EINTR);
    if (got > 0 && !flags) {
        posix_fadvise(fd, at, got, POSIX_FADV_DONTNEED);
    }
    return got;
}

// The bytes between a place and the file that comes next; less than 0 if it has been passed, as by links to one file.
static int64_t gap_after(const redox_shards *shards, const int32_t *entries, const cursor *from) {
    return from->offset ? 0 : shards->data_at[entries[from->file]] - from->at;
}

static bool is_jumped(int64_t gap) { return gap < 0 || gap > MOST_GAP_BYTES; }

// The pieces of memory that follow `from`, at most PARTS. Returns their number.
static int lay_out(const redox_shards *shards, const int32_t *entries, size_t count, const redox_file *files,
                   cursor from, char *scratch, struct iovec *parts) {
    int number = 0;
    while (from.file < count && number < PARTS) {
        int64_t gap = gap_after(shards, entries, &from);
        size_t left = files[from.file].buffer->size - from.offset;
        if (is_jumped(gap)) {
            break;
        }
        if (gap > 0) {
            size_t piece = gap < SCRATCH_BYTES ? (size_t)gap : SCRATCH_BYTES;
            parts[number++] = (struct iovec){scratch, piece};
            from.at += (int64_t)piece;
        } else if (left) {
            parts[number++] = (struct iovec){files[from.file].buffer->data + from.offset, left};
            from.at += (int64_t)left;
            from.offset += left;
        } else {
            from.file++;
            from.offset = 0;
        }
    }
    return number;
}

// `got` bytes were read into the pieces that follow `from`.
static void advance(const redox_shards *shards, const int32_t *entries, size_t count, const redox_file *files,
                    cursor *from, size_t got) {
    for (;;) {
        // Full files too: those that end here, and empty ones.
        while (from->file < count && from->at >= shards->data_at[entries[from->file]] &&
               from->offset == files[from->file].buffer->size) {
            from->file++;
            from->offset = 0;
        }
        if (!got || from->file == count) {
            return;
        }
        int64_t gap = gap_after(shards, entries, from);
        size_t left = gap > 0 ? (size_t)gap : files[from->file].buffer->size - from->offset;
        size_t step = got < left ? got : left;
        from->offset += gap > 0 ? 0 : step;
        from->at += (int64_t)step;
        got -= step;
    }
}

// Fills the buffers of the first files. Returns how many are full; fewer than all if the shard ends early, or after an
// error, which is in *error.
static size_t fill(const redox_shards *shards, int fd, const int32_t *entries, size_t count, redox_file *files,
                   char *scratch, const atomic_bool *stop, int *error) {
    cursor at = {.at = shards->data_at[entries[0]]};
    advance(shards, entries, count, files, &at, 0);
    while (at.file < count && !atomic_load_explicit(stop, memory_order_relaxed)) {
        if (is_jumped(gap_after(shards, entries, &at))) {
            at.at = shards->data_at[entries[at.file]];
            advance(shards, entries, count, files, &at, 0);
            continue;
        }
        struct iovec parts[PARTS];
        int number = lay_out(shards, entries, count, files, at, scratch, parts);
        ssize_t got = read_parts(shards, fd, parts, number, at.at);
        if (got < 0) {
            *error = errno;
        }
        if (got <= 0) {
            break;
        }
        advance(shards, entries, count, files, &at, (size_t)got);
    }
    return at.file;
}

// Whether a shard without sums still is what was indexed.
static bool is_unchanged(const redox_version *version, const struct stat *now) {
    return now->st_size == version->bytes && now->st_ino == version->inode &&
           redox_time_ns(now->st_mtim.tv_sec, now->st_mtim.tv_nsec) == version->mtime_ns;
}

static bool is_right(const redox_shards *shards, int32_t entry, const redox_buffer *buffer) {
    if (shards->versions) {
        return true;
    }
    int64_t first = shards->block_at[entry];
    size_t blocks = buffer->size / REDOX_SUM_BYTES + (buffer->size % REDOX_SUM_BYTES != 0);
    if (first < 0 || (uint64_t)first > shards->sum_count || blocks > shards->sum_count - (size_t)first) {
        return false;
    }
    for (size_t block = 0; block < blocks; block++) {
        size_t at = block * REDOX_SUM_BYTES, left = buffer->size - at;
        size_t length = left < REDOX_SUM_BYTES ? left : REDOX_SUM_BYTES;
        if (XXH3_64bits(buffer->data + at, length) != shards->sums[(size_t)first + block]) {
            return false;
        }
    }
    return true;
}

// Reads one file from the storage, into its buffer, and checks it. `failure` is the errno of the sweep, or 0.
static void read_again(const redox_shards *shards, int fd, int32_t entry, redox_file *file, int failure,
                       const atomic_bool *stop) {
    int error = 0;
    if (atomic_load_explicit(stop, memory_order_relaxed)) {
        redox_file_fail(file, ECANCELED, REDOX_FAILED);
        return;
    }
    posix_fadvise(fd, shards->data_at[entry], (off_t)file->buffer->size, POSIX_FADV_DONTNEED);
    bool whole = fill(shards, fd, &entry, 1, file, NULL, stop, &error) == 1;
    if (whole && is_right(shards, entry, file->buffer)) {
        return;
    }
    if (failure || error) {
        redox_file_fail(file, failure ? failure : error, REDOX_FAILED);
    } else {
        redox_file_fail(file, EIO, REDOX_WRONG_SUM);
    }
}

static void fail_all(redox_file *files, size_t count, int error, redox_fault fault) {
    for (size_t i = 0; i < count; i++) {
        redox_file_fail(&files[i], error, fault);
    }
}

// Files have the owner and the group of their archive, and its modes without what only concerns writing and execution.
static void fail_all_narrowed(redox_file *files, size_t count, const struct stat *now) {
    fail_all(files, count, EACCES, REDOX_NARROWED);
    for (size_t i = 0; i < count; i++) {
        files[i].mode = now->st_mode & 0444;
        files[i].uid = now->st_uid;
        files[i].gid = now->st_gid;
    }
}

// Whether entries lie one after the other in one shard. The longest gap that is read between them goes to *gap. Links to
// one file lie at one place.
static bool are_in_order(const redox_shards *shards, const int32_t *entries, size_t count, size_t *gap) {
    *gap = 0;
    int64_t end = 0, previous = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t entry = entries[i];
        if (entry < 0 || (size_t)entry >= shards->tree->entries || shards->shard_of[entry] != shards->shard_of[entries[0]]) {
            return false;
        }
        int64_t size = size_of(shards, entry), begin = shards->data_at[entry];
        if (size < 0 || begin < (shards->versions ? previous : end) || begin > INT64_MAX - size) {
            return false;
        }
        if (i && begin > end && !is_jumped(begin - end) && (size_t)(begin - end) > *gap) {
            *gap = (size_t)(begin - end);
        }
        previous = begin;
        // As a sweep goes: for an empty file it never turns back.
        end = size || begin > end ? begin + size : end;
    }
    return true;
}

// Allocates the buffers of all files, or of none.
static bool allocate(const redox_shards *shards, const int32_t *entries, size_t count, redox_file *files) {
    for (size_t i = 0; i < count; i++) {
        files[i].buffer = redox_buffer_allocate((size_t)size_of(shards, entries[i]));
        if (!files[i].buffer) {
            return false;
        }
    }
    return true;
}

// False, with an error in each file, if the entries cannot be read in one go, or if there are none.
static bool begin(const redox_shards *shards, const int32_t *entries, size_t count, redox_file *files, size_t *gap) {
    memset(files, 0, count * sizeof *files);
    if (!count) {
        return false;
    }
    if (!are_in_order(shards, entries, count, gap)) {
        fail_all(files, count, EINVAL, REDOX_FAILED);
        return false;
    }
    return true;
}

static void stamp(const redox_shards *shards, int32_t entry, redox_file *file) {
    file->mtime_ns = shards->tree->mtime_ns[entry];
    file->inode = 0; // that of a copy: no file's
}

static void read_shard(const redox_source *source, const int32_t *entries, size_t count, redox_file *files,
                       const atomic_bool *stop) {
    const redox_shards *shards = (const redox_shards *)source;
    size_t gap;
    if (!begin(shards, entries, count, files, &gap)) {
        return;
    }
    int32_t shard = shards->shard_of[entries[0]];
    int fd = shard >= 0 && (size_t)shard < shards->shards ? shards->fds[shard] : -1;
    if (fd < 0) {
        fail_all(files, count, ENOENT, REDOX_ELSEWHERE);
        return;
    }
    char *scratch = gap ? malloc(gap < SCRATCH_BYTES ? gap : SCRATCH_BYTES) : NULL;
    if ((gap && !scratch) || !allocate(shards, entries, count, files)) {
        fail_all(files, count, ENOMEM, REDOX_FAILED);
        free(scratch);
        return;
    }
    int failure = 0;
    size_t full = fill(shards, fd, entries, count, files, scratch, stop, &failure);
    free(scratch);
    for (size_t i = 0; i < count; i++) {
        if (i >= full || !is_right(shards, entries[i], files[i].buffer)) {
            read_again(shards, fd, entries[i], &files[i], i < full ? 0 : failure, stop);
        }
    }
    // After all reads: a change before them must not pass for what was indexed.
    if (shards->versions) {
        struct stat now;
        if (fstat(fd, &now) || !is_unchanged(&shards->versions[shard], &now)) {
            fail_all(files, count, ESTALE, REDOX_CHANGED);
            return;
        }
        // All files of a sweep are of one archive.
        if (shards->guards && !redox_is_as_readable(shards->tree, entries[0], &now)) {
            fail_all_narrowed(files, count, &now);
            return;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (files[i].buffer) {
            stamp(shards, entries[i], &files[i]);
        }
    }
}

// Copies the bytes from `at` of the pieces, which follow each other. False if the pieces end before.
static bool copy_from(const struct iovec *pieces, size_t count, size_t at, redox_buffer *buffer) {
    size_t done = 0;
    for (size_t i = 0; i < count && done < buffer->size; i++) {
        if (at >= pieces[i].iov_len) {
            at -= pieces[i].iov_len;
            continue;
        }
        size_t here = pieces[i].iov_len - at, left = buffer->size - done;
        size_t length = here < left ? here : left;
        memcpy(buffer->data + done, (const char *)pieces[i].iov_base + at, length);
        done += length;
        at = 0;
    }
    return done == buffer->size;
}

void redox_shards_scatter(const redox_shards *shards, const int32_t *entries, size_t count, redox_file *files,
                          const struct iovec *pieces, size_t piece_count) {
    size_t gap;
    if (!begin(shards, entries, count, files, &gap)) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        int32_t entry = entries[i];
        files[i].buffer = redox_buffer_allocate((size_t)size_of(shards, entry));
        if (!files[i].buffer) {
            redox_file_fail(&files[i], ENOMEM, REDOX_FAILED);
            continue;
        }
        size_t at = (size_t)(shards->data_at[entry] - shards->data_at[entries[0]]);
        if (!copy_from(pieces, piece_count, at, files[i].buffer)) {
            redox_file_fail(&files[i], EIO, REDOX_FAILED);
        } else if (!is_right(shards, entry, files[i].buffer)) {
            redox_file_fail(&files[i], EIO, REDOX_WRONG_SUM);
        } else {
            stamp(shards, entry, &files[i]);
        }
    }
}

void redox_shards_init(redox_shards *shards) {
    shards->source = (redox_source){read_shard};
    atomic_init(&shards->uncached, RWF_DONTCACHE);
}
