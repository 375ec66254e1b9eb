// Files and shards: what storage may do to a read, and damaged columns.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "check.h"
#include "sources.h"

static const atomic_bool never, at_once = true;

// A tree: the root, a directory d, and its files f0, f1, …
enum { MOST_FILES = 2500, FIRST = 2 };

typedef struct {
    redox_tree tree;
    char names[8 * MOST_FILES];
    int64_t name_at[FIRST + MOST_FILES + 1], size[FIRST + MOST_FILES], mtime_ns[FIRST + MOST_FILES];
    int32_t parent[FIRST + MOST_FILES];
} file_tree;

static void lay_out_tree(file_tree *of, size_t files) {
    memset(of, 0, sizeof *of);
    size_t at = 0;
    for (size_t entry = 1; entry < FIRST + files; entry++) {
        at += (size_t)(entry == 1 ? sprintf(of->names + at, "d") : sprintf(of->names + at, "f%zu", entry - FIRST));
        of->name_at[entry + 1] = (int64_t)at;
        of->parent[entry] = entry == 1 ? 0 : 1;
    }
    of->tree = (redox_tree){
        .entries = FIRST + files,
        .name_bytes = at,
        .names = of->names,
        .name_at = of->name_at,
        .parent = of->parent,
        .size = of->size,
        .mtime_ns = of->mtime_ns,
    };
}

// System calls that go wrong

static struct redox_storage_calls real_calls;
static int calls_made, faults_left;
static void (*before_call)(void);

static long no_openat2(int directory, const char *path, const struct open_how *how, size_t size) {
    (void)directory, (void)path, (void)how, (void)size;
    errno = ENOSYS;
    return -1;
}

static ssize_t short_read(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    // Ends anywhere: within a piece, or between two.
    calls_made++;
    struct iovec some[3];
    int number = count < 3 ? count : 3;
    memcpy(some, parts, (size_t)number * sizeof *some);
    some[number - 1].iov_len = (some[number - 1].iov_len + 1) / 2;
    return real_calls.preadv2(fd, some, number, at, flags & ~0x80);
}

static ssize_t failing_read(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    calls_made++;
    if (faults_left > 0) {
        faults_left--;
        errno = EIO;
        return -1;
    }
    return real_calls.preadv2(fd, parts, count, at, flags & ~0x80);
}

static ssize_t flipping_read(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    ssize_t got = real_calls.preadv2(fd, parts, count, at, flags & ~0x80);
    if (faults_left > 0) {
        faults_left--;
        ssize_t left = got;
        for (int i = 0; i < count && left > 0; i++) {
            *(char *)parts[i].iov_base ^= 1;
            left -= (ssize_t)parts[i].iov_len;
        }
    }
    return got;
}

static ssize_t refused_flags(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    calls_made++;
    if (flags) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return real_calls.preadv2(fd, parts, count, at, 0);
}

static ssize_t interrupted_read(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (++calls_made % 2) {
        errno = EINTR;
        return -1;
    }
    return real_calls.preadv2(fd, parts, count, at, flags & ~0x80);
}

// Sees pieces that are longer than their memory, which the kernel would write to unseen by a sanitizer.
static ssize_t touching_read(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    for (int i = 0; i < count; i++) {
        memset(parts[i].iov_base, 0, parts[i].iov_len);
    }
    return real_calls.preadv2(fd, parts, count, at, flags & ~0x80);
}

static ssize_t read_after_change(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    before_call();
    return real_calls.preadv2(fd, parts, count, at, flags);
}

static void restore_calls(void) {
    redox_storage_calls = real_calls;
    calls_made = faults_left = 0;
}

// Files

static file_tree named;

static void write_file(const char *path, const char *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && !close(fd));
}

static redox_file read_one(const redox_files *files, int32_t entry) {
    redox_file result;
    files->source.read(&files->source, &entry, 1, &result, &never);
    return result;
}

static void expect_error(const redox_files *files, int32_t entry, int error, redox_fault fault) {
    redox_file found = read_one(files, entry);
    CHECK(!found.buffer && found.error == error && found.fault == fault);
}

static void expect_data(const redox_files *files, int32_t entry, const char *data, size_t size) {
    redox_file found = read_one(files, entry);
    CHECK(found.buffer && found.buffer->size == size && !memcmp(found.buffer->data, data, size));
    CHECK(found.inode != 0 && found.mtime_ns != 0);
    redox_buffer_drop(found.buffer);
}

static void expect_grown(const redox_files *files, int32_t entry, int64_t size) {
    redox_file found = read_one(files, entry);
    CHECK(found.buffer && !found.buffer->size && found.grown_bytes == size && found.changed);
    CHECK(found.inode != 0 && found.mtime_ns != 0);
    redox_buffer_drop(found.buffer);
}

