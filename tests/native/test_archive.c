// Archives as tar writes them, and as nobody should: damaged, cut off, hostile, and changed at random.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "archive.h"
#include "check.h"

enum { BLOCK = REDOX_TAR_BLOCK, MOST_BYTES = 4 << 20, THREADS = 4 };

#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 100 };  // of one thread, in which races have no part
#else
enum { ROUNDS = 4000 };
#endif

static char made[MOST_BYTES];
static size_t made_bytes;

static void seal(char *block) {
    unsigned sum = 0;
    memset(block + 148, ' ', 8);
    for (int i = 0; i < BLOCK; i++) {
        sum += (unsigned char)block[i];
    }
    snprintf(block + 148, 8, "%06o", sum);
}

static char *add_header(const char *name, char type, uint64_t size, const char *target) {
    char *block = made + made_bytes;
    CHECK(made_bytes + BLOCK <= MOST_BYTES);
    memset(block, 0, BLOCK);
    memcpy(block, name, strlen(name) < 100 ? strlen(name) : 100);
    snprintf(block + 124, 12, "%011llo", (unsigned long long)size);
    snprintf(block + 136, 12, "%011llo", 1700000000ULL);
    block[156] = type;
    memcpy(block + 157, target, strlen(target));
    memcpy(block + 257, "ustar\0" "00", 8);
    seal(block);
    made_bytes += BLOCK;
    return block;
}

static void add_data(const char *data, size_t size) {
    size_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;
    CHECK(made_bytes + padded <= MOST_BYTES);
    memset(made + made_bytes, 0, padded);
    memcpy(made + made_bytes, data, size);
    made_bytes += padded;
}

static void add(const char *name, char type, const char *data, const char *target) {
    add_header(name, type, strlen(data), target);
    add_data(data, strlen(data));
}

static void add_end(void) {
    memset(made + made_bytes, 0, 2 * BLOCK);
    made_bytes += 2 * BLOCK;
}

static redox_index indexed;

static void *work(void *number) {
    (void)number;
    redox_index_work(&indexed);
    return NULL;
}

static void *stop(void *number) {
    if ((intptr_t)number == 1) {
        redox_index_stop(&indexed);
    } else {
        redox_index_work(&indexed);
    }
    return NULL;
}

// Indexes ranges of one file by several threads. The caller frees the index.
static void run(redox_archive *archives, size_t count, size_t most_headers, int64_t through_bytes, int threads) {
    indexed = (redox_index){archives, count, most_headers, through_bytes, 128 << 10, 4 << 10};
    CHECK(!redox_index_init(&indexed));
    indexed.running = (size_t)threads;
    run_threads(threads, work);
    CHECK(!indexed.running);
}

