// The places that a `redox_pool` reads files from.
#pragma once

#include <sys/stat.h>
#include <sys/uio.h>

#include "kernel.h"
#include "reader.h"
#include "tree.h"

// The system calls that reach storage. Tests put others in their place, to make them fail; nothing else may.
struct redox_storage_calls {
    long (*openat2)(int directory, const char *path, const struct open_how *how, size_t size);
    ssize_t (*preadv2)(int fd, const struct iovec *parts, int count, off_t at, int flags);
};
extern __attribute__((visibility("default"))) struct redox_storage_calls redox_storage_calls;

// Files of `tree` beneath the directory `root`, read through no symlink.
typedef struct redox_files {
    redox_source source;
    const redox_tree *tree;
    int root;
    bool has_openat2;
    bool guards;  // no bytes of a file that fewer users may read than at the scan
    size_t largest_bytes;  // the machine's memory: no larger file is read (ENOMEM), whatever size it claims
} redox_files;

// The caller keeps `tree` and `root`.
void redox_files_init(redox_files *files, const redox_tree *tree, int root);

// Whether all users who could read an entry at the scan may read now what `now` is of. Where owner or group have changed,
// that is only known if everybody may.
bool redox_is_as_readable(const redox_tree *tree, int32_t entry, const struct stat *now);

// What a shard without sums was when it was indexed. Its files are served while it still is that.
typedef struct redox_version {
    int64_t bytes, mtime_ns;
    uint64_t inode;
} redox_version;

// Files in packed shards. They lie one after the other, with gaps between them.
typedef struct redox_shards {
    redox_source source;
    const redox_tree *tree;
    const int32_t *fds;  // [shards]; -1 for one that is on another node
    size_t shards;
    const int32_t *shard_of;  // [entries of the tree]
    const int64_t *data_at;   // [entries of the tree]
    const uint64_t *sums;     // [sum_count]: XXH3 of each REDOX_SUM_BYTES of each file
    size_t sum_count;
    const int64_t *block_at;  // [entries of the tree]: the number of a file's first sum
    const redox_version *versions;  // [shards]; with them, there are no sums. NULL: nothing but the sums is compared
    bool guards;              // with versions: no bytes of a shard that fewer users may read than when it was indexed
    atomic_int uncached;      // RWF_DONTCACHE, or 0 where the kernel or the filesystem lacks it
} redox_shards;

enum { REDOX_SUM_BYTES = 1 << 20 };

// The caller fills in all fields but these two.
void redox_shards_init(redox_shards *shards);

// Fills `files` from bytes that are in memory already: `pieces` follow each other, and begin with the first file's first
// byte. Each file is checked; for one whose sum is wrong, the caller may fetch the bytes again.
void redox_shards_scatter(const redox_shards *shards, const int32_t *entries, size_t count, redox_file *files,
                          const struct iovec *pieces, size_t piece_count);