static void check_files(const redox_files *files) {
    expect_data(files, FIRST, "of f0", 5);
    expect_data(files, FIRST + 1, "", 0);
    expect_error(files, FIRST + 2, ENOENT, REDOX_FAILED);
    expect_error(files, FIRST + 3, EIO, REDOX_NOT_REGULAR);  // a FIFO, which must not block
    expect_error(files, FIRST + 4, ELOOP, REDOX_FAILED);     // a symlink
    expect_error(files, FIRST + 5, EIO, REDOX_NOT_REGULAR);  // a directory
    expect_error(files, FIRST + 6, ENOMEM, REDOX_FAILED);    // 8 TiB, at the scan too
    redox_file bad = read_one(files, -1);
    CHECK(!bad.buffer && bad.error);
    bad = read_one(files, INT32_MAX);
    CHECK(!bad.buffer && bad.error);
}

static void grow(void) { write_file("d/f0", "of f0 and more", 14); }

// By a byte more each time, since two writes may have the same time.
static void shrink(void) { write_file("d/f0", "of f0", (size_t)(4 - calls_made++ % 4)); }

static void grow_once(void) {
    if (!calls_made++) {
        grow();
    }
}

static void test_files(void) {
    lay_out_tree(&named, 7);
    CHECK(!mkdir("d", 0700) && !mkdir("d/f5", 0700) && !mkfifo("d/f3", 0600) && !symlink("f0", "d/f4"));
    write_file("d/f0", "of f0", 5);
    write_file("d/f1", "", 0);
    write_file("d/f6", "", 0);
    CHECK(!truncate("d/f6", (off_t)1 << 43));
    named.size[FIRST] = 5;
    named.size[FIRST + 6] = (int64_t)1 << 43;
    int root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    redox_files files, walking;
    redox_files_init(&files, &named.tree, root);
    redox_storage_calls.openat2 = no_openat2;
    redox_files_init(&walking, &named.tree, root);
    restore_calls();
    CHECK(!walking.has_openat2);
    check_files(&files);
    check_files(&walking);

    redox_storage_calls.preadv2 = short_read;
    expect_data(&files, FIRST, "of f0", 5);
    CHECK(calls_made == 3);
    redox_storage_calls.preadv2 = interrupted_read;
    expect_data(&files, FIRST, "of f0", 5);
    redox_storage_calls.preadv2 = failing_read;
    faults_left = 1;
    expect_data(&files, FIRST, "of f0", 5);
    faults_left = 2;
    expect_error(&files, FIRST, EIO, REDOX_FAILED);
    restore_calls();

    // A file that changes during the read is read once more.
    redox_storage_calls.preadv2 = read_after_change;
    before_call = shrink;
    expect_error(&files, FIRST, EIO, REDOX_CHANGED);
    write_file("d/f0", "of f0", 5);
    before_call = grow;
    expect_grown(&files, FIRST, 14);
    write_file("d/f0", "of f0", 5);
    calls_made = 0;
    before_call = grow_once;
    expect_grown(&files, FIRST, 14);
    restore_calls();

    struct stat now;
    CHECK(!stat("d/f0", &now));
    redox_file found = read_one(&files, FIRST);
    CHECK(found.changed);
    redox_buffer_drop(found.buffer);
    named.size[FIRST] = now.st_size;
    named.mtime_ns[FIRST] = (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec;
    found = read_one(&files, FIRST);
    CHECK(!found.changed && found.inode == now.st_ino);
    redox_buffer_drop(found.buffer);

    // A directory that became a symlink is not followed.
    CHECK(!rename("d", "elsewhere") && !symlink("elsewhere", "d"));
    CHECK(!read_one(&files, FIRST).buffer && !read_one(&walking, FIRST).buffer);

    int32_t entry = FIRST;
    files.source.read(&files.source, &entry, 1, &found, &at_once);
    CHECK(!found.buffer && found.error == ECANCELED);
    CHECK(!close(root) && redox_buffer_bytes() == 0);
}

// Shards

enum { SHARD_BYTES = 24 << 20, SUMS = 4 * MOST_FILES };

typedef struct {
    file_tree files;
    redox_shards shards;
    char *bytes;  // of the shard
    int64_t data_at[FIRST + MOST_FILES], block_at[FIRST + MOST_FILES];
    int32_t shard_of[FIRST + MOST_FILES], fds[1];
    uint64_t sums[SUMS];
    int32_t entries[MOST_FILES];
    redox_file results[MOST_FILES];
    size_t count;
} packed;

static packed packed_files;

// Files of all sizes with gaps between them; a few are empty, one is larger than two sums cover.
static void lay_out_shard(packed *of, size_t count) {
    lay_out_tree(&of->files, count);
    of->bytes = malloc(SHARD_BYTES);
    CHECK(of->bytes);
    uint64_t state = 5;
    for (size_t i = 0; i < SHARD_BYTES; i++) {
        of->bytes[i] = (char)next_number(&state);
    }
    size_t at = 512, sum = 0;
    for (size_t i = 0; i < count; i++) {
        size_t entry = FIRST + i;
        size_t size = i == 7 ? 2 * REDOX_SUM_BYTES + 9 : next_number(&state) % 5 ? next_number(&state) % 3000 : 0;
        of->files.size[entry] = (int64_t)size;
        of->files.mtime_ns[entry] = (int64_t)i;
        of->data_at[entry] = (int64_t)at;
        of->block_at[entry] = (int64_t)sum;
        for (size_t begin = 0; begin < size; begin += REDOX_SUM_BYTES) {
            size_t left = size - begin < REDOX_SUM_BYTES ? size - begin : REDOX_SUM_BYTES;
            CHECK(sum < SUMS);
            of->sums[sum++] = XXH3_64bits(of->bytes + at + begin, left);
        }
        // One gap is longer than the scratch memory, and some are none.
        at += size + (i == 20 ? (3 << 20) + 17 : next_number(&state) % 3 * 700);
        CHECK(at < SHARD_BYTES);
        of->entries[i] = (int32_t)entry;
    }
    of->count = count;
    int fd = open("shard", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, of->bytes, SHARD_BYTES) == SHARD_BYTES);
    of->fds[0] = fd;
    of->shards.tree = &of->files.tree;
    of->shards.fds = of->fds;
    of->shards.shards = 1;
    of->shards.shard_of = of->shard_of;
    of->shards.data_at = of->data_at;
    of->shards.sums = of->sums;
    of->shards.sum_count = sum;
    of->shards.block_at = of->block_at;
    redox_shards_init(&of->shards);
}

