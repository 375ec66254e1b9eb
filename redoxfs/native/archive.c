#include "archive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "threads.h"

enum {
    BLOCK = REDOX_TAR_BLOCK,
    // The records of one pax header. Those of real archives have some hundred bytes, and extended attributes 64 KiB.
    PAX_BYTES = 1 << 20,
    // Linux's own limits.
    NAME_BYTES = 255,
    PATH_BYTES = 4095,
    // Zeros fill an archive up to a record, which has at most so many bytes by the options of tar that are in use.
    REST_BYTES = 2 << 20,
    // Threads count headers in pieces, so that the lock does not matter.
    COUNTED_AT_ONCE = 1024,
};

// A text that a header has, or none.
typedef struct text {
    const char *data;
    size_t length;
} text;

// What pax and GNU headers say of the members that follow. Texts are copies; without data, there is none.
typedef struct extended {
    text path, target;
    int64_t size, mtime_ns;
    bool has_size, has_mtime, is_sparse;
} extended;

typedef struct walk {
    redox_index *index;
    redox_archive *archive;
    int64_t at;  // of the next header
    size_t uncounted;
    extended own, global;
    char *window;
    int64_t window_at;
    size_t window_bytes, wanted;
} walk;

// Reading

static int read_file(void *context, int fd, char *to, size_t size, int64_t at) {
    (void)context;
    while (size) {
        ssize_t got = pread(fd, to, size, at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got ? errno : REDOX_ARCHIVE_TRUNCATED;
        }
        to += got;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

// At most a block of bytes, from the window if they are there. NULL, with a state, if they cannot be read.
static const char *bytes_at(walk *walk, int64_t at, size_t size) {
    // Differences, as a sum may be beyond 2^63: a sparse file, or a server, may claim any size below.
    if (at < walk->window_at || (int64_t)size > (int64_t)walk->window_bytes - (at - walk->window_at)) {
        redox_index *index = walk->index;
        int64_t left = walk->archive->end - at;
        if (left < (int64_t)size) {
            walk->archive->state = REDOX_ARCHIVE_TRUNCATED;
            return NULL;
        }
        walk->window_bytes = 0;
        size_t more = left < (int64_t)walk->wanted ? (size_t)left : walk->wanted;
        redox_archive_read *read = index->read ? index->read : read_file;
        if ((walk->archive->state = read(index->context, walk->archive->fd, walk->window, more, at))) {
            return NULL;
        }
        walk->window_at = at;
        walk->window_bytes = more;
    }
    return walk->window + (at - walk->window_at);
}

static const char *block_at(walk *walk, int64_t at) { return bytes_at(walk, at, BLOCK); }

static bool is_zero(const char *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (data[i]) {
            return false;
        }
    }
    return true;
}

// Numbers

// Decimal, up to `most`; -1 for anything else. `*end` is the first byte behind the digits.
static int64_t decimal(const char *from, const char *limit, int64_t most, const char **end) {
    int64_t value = 0;
    const char *at = from;
    for (; at < limit && *at >= '0' && *at <= '9'; at++) {
        int digit = *at - '0';
        if (digit > most || value > (most - digit) / 10) {
            return -1;
        }
        value = value * 10 + digit;
    }
    *end = at;
    return at > from ? value : -1;
}

// A field of a header: octal digits, or base-256. False if it is neither, or does not fit.
static bool number(const char *field, size_t size, int64_t *value) {
    const unsigned char *bytes = (const unsigned char *)field;
    *value = 0;
    if (bytes[0] & 0x80) {
        // Two's complement, whose sign is the second bit.
        bool is_negative = bytes[0] & 0x40;
        uint64_t sum = is_negative ? UINT64_MAX : 0;
        sum = sum << 6 | (bytes[0] & 0x3f);
        for (size_t i = 1; i < size; i++) {
            uint64_t top = sum >> 55;
            if (top != (is_negative ? UINT64_MAX >> 55 : 0)) {
                return false;
            }
            sum = sum << 8 | bytes[i];
        }
        *value = (int64_t)sum;
        return true;
    }
    size_t i = 0;
    while (i < size && bytes[i] == ' ') {
        i++;
    }
    for (; i < size && bytes[i] && bytes[i] != ' '; i++) {
        if (bytes[i] < '0' || bytes[i] > '7' || *value > INT64_MAX >> 3) {
            return false;
        }
        *value = *value << 3 | (bytes[i] - '0');
    }
    return true;
}

// Whether a block has the checksum of a header. Old programs summed signed bytes.
static bool is_header(const char *block) {
    int64_t stored, plain = 0, with_signs = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        char byte = i >= 148 && i < 156 ? ' ' : block[i];
        plain += (unsigned char)byte;
        with_signs += (signed char)byte;
    }
    return number(block + 148, 8, &stored) && (stored == plain || stored == with_signs);
}

