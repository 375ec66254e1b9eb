// The target of fuzz_session.c without libFuzzer: inputs that are mostly requests that make sense, the same in each run.
//
// With the name of a folder it writes them there instead, for libFuzzer to begin with.
#include "fuzz_session.c"

#ifdef __SANITIZE_THREAD__
// Inputs run in one thread, where this sanitizer finds with a few what it finds with many.
enum { INPUTS = 60 };
#else
enum { INPUTS = 600 };
#endif

enum { INPUT_BYTES = 4096, BODY_BYTES = 40 };

static const uint8_t OPCODES[] = {
    FUSE_LOOKUP, FUSE_GETATTR,     FUSE_OPEN,    FUSE_READ,   FUSE_RELEASE,      FUSE_READDIR, FUSE_READDIRPLUS,
    FUSE_OPEN,   FUSE_READ,        FUSE_RELEASE, FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_STATFS,  FUSE_READLINK,
    FUSE_ACCESS, FUSE_FLUSH,       FUSE_GETXATTR, FUSE_INTERRUPT, FUSE_OPENDIR,  FUSE_INIT,    FUSE_LSEEK,
};

typedef struct {
    uint8_t bytes[INPUT_BYTES];
    size_t size;
    uint64_t state;
} input;

static unsigned draw(input *self, unsigned choices) { return (unsigned)(next_number(&self->state) % choices); }

static void add(input *self, const void *bytes, size_t size) {
    if (self->size + size <= INPUT_BYTES) {
        memcpy(self->bytes + self->size, bytes, size);
        self->size += size;
    }
}

static void add_byte(input *self, unsigned value) { add(self, &(uint8_t){(uint8_t)value}, 1); }

static void add_number(input *self, unsigned value) {
    add_byte(self, value);
    add_byte(self, value >> 8);
}

// Often one of a few, so that requests meet. Now and then one that there is not.
static unsigned draw_entry(input *self) {
    unsigned kind = draw(self, 4);
    unsigned any = draw(self, 3) ? draw(self, ENTRIES) : ENTRIES + draw(self, 3);
    return kind == 0 ? any : kind == 1 ? draw(self, FOLDERS + 1) : FOLDERS + 1 + draw(self, 6);
}

// One of the session's, or of the relay's.
static uint64_t draw_handle(input *self) {
    return draw(self, 8) ? draw(self, HANDLES + 2) : UINT64_C(1) << REDOX_RELAY_HANDLES_SHIFT;
}

// A body as the kernel would send it, near enough.
static size_t draw_body(input *self, unsigned opcode, uint8_t body[BODY_BYTES]) {
    memset(body, 0, BODY_BYTES);
    switch (opcode) {
    case FUSE_LOOKUP: {
        size_t size = (size_t)snprintf((char *)body, BODY_BYTES, "%04u", draw_entry(self)) + 1;
        return draw(self, 8) ? size : size - 1;
    }
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS: {
        struct fuse_read_in in = {
            .fh = draw_handle(self), .offset = draw(self, 40), .size = draw(self, 4) ? draw(self, 9000) : UINT32_MAX};
        memcpy(body, &in, sizeof in);
        return sizeof in;
    }
    case FUSE_RELEASE: {
        struct fuse_release_in in = {.fh = draw_handle(self)};
        memcpy(body, &in, sizeof in);
        return sizeof in;
    }
    default:
        for (int i = 0; i < BODY_BYTES; i++) {
            body[i] = (uint8_t)(draw(self, 4) ? 0 : draw(self, 256));
        }
        return draw(self, BODY_BYTES);
    }
}

static void add_request(input *self) {
    uint8_t body[BODY_BYTES];
    unsigned opcode = draw(self, 20) ? OPCODES[draw(self, sizeof OPCODES)] : draw(self, 60);
    size_t size = draw_body(self, opcode, body);
    size -= draw(self, 16) ? 0 : draw(self, (unsigned)size + 1);
    add_byte(self, (7 + draw(self, 9)) | (draw(self, 3) ? 0 : 0x80));
    add_byte(self, opcode);
    unsigned entry = draw_entry(self);
    add_number(self, entry | (draw(self, 8) ? 0 : draw(self, 8) << 13));
    add_byte(self, draw(self, 4));    // the thread
    add_byte(self, draw(self, 256));  // the decision, if it becomes an event
    add_number(self, (unsigned)size);
    add(self, body, size);
}

static void make_input(input *self, uint64_t seed) {
    self->size = 0;
    self->state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    add_byte(self, draw(self, 3) ? 2 : draw(self, 256));
    add_byte(self, draw(self, 2));
    for (unsigned left = 1 + draw(self, 60); left; left--) {
        if (draw(self, 4)) {
            add_request(self);
            continue;
        }
        if (!draw(self, 6)) {
            add_byte(self, 6 | 32);  // another session
            continue;
        }
        unsigned kind = draw(self, 20) ? 2 + draw(self, 4) : draw(self, 7);
        add_byte(self, kind | (draw(self, 3) ? 0 : 0x80));
        if (kind == 4 || kind == 5) {
            add_byte(self, draw(self, 9));
            add_number(self, draw_entry(self));
            add_number(self, draw(self, 1000));
            continue;
        }
        unsigned size = kind < 4 ? draw(self, 160) : 0;
        if (kind == 2 || kind == 3) {
            add_byte(self, draw(self, 3));
        }
        if (kind < 4) {
            add_number(self, size);
        }
        for (; size; size--) {
            add_byte(self, draw(self, 256));
        }
    }
}

int main(int count, char **arguments) {
    static input made;
    for (unsigned seed = 0; seed < INPUTS; seed++) {
        make_input(&made, seed);
        if (count < 2) {
            LLVMFuzzerTestOneInput(made.bytes, made.size);
            continue;
        }
        char path[4096];
        CHECK(snprintf(path, sizeof path, "%s/seed-%03u", arguments[1], seed) < (int)sizeof path);
        FILE *file = fopen(path, "wb");
        CHECK(file && fwrite(made.bytes, 1, made.size, file) == made.size && !fclose(file));
    }
    return 0;
}
