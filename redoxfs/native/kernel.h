// Linux's interfaces that older headers lack. Their numbers and layouts are fixed for all architectures that redoxfs
// runs on. Whether the running kernel has them is found out when they are used.
#pragma once

#include <linux/fuse.h>
#include <stdint.h>
#include <sys/syscall.h>

#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#else  // before 5.6
struct open_how {
    uint64_t flags, mode, resolve;
};
#define RESOLVE_NO_MAGICLINKS 0x02
#define RESOLVE_NO_SYMLINKS 0x04
#define RESOLVE_BENEATH 0x08
#endif

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

// The version of FUSE's protocol that the session speaks: whatever the headers, the same.
enum { REDOX_FUSE_MINOR = 38 };

#ifndef FUSE_INIT_EXT  // before 5.17
#define FUSE_INIT_EXT (1 << 30)
#endif
#ifndef FUSE_MAX_PAGES  // before 4.20
#define FUSE_MAX_PAGES (1 << 22)
#define FUSE_CACHE_SYMLINKS (1 << 23)
#define FOPEN_CACHE_DIR (1 << 3)
#endif
#ifndef FUSE_NO_OPENDIR_SUPPORT  // before 5.1
#define FUSE_NO_OPENDIR_SUPPORT (1 << 24)
#endif
#ifndef FOPEN_STREAM
#define FOPEN_STREAM (1 << 4)
#endif

// INIT and its reply, as of 7.36. An older kernel sends less and reads no further than it knows.
typedef struct redox_init_in {
    uint32_t major, minor, max_readahead, flags, flags2, unused[11];
} redox_init_in;

typedef struct redox_init_out {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, unused[7];
} redox_init_out;

_Static_assert(sizeof(redox_init_in) == 64, "as the kernel's fuse_init_in");
_Static_assert(sizeof(redox_init_out) == 64, "as the kernel's fuse_init_out");