static int file_of(const void *data, size_t size) {
    int fd = memfd_create("archive", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    return fd;
}

static redox_archive one;

// Indexes what was made; `one` is the result.
static void index_made(size_t most_headers, int64_t through_bytes) {
    one = (redox_archive){file_of(made, made_bytes), 0, (int64_t)made_bytes};
    run(&one, 1, most_headers, through_bytes, 1);
    close(one.fd);
    made_bytes = 0;
}

// Whether member `number` has this kind, path, target and data (NULL: none).
static bool has(size_t number, redox_member_kind kind, const char *path, const char *target, const char *data) {
    size_t at = 0;
    CHECK(number < one.count);
    for (size_t i = 0; i < number; i++) {
        at += one.members[i].path_length + one.members[i].target_length;
    }
    const redox_member *member = &one.members[number];
    const char *texts = one.texts + at;
    bool is_same = member->kind == kind && member->path_length == strlen(path) && !memcmp(texts, path, strlen(path)) &&
                   member->target_length == strlen(target) &&
                   !memcmp(texts + member->path_length, target, strlen(target));
    return is_same && (!data || ((size_t)member->size == strlen(data) && !memcmp(made + member->data_at, data, strlen(data))));
}

static void check_kinds(void) {
    add("./", '5', "", "");
    add("./a//b.jpg", '0', "bytes of b", "");
    add("dir/", '\0', "", "");
    add("/absolute", '7', "", "");
    add("link", '2', "", "../a/b.jpg");
    add("hard", '1', "", "./a/b.jpg");
    add("null", '3', "", "");
    add("fifo", '6', "", "");
    add("volume", 'V', "", "");
    add("a/../../out", '0', "", "");
    add("..", '0', "", "");
    add("", '0', "", "");
    add("hard", '1', "", "../out");
    add("later", '0', "z", "");
    add_end();
    index_made(100, 0);
    CHECK(!one.state && one.count == 7 && one.special == 3 && one.unnameable == 4 && one.has_end_mark && !one.has_rest);
    CHECK(has(0, REDOX_MEMBER_DIRECTORY, "", "", NULL) && has(1, REDOX_MEMBER_FILE, "a/b.jpg", "", "bytes of b"));
    CHECK(has(2, REDOX_MEMBER_DIRECTORY, "dir", "", NULL) && has(3, REDOX_MEMBER_FILE, "absolute", "", ""));
    CHECK(has(4, REDOX_MEMBER_SYMLINK, "link", "../a/b.jpg", NULL) && has(5, REDOX_MEMBER_HARD_LINK, "hard", "a/b.jpg", NULL));
    CHECK(has(6, REDOX_MEMBER_FILE, "later", "", "z") && one.members[6].mtime_ns == INT64_C(1700000000000000000));
    redox_index_free(&indexed);
}

static void add_pax(char type, const char *records, size_t size) {
    add_header("pax", type, size, "");
    add_data(records, size);
}

static void check_extended(void) {
    char global[] = "26 mtime=1600000000.0625\n", records[] = "12 path=p/q\n28 mtime=-1.5\n", name[301];
    // The length of a record is not that of another one.
    char right[] = "12 path=p/q\n14 mtime=-1.5\n9 size=3\n", nul[] = "13 path=p\0/q\n";
    memset(name, 'n', 300);
    memset(name + 100, '/', 1);
    memset(name + 200, '/', 1);
    name[300] = 0;
    global[0] = '2', global[1] = '5';
    add_pax('g', global, sizeof global - 1);
    add_pax('x', right, sizeof right - 1);
    add_header("short", '0', 0, "");
    add_data("abc", 3);
    add_header("LongLink", 'L', 301, "");
    add_data(name, 301);
    add("other", '0', "x", "");
    add_pax('x', nul, sizeof nul - 1);
    add("nul", '0', "", "");
    char *block = add_header("base256", '0', 0, "");
    memset(block + 124, 0, 12);
    block[124] = (char)0x80;
    block[135] = 2;
    seal(block);
    add_data("yz", 2);
    char *prefixed = add_header("name", '0', 0, "");
    memcpy(prefixed + 345, "pre/fix", 7);
    seal(prefixed);
    add_end();
    index_made(100, 1 << 20);
    CHECK(!one.state && one.count == 4 && one.unnameable == 1);
    CHECK(has(0, REDOX_MEMBER_FILE, "p/q", "", "abc") && one.members[0].mtime_ns == -1500000000);
    CHECK(has(1, REDOX_MEMBER_FILE, name, "", "x") && one.members[1].mtime_ns == INT64_C(1600000000062500000));
    CHECK(has(2, REDOX_MEMBER_FILE, "base256", "", "yz") && has(3, REDOX_MEMBER_FILE, "pre/fix/name", "", ""));
    redox_index_free(&indexed);
    const char *wrong[] = {records, "9 a=b\n", "12 path=p/q\n7 a=b\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        add_pax('x', wrong[i], strlen(wrong[i]));
        add("short", '0', "", "");
        index_made(100, 0);
        CHECK(one.state == REDOX_ARCHIVE_DAMAGED);
        redox_index_free(&indexed);
    }
}

static void check_sparse(void) {
    char *block = add_header("old", 'S', 3, "");
    block[482] = 1;
    seal(block);
    char map[BLOCK] = {0};
    map[504] = 1;
    add_data(map, BLOCK);
    map[504] = 0;
    add_data(map, BLOCK);
    add_data("abc", 3);
    char records[] = "22 GNU.sparse.major=1\n";
    add_pax('x', records, sizeof records - 1);
    add("new", '0', "abc", "");
    add("plain", '0', "p", "");
    add_end();
    index_made(100, 0);
    CHECK(!one.state && one.sparse == 2 && one.count == 1 && has(0, REDOX_MEMBER_FILE, "plain", "", "p"));
    redox_index_free(&indexed);
}

static void check_damage(void) {
    add("first", '0', "1", "");
    index_made(100, 0);
    CHECK(!one.state && one.count == 1 && !one.has_end_mark);
    redox_index_free(&indexed);

    add("first", '0', "1", "");
    made[made_bytes] = 'x';
    made_bytes += BLOCK;
    index_made(100, 0);
    CHECK(one.state == REDOX_ARCHIVE_DAMAGED && one.at == 2 * BLOCK);
    redox_index_free(&indexed);

    memset(made, 'x', BLOCK);
    made_bytes = BLOCK;
    index_made(100, 0);
    CHECK(one.state == REDOX_ARCHIVE_NOT_TAR);
    redox_index_free(&indexed);

    for (int which = 0; which < 3; which++) {
        add("first", '0', "1", "");
        if (which < 2) {
            // Longer than what there is, and so long that its end has no number.
            char *block = add_header("long", '0', which ? 0 : 4096, "");
            if (which) {
                memset(block + 124, 0xff, 12);
                block[124] = (char)0x80;
                memset(block + 125, 0, 3);
                block[128] = 0x7f;
                seal(block);
            }
            add_data("short", 5);
        } else {
            made_bytes += 100;
        }
        index_made(100, 0);
        CHECK(one.state == REDOX_ARCHIVE_TRUNCATED && one.at == 2 * BLOCK);
        redox_index_free(&indexed);
    }

    // A fault ends the other archives, or, if they are salvaged, none.
    add("first", '0', "1", "");
    int64_t end = (int64_t)made_bytes;
    int fd = file_of(made, made_bytes);
    made_bytes = 0;
    for (int salvages = 0; salvages < 2; salvages++) {
        redox_archive two[2] = {{fd, 0, end - BLOCK}, {fd, 0, end}};
        indexed = (redox_index){two, 2, 100, 0, 128 << 10, BLOCK, .salvages = salvages};
        CHECK(!redox_index_init(&indexed));
        indexed.running = 1;
        redox_index_work(&indexed);
        CHECK(two[0].state == REDOX_ARCHIVE_TRUNCATED && two[1].count == (size_t)salvages);
        redox_index_free(&indexed);
    }
    close(fd);

    add("before", '0', "1", "");
    add_end();
    add("behind", '0', "2", "");
    index_made(100, 0);
    CHECK(!one.state && one.count == 1 && one.has_end_mark && one.has_rest);
    redox_index_free(&indexed);

    // Negative sizes, and a pax header of gigabytes.
    char *block = add_header("negative", '0', 0, "");
    memset(block + 124, 0xff, 12);
    seal(block);
    index_made(100, 0);
    CHECK(one.state == REDOX_ARCHIVE_NOT_TAR);
    redox_index_free(&indexed);
    add("first", '0', "", "");
    add_header("pax", 'x', 2 << 20, "");
    made_bytes += 2 << 20;
    index_made(100, 0);
    CHECK(one.state == REDOX_ARCHIVE_DAMAGED);
    redox_index_free(&indexed);
}

// Where all but the first header is that was made: two blocks below 2^63.
static const int64_t FAR = INT64_MAX - 2 * BLOCK + 1;

static int read_far(void *context, int fd, char *to, size_t size, int64_t at) {
    (void)context, (void)fd;
    memset(to, 0, size);
    CHECK(at >= 0 && (int64_t)size <= INT64_MAX - at);
    if (at == 0) {
        memcpy(to, made, BLOCK);
    } else if (at >= FAR) {
        memcpy(to, made + BLOCK + (at - FAR), size);
    }
    return 0;
}

static void set_size(char *block, int64_t size) {
    memset(block + 124, 0, 12);
    block[124] = (char)0x80;
    for (int i = 0; i < 8; i++) {
        block[135 - i] = (char)(size >> 8 * i);
    }
    seal(block);
}

// A sparse file, or a server, may claim any size: no sum of a place and a size goes beyond 2^63.
static void check_far(void) {
    char records[BLOCK] = "511 a=";
    memset(records + 6, 'z', BLOCK - 8);
    records[BLOCK - 2] = '\n';
    for (int is_extended = 0; is_extended < 2; is_extended++) {
        made_bytes = 0;
        set_size(add_header("first", '0', 0, ""), FAR - BLOCK + (is_extended ? 0 : BLOCK));
        add_pax('x', records, BLOCK - 1);
        redox_archive far = {-1, 0, INT64_MAX};
        indexed = (redox_index){&far, 1, 100, 0, 128 << 10, BLOCK, .read = read_far};
        CHECK(!redox_index_init(&indexed));
        indexed.running = 1;
        redox_index_work(&indexed);
        CHECK(far.count == 1 && far.state == (is_extended ? REDOX_ARCHIVE_DONE : REDOX_ARCHIVE_TRUNCATED));
        CHECK(far.at == (is_extended ? INT64_MAX : FAR + BLOCK));
        redox_index_free(&indexed);
    }
    made_bytes = 0;
}

static void check_bomb(void) {
    for (int i = 0; i < 4096; i++) {
        add_header("x", i % 2 ? '0' : 'g', 0, "");
    }
    index_made(2048, 0);
    CHECK(one.state == REDOX_ARCHIVE_TOO_MANY && one.count <= 2048);
    redox_index_free(&indexed);
}

// The same result of many archives in one file, by any number of threads and windows, and an end in the middle.
static void check_threads(void) {
    enum { ARCHIVES = 40, MEMBERS = 60 };
    redox_archive archives[ARCHIVES] = {0};
    static char data[20001];
    char name[32];
    for (int i = 0; i < ARCHIVES; i++) {
        archives[i].begin = (int64_t)made_bytes;
        for (int member = 0; member < MEMBERS; member++) {
            snprintf(name, sizeof name, "%d/%d.jpg", i, member);
            memset(data, 'd', sizeof data);
            data[(i * 37 + member * 11) % (i % 4 ? 900 : 20000)] = 0;
            if (made_bytes + 40 * BLOCK + 20000 < MOST_BYTES) {
                add(name, '0', data, "");
            }
        }
        add_end();
        archives[i].end = (int64_t)made_bytes;
    }
    int fd = file_of(made, made_bytes);
    made_bytes = 0;
    size_t counts[ARCHIVES];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < ARCHIVES; i++) {
            archives[i] = (redox_archive){fd, archives[i].begin, archives[i].end};
        }
        run(archives, ARCHIVES, 100000, round % 2 ? 0 : 1 << 20, round < 2 ? 1 : THREADS);
        for (int i = 0; i < ARCHIVES; i++) {
            CHECK(!archives[i].state && archives[i].has_end_mark);
            CHECK(!round || counts[i] == archives[i].count);
            counts[i] = archives[i].count;
        }
        CHECK(counts[0] == MEMBERS && indexed.done == ARCHIVES);
        redox_index_free(&indexed);
    }
    for (int i = 0; i < ARCHIVES; i++) {
        archives[i] = (redox_archive){fd, archives[i].begin, archives[i].end};
    }
    indexed = (redox_index){archives, ARCHIVES, 100000, 0, 128 << 10, 4 << 10};
    CHECK(!redox_index_init(&indexed));
    indexed.running = THREADS - 1;
    run_threads(THREADS, stop);
    redox_index_free(&indexed);
    close(fd);
}