// Texts

static bool fail(walk *walk, int state) {
    walk->archive->state = state;
    return false;
}

static bool reserve(void **memory, size_t *room, size_t needed, size_t item) {
    if (needed <= *room) {
        return true;
    }
    size_t more = *room ? *room * 2 : 256;
    more = more < needed ? needed : more;
    void *grown = realloc(*memory, more * item);
    if (!grown) {
        return false;
    }
    *memory = grown;
    *room = more;
    return true;
}

// Appends a path to the texts, without ".", and slashes too many or in front. Returns its length; -1 if Linux has no such
// name, -2 if there is no memory.
static int64_t add_path(redox_archive *archive, text path) {
    if (path.length > 2 * PATH_BYTES || memchr(path.data, 0, path.length)) {
        return -1;
    }
    if (!reserve((void **)&archive->texts, &archive->text_room, archive->text_bytes + path.length + 1, 1)) {
        return -2;
    }
    char *to = archive->texts + archive->text_bytes;
    size_t length = 0;
    for (size_t at = 0; at < path.length;) {
        const char *slash = memchr(path.data + at, '/', path.length - at);
        size_t name = slash ? (size_t)(slash - (path.data + at)) : path.length - at;
        const char *from = path.data + at;
        at += name + 1;
        if (!name || (name == 1 && from[0] == '.')) {
            continue;
        }
        if (name > NAME_BYTES || (name == 2 && !memcmp(from, "..", 2))) {
            return -1;
        }
        if (length) {
            to[length++] = '/';
        }
        memcpy(to + length, from, name);
        length += name;
    }
    return length > PATH_BYTES ? -1 : (int64_t)length;
}

static int64_t add_target(redox_archive *archive, text target) {
    if (!target.length || target.length > PATH_BYTES || memchr(target.data, 0, target.length)) {
        return -1;
    }
    if (!reserve((void **)&archive->texts, &archive->text_room, archive->text_bytes + target.length, 1)) {
        return -2;
    }
    memcpy(archive->texts + archive->text_bytes, target.data, target.length);
    return (int64_t)target.length;
}

// Pax and GNU headers

// Replaces a text by a copy of another, or by none if that is empty. Returns 0 or an errno.
static int keep(text *to, text from) {
    free((char *)to->data);
    *to = (text){0};
    char *copy = from.length ? malloc(from.length) : NULL;
    if (copy) {
        *to = (text){memcpy(copy, from.data, from.length), from.length};
    }
    return from.length && !copy ? ENOMEM : 0;
}

static void forget(extended *extended) {
    free((char *)extended->path.data);
    free((char *)extended->target.data);
    memset(extended, 0, sizeof *extended);
}

static bool is_key(text key, const char *name) { return key.length == strlen(name) && !memcmp(key.data, name, key.length); }

// Seconds with a fraction, as in "1700000000.25".
static bool parse_time(text value, int64_t *time_ns) {
    const char *at = value.data, *limit = value.data + value.length;
    bool is_negative = at < limit && *at == '-';
    at += is_negative;
    int64_t seconds = decimal(at, limit, INT64_MAX / 1000000000 - 1, &at), fraction = 0;
    if (seconds < 0) {
        return false;
    }
    if (at < limit && *at == '.') {
        int64_t unit = 100000000;
        for (at++; at < limit && *at >= '0' && *at <= '9'; at++, unit /= 10) {
            fraction += (*at - '0') * unit;
        }
    }
    *time_ns = (seconds * 1000000000 + fraction) * (is_negative ? -1 : 1);
    return at == limit;
}