static void sweep(packed *of, size_t count) {
    of->shards.source.read(&of->shards.source, of->entries, count, of->results, &never);
}

// Checks the results of the first `count` entries and drops them. Returns how many have an error, which is `fault`.
static size_t judge(packed *of, size_t count, redox_fault fault) {
    size_t failed = 0;
    for (size_t i = 0; i < count; i++) {
        redox_file *file = &of->results[i];
        size_t entry = (size_t)of->entries[i];
        if (!file->buffer) {
            CHECK(file->fault == fault && file->error);
            failed++;
            continue;
        }
        CHECK((int64_t)file->buffer->size == of->files.size[entry]);
        CHECK(!memcmp(file->buffer->data, of->bytes + of->data_at[entry], file->buffer->size));
        CHECK(file->mtime_ns == of->files.mtime_ns[entry] && file->inode == 0 && !file->changed);
        redox_buffer_drop(file->buffer);
    }
    CHECK(redox_buffer_bytes() == 0);
    return failed;
}

static void test_whole_sweeps(packed *of) {
    sweep(of, of->count);
    CHECK(judge(of, of->count, 0) == 0);
    sweep(of, 0);

    // Any of the files, in order.
    int32_t all[MOST_FILES];
    memcpy(all, of->entries, sizeof all);
    uint64_t state = 8;
    for (int round = 0; round < 30; round++) {
        size_t count = 0;
        for (size_t i = 0; i < of->count; i++) {
            if (next_number(&state) % (uint64_t)(1 + round) == 0) {
                of->entries[count++] = all[i];
            }
        }
        sweep(of, count);
        CHECK(judge(of, count, 0) == 0);
    }
    memcpy(of->entries, all, sizeof all);
}

static void test_calls_that_go_wrong(packed *of) {
    redox_storage_calls.preadv2 = short_read;
    sweep(of, of->count);
    CHECK(judge(of, of->count, 0) == 0 && calls_made > 10);
    restore_calls();
    redox_storage_calls.preadv2 = interrupted_read;
    sweep(of, 100);
    CHECK(judge(of, 100, 0) == 0);
    restore_calls();
    redox_storage_calls.preadv2 = failing_read;
    faults_left = 1;
    sweep(of, 100);
    CHECK(judge(of, 100, 0) == 0);
    faults_left = 1 << 20;
    sweep(of, 100);
    size_t failed = judge(of, 100, REDOX_FAILED);
    CHECK(failed > 60 && failed <= 100);
    restore_calls();
    redox_storage_calls.preadv2 = flipping_read;
    faults_left = 1;
    sweep(of, 100);
    CHECK(judge(of, 100, 0) == 0);
    faults_left = 1 << 20;
    sweep(of, 100);
    CHECK(judge(of, 100, REDOX_WRONG_SUM) > 60);
    restore_calls();

    // Without uncached reads the first refusal is the last.
    redox_shards_init(&of->shards);
    redox_storage_calls.preadv2 = refused_flags;
    for (int round = 0; round < 2; round++) {
        sweep(of, 3);
        CHECK(judge(of, 3, 0) == 0);
    }
    CHECK(calls_made == 3 && of->shards.uncached == 0);
    restore_calls();
}