static void make_many(void) {
    char records[] = "12 path=p/q\n14 mtime=-1.5\n9 size=3\n";
    made_bytes = 0;
    for (int i = 0; i < 3; i++) {
        add("a/b.jpg", '0', "some bytes", "");
        add_pax(i ? 'x' : 'g', records, sizeof records - 1);
        add("c", '0', "abc", "");
        add_header("LongLink", i ? 'L' : 'K', 12, "");
        add_data("a/long/name", 12);
        add("link", i ? '1' : '2', "", "target");
        char *block = add_header("sparse", 'S', 0, "");
        block[482] = (char)(i == 2);
        seal(block);
        if (i == 2) {
            add_data("", 1);
        }
    }
    add_end();
}

// No report of a sanitizer, and nothing outside the archive, whatever bytes are changed.
static void check_random(void) {
    uint64_t state = 41;
    for (int round = 0; round < ROUNDS; round++) {
        make_many();
        for (uint64_t changes = next_number(&state) % 6; changes; changes--) {
            size_t block = next_number(&state) % (made_bytes / BLOCK) * BLOCK, at = next_number(&state) % BLOCK;
            // Mostly where headers have something to say.
            static const size_t places[] = {124, 125, 128, 135, 156, 345, 482, 0, 99, 257, 3, 148};
            at = next_number(&state) % 4 ? places[next_number(&state) % 12] : at;
            made[block + at] = (char)next_number(&state);
            if (next_number(&state) % 8) {
                seal(made + block);
            }
        }
        made_bytes -= next_number(&state) % 3 ? 0 : next_number(&state) % made_bytes;
        int64_t size = (int64_t)made_bytes;
        index_made(1000, (int64_t)(next_number(&state) % 2) << 16);
        size_t texts = 0;
        for (size_t i = 0; i < one.count; i++) {
            const redox_member *member = &one.members[i];
            CHECK(member->size >= 0 && member->data_at >= BLOCK && member->size <= size - member->data_at);
            texts += member->path_length + member->target_length;
        }
        CHECK(texts == one.text_bytes);
        redox_index_free(&indexed);
    }
}

int main(void) {
    check_kinds();
    check_extended();
    check_sparse();
    check_damage();
    check_far();
    check_bomb();
    check_threads();
    check_random();
    return 0;
}