// One record. 0, or a state.
static int apply(extended *to, text key, text value) {
    if (is_key(key, "path")) {
        return keep(&to->path, value);
    }
    if (is_key(key, "linkpath")) {
        return keep(&to->target, value);
    }
    if (is_key(key, "size")) {
        const char *end = value.data;
        to->has_size = value.length > 0;
        to->size = to->has_size ? decimal(value.data, value.data + value.length, INT64_MAX, &end) : 0;
        if (to->size < 0 || end != value.data + value.length) {
            return REDOX_ARCHIVE_DAMAGED;
        }
    } else if (is_key(key, "mtime")) {
        to->has_mtime = parse_time(value, &to->mtime_ns);
    } else if (key.length > 11 && !memcmp(key.data, "GNU.sparse.", 11)) {
        to->is_sparse = true;
    }
    return 0;
}

// The records of a pax header: "LENGTH KEY=VALUE\n", where LENGTH counts all of it.
static int parse_records(extended *to, const char *data, size_t size) {
    while (size) {
        const char *after = NULL;
        int64_t length = decimal(data, data + size, (int64_t)size, &after);
        if (length <= 0 || after == data + size || *after != ' ' || length < after - data + 3 || data[length - 1] != '\n') {
            return REDOX_ARCHIVE_DAMAGED;
        }
        const char *key = after + 1, *end = data + length - 1;
        const char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals) {
            return REDOX_ARCHIVE_DAMAGED;
        }
        int state = apply(to, (text){key, (size_t)(equals - key)}, (text){equals + 1, (size_t)(end - equals - 1)});
        if (state) {
            return state;
        }
        data += length;
        size -= (size_t)length;
    }
    return 0;
}

// Goes on behind `size` bytes at `data_at`, which are in the archive. Nothing needs the last padding.
static void go_behind(walk *walk, int64_t data_at, int64_t size) {
    int64_t left = walk->archive->end - data_at - size, padding = -size & (BLOCK - 1);
    walk->at = data_at + size + (padding < left ? padding : left);
}

// The bytes behind the header at `at`: pax records, or a long name.
static bool take_extended(walk *walk, char type, int64_t size) {
    if (size > PAX_BYTES) {
        return fail(walk, REDOX_ARCHIVE_DAMAGED);
    }
    char *data = malloc((size_t)size + 1);
    if (!data) {
        return fail(walk, ENOMEM);
    }
    for (int64_t done = 0; done < size; done += BLOCK) {
        size_t piece = size - done < BLOCK ? (size_t)(size - done) : BLOCK;
        const char *from = bytes_at(walk, walk->at + BLOCK + done, piece);
        if (!from) {
            free(data);
            return false;
        }
        memcpy(data + done, from, piece);
    }
    extended *own = &walk->own;
    int state;
    if (type == 'L' || type == 'K') {
        state = keep(type == 'L' ? &own->path : &own->target, (text){data, strnlen(data, (size_t)size)});
    } else {
        state = parse_records(type == 'g' ? &walk->global : own, data, (size_t)size);
    }
    free(data);
    return state ? fail(walk, state) : true;
}

// Members

// The path in a header, perhaps with a prefix. `joined` has room for both.
static text name_in(const char *block, char *joined) {
    size_t length = strnlen(block, 100), before = 0;
    if (!memcmp(block + 257, "ustar", 6)) {
        // star has times behind a shorter prefix.
        before = strnlen(block + 345, memcmp(block + 508, "tar", 4) ? 155 : 131);
    }
    if (before) {
        memcpy(joined, block + 345, before);
        joined[before++] = '/';
    }
    memcpy(joined + before, block, length);
    return (text){joined, before + length};
}

static bool add_member(walk *walk, redox_member member, text path, text target) {
    redox_archive *archive = walk->archive;
    size_t before = archive->text_bytes;
    int64_t length = add_path(archive, path), target_length = 0;
    if (length >= 0) {
        archive->text_bytes += (size_t)length;
        if (member.kind == REDOX_MEMBER_SYMLINK) {
            target_length = add_target(archive, target);
        } else if (member.kind == REDOX_MEMBER_HARD_LINK) {
            target_length = add_path(archive, target);
        }
    }
    bool is_named = length > 0 || (!length && member.kind == REDOX_MEMBER_DIRECTORY);
    if (length == -2 || target_length == -2) {
        return fail(walk, ENOMEM);
    }
    if (!is_named || target_length < 0) {
        archive->text_bytes = before;
        archive->unnameable++;
        return true;
    }
    if (!reserve((void **)&archive->members, &archive->room, archive->count + 1, sizeof member)) {
        return fail(walk, ENOMEM);
    }
    archive->text_bytes += (size_t)target_length;
    member.path_length = (uint32_t)length;
    member.target_length = (uint32_t)target_length;
    archive->members[archive->count++] = member;
    return true;
}