static void test_damage_in_a_shard(packed *of) {
    // One bit, in the last sum of the large file.
    off_t at = of->data_at[FIRST + 7] + 2 * REDOX_SUM_BYTES + 3;
    char wrong = (char)(of->bytes[at] ^ 1);
    CHECK(pwrite(of->fds[0], &wrong, 1, at) == 1);
    sweep(of, 50);
    CHECK(judge(of, 50, REDOX_WRONG_SUM) == 1);
    CHECK(pwrite(of->fds[0], &of->bytes[at], 1, at) == 1);
    // A shard that ends early.
    CHECK(!ftruncate(of->fds[0], of->data_at[FIRST + 50]));
    sweep(of, 100);
    size_t failed = judge(of, 100, REDOX_WRONG_SUM);
    CHECK(failed > 20 && failed <= 50);
    // A shard that is not here.
    int fd = of->fds[0];
    of->fds[0] = -1;
    sweep(of, 100);
    CHECK(judge(of, 100, REDOX_ELSEWHERE) == 100);
    of->fds[0] = fd;
}

static int64_t draw(uint64_t *state) {
    uint64_t number = next_number(state);
    static const int64_t edges[] = {INT64_MIN, INT64_MAX, -1, 0, 1, INT32_MAX, (int64_t)1 << 40};
    return number % 2 ? edges[number / 2 % 7] : (int64_t)(number / 2 % SHARD_BYTES);
}

// Damaged columns give errors, or the bytes that the sums vouch for; never more.
static void test_damaged_columns(packed *of) {
    enum { FILES = 30 };
    static packed whole;
    whole = *of;
    uint64_t state = 11;
    for (int round = 0; round < 400; round++) {
        for (uint64_t damage = 1 + next_number(&state) % 3; damage > 0; damage--) {
            size_t entry = FIRST + next_number(&state) % FILES;
            switch (next_number(&state) % 6) {
                case 0: of->files.size[entry] = draw(&state); break;
                case 1: of->data_at[entry] = draw(&state); break;
                case 2: of->block_at[entry] = draw(&state); break;
                case 3: of->shard_of[entry] = (int32_t)draw(&state); break;
                case 4: of->shards.sum_count = (size_t)next_number(&state) % 10; break;
                default: of->entries[entry - FIRST] = (int32_t)draw(&state);
            }
        }
        sweep(of, FILES);
        for (size_t i = 0; i < FILES; i++) {
            redox_file *file = &of->results[i];
            CHECK(file->buffer ? !file->error : file->error);
            redox_buffer_drop(file->buffer);
        }
        CHECK(redox_buffer_bytes() == 0);
        memcpy(of->files.size, whole.files.size, sizeof whole.files.size);
        memcpy(of->data_at, whole.data_at, sizeof whole.data_at);
        memcpy(of->block_at, whole.block_at, sizeof whole.block_at);
        memcpy(of->shard_of, whole.shard_of, sizeof whole.shard_of);
        memcpy(of->entries, whole.entries, sizeof whole.entries);
        of->shards.sum_count = whole.shards.sum_count;
    }
}

// An index may say that an empty file lies within another one, and that the next lies just too far from it to be read
// without a jump.
static void test_an_empty_file_within_another(packed *of) {
    enum { FILES = 4, MOST_GAP = 16 << 20 };
    static const int64_t size[FILES] = {100, 5000, 0, 100}, at[FILES] = {512, 1024, 1536, 1536 + MOST_GAP + 512};
    static packed whole;
    whole = *of;
    memcpy(of->files.size + FIRST, size, sizeof size);
    memcpy(of->data_at + FIRST, at, sizeof at);
    struct stat now;
    CHECK(!fstat(of->fds[0], &now));
    redox_version version = {now.st_size, (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec, now.st_ino};
    of->shards.versions = &version;
    redox_storage_calls.preadv2 = touching_read;
    sweep(of, FILES);
    CHECK(judge(of, FILES, 0) == 0);
    restore_calls();
    of->shards.versions = NULL;
    memcpy(of->files.size, whole.files.size, sizeof whole.files.size);
    memcpy(of->data_at, whole.data_at, sizeof whole.data_at);
}

int main(void) {
    real_calls = redox_storage_calls;
    test_files();
    lay_out_shard(&packed_files, MOST_FILES);
    test_whole_sweeps(&packed_files);
    test_calls_that_go_wrong(&packed_files);
    test_damaged_columns(&packed_files);
    test_an_empty_file_within_another(&packed_files);
    test_damage_in_a_shard(&packed_files);
    CHECK(!close(packed_files.fds[0]));
    free(packed_files.bytes);
    return 0;
}