// Counts headers. False if it has to end: with a state, if there are too many.
static bool count_headers(walk *walk, size_t count) {
    redox_index *index = walk->index;
    pthread_mutex_lock(&index->lock);
    index->headers += count;
    bool stops = index->stops, too_many = index->headers > index->most_headers;
    pthread_mutex_unlock(&index->lock);
    if (too_many || stops) {
        walk->archive->state = too_many ? REDOX_ARCHIVE_TOO_MANY : ECANCELED;
    }
    return !too_many && !stops;
}

static bool count_header(walk *walk) {
    if (++walk->uncounted < COUNTED_AT_ONCE) {
        return true;
    }
    walk->uncounted = 0;
    return count_headers(walk, COUNTED_AT_ONCE);
}

// Blocks that go on with the map of an old sparse file, behind its header.
static bool skip_map(walk *walk, const char *block, int64_t *data_at) {
    for (bool goes_on = block[482]; goes_on; *data_at += BLOCK) {
        const char *map = block_at(walk, *data_at);
        if (!map || !count_header(walk)) {
            return false;
        }
        goes_on = map[504];
    }
    return true;
}

// Takes the member whose header is `block`, and goes to the next one.
static bool take_member(walk *walk, const char *block, char type, int64_t size) {
    redox_archive *archive = walk->archive;
    const extended *own = &walk->own, *global = &walk->global;
    const extended *sized = own->has_size ? own : global, *timed = own->has_mtime ? own : global;
    text path = own->path.data ? own->path : global->path;
    text target = own->target.data ? own->target : global->target;
    char joined[256];
    if (!path.data) {
        path = name_in(block, joined);
    }
    if (!target.data) {
        target = (text){block + 157, strnlen(block + 157, 100)};
    }
    redox_member member = {.data_at = walk->at + BLOCK};
    int64_t seconds;
    if (timed->has_mtime) {
        member.mtime_ns = timed->mtime_ns;
    } else if (number(block + 136, 12, &seconds) && seconds > -(INT64_C(1) << 33) && seconds < INT64_C(1) << 33) {
        member.mtime_ns = seconds * 1000000000;
    }
    size = sized->has_size ? sized->size : size;
    bool is_sparse = own->is_sparse || type == 'S', is_left_out = is_sparse;
    // Headers of links, devices and directories have no bytes behind them, whatever size they name.
    bool has_data = type < '1' || type > '6';
    switch (type) {
    case '1':
        member.kind = REDOX_MEMBER_HARD_LINK;
        break;
    case '2':
        member.kind = REDOX_MEMBER_SYMLINK;
        break;
    case '5':
    case 'D':
        member.kind = REDOX_MEMBER_DIRECTORY;
        break;
    default:
        // v7 has no other mark of a directory.
        member.kind = path.length && path.data[path.length - 1] == '/' ? REDOX_MEMBER_DIRECTORY : REDOX_MEMBER_FILE;
        if (type == '3' || type == '4' || type == '6' || (type >= 'A' && type <= 'Z' && !is_sparse)) {
            is_left_out = true;
            archive->special++;
        }
    }
    archive->sparse += is_sparse;
    size = has_data ? size : 0;
    if (type == 'S' && !skip_map(walk, block, &member.data_at)) {
        return false;
    }
    if (size > archive->end - member.data_at) {
        return fail(walk, REDOX_ARCHIVE_TRUNCATED);
    }
    member.size = member.kind == REDOX_MEMBER_FILE ? size : 0;
    if (!is_left_out && !add_member(walk, member, path, target)) {
        return false;
    }
    forget(&walk->own);
    // The window that comes next: short, if what lies between is skipped.
    walk->wanted = size > walk->index->through_bytes ? walk->index->short_window : walk->index->long_window;
    go_behind(walk, member.data_at, size);
    return true;
}

// Whether something follows the end mark at `at`.
static bool look_behind(walk *walk, int64_t at) {
    int64_t left = walk->archive->end - at;
    left = left < REST_BYTES ? left : REST_BYTES;
    for (int64_t done = 0; done < left; done += BLOCK) {
        size_t size = left - done < BLOCK ? (size_t)(left - done) : BLOCK;
        const char *data = bytes_at(walk, at + done, size);
        if (!data) {
            return false;
        }
        if (!is_zero(data, size)) {
            walk->archive->has_rest = true;
            return true;
        }
    }
    return true;
}

static bool take_header(walk *walk, bool is_first, bool *ends) {
    redox_archive *archive = walk->archive;
    if (walk->at == archive->end) {
        *ends = true;
        return true;
    }
    const char *block = block_at(walk, walk->at);
    if (!block) {
        return false;
    }
    if (is_zero(block, BLOCK)) {
        *ends = archive->has_end_mark = true;
        return look_behind(walk, walk->at + BLOCK);
    }
    int64_t size;
    if (!is_header(block) || !number(block + 124, 12, &size) || size < 0) {
        return fail(walk, is_first ? REDOX_ARCHIVE_NOT_TAR : REDOX_ARCHIVE_DAMAGED);
    }
    if (!count_header(walk)) {
        return false;
    }
    char type = block[156];
    if (type != 'x' && type != 'X' && type != 'g' && type != 'L' && type != 'K') {
        return take_member(walk, block, type, size);
    }
    if (size > archive->end - walk->at - BLOCK) {
        return fail(walk, REDOX_ARCHIVE_TRUNCATED);
    }
    if (!take_extended(walk, type, size)) {
        return false;
    }
    go_behind(walk, walk->at + BLOCK, size);
    return true;
}

static bool is_salvaged(const redox_index *index, int state) {
    return index->salvages &&
           (state == REDOX_ARCHIVE_NOT_TAR || state == REDOX_ARCHIVE_DAMAGED || state == REDOX_ARCHIVE_TRUNCATED);
}

static void index_archive(redox_index *index, redox_archive *archive) {
    walk walk = {.index = index, .archive = archive, .at = archive->begin, .wanted = index->long_window};
    archive->state = REDOX_ARCHIVE_DONE;
    bool ends = archive->begin < 0 || archive->begin > archive->end;
    if (ends) {
        archive->state = EINVAL;
    } else if (!(walk.window = malloc(index->long_window))) {
        archive->state = ENOMEM;
        ends = true;
    }
    for (bool is_first = true; !ends && take_header(&walk, is_first, &ends);) {
        is_first = false;
    }
    archive->at = walk.at;
    if (!archive->state || is_salvaged(index, archive->state)) {
        count_headers(&walk, walk.uncounted);
    }
    forget(&walk.own);
    forget(&walk.global);
    free(walk.window);
}

// Threads

int redox_index_init(redox_index *index) {
    for (size_t i = 0; i < index->archive_count; i++) {
        index->archives[i].state = REDOX_ARCHIVE_NOT_BEGUN;
    }
    index->stops = false;
    index->begun = index->done = index->headers = index->running = 0;
    int failure = pthread_mutex_init(&index->lock, NULL);
    if (failure) {
        return failure;
    }
    failure = redox_condition_init(&index->news);
    if (failure) {
        pthread_mutex_destroy(&index->lock);
    }
    return failure;
}

void redox_index_work(redox_index *index) {
    pthread_mutex_lock(&index->lock);
    while (!index->stops && index->begun < index->archive_count) {
        redox_archive *archive = &index->archives[index->begun++];
        pthread_mutex_unlock(&index->lock);
        index_archive(index, archive);
        pthread_mutex_lock(&index->lock);
        index->done++;
        // What follows would not be used.
        index->stops = index->stops || (archive->state && !is_salvaged(index, archive->state));
    }
    index->running--;
    pthread_cond_signal(&index->news);
    pthread_mutex_unlock(&index->lock);
}

void redox_index_stop(redox_index *index) {
    pthread_mutex_lock(&index->lock);
    index->stops = true;
    pthread_mutex_unlock(&index->lock);
}

void redox_index_free(redox_index *index) {
    for (size_t i = 0; i < index->archive_count; i++) {
        free(index->archives[i].members);
        free(index->archives[i].texts);
        index->archives[i].members = NULL;
        index->archives[i].texts = NULL;
    }
    pthread_cond_destroy(&index->news);
    pthread_mutex_destroy(&index->lock);
}
