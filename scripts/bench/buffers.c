// What memory for files costs: redoxfs/native/buffer.c beside malloc and mmap, with one mix of sizes.
//
//     gcc -O2 -pthread -D_GNU_SOURCE -I redoxfs/native -o buffers scripts/bench/buffers.c redoxfs/native/buffer.c -lm
//     ./buffers KIND MIX MEBIBYTES THREADS SECONDS
//
// KIND  buffer; malloc; arena (malloc with one arena); mmap (malloc that maps from 64 KiB)
// MIX   10k, 100k (log-normal); mixed (1 kB to 300 kB, one in a hundred of 1 to 8 MB); shift (1.5 kB, 10 kB, 100 kB,
//       300 kB in turn, each for an eighth of the time)
//
// Threads allocate and write, the main thread drops at random what is above MEBIBYTES. It prints the CPU time of a
// buffer, with the writing and the queue; page faults of a buffer; RSS by the bytes in use, on average and at most.
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "buffer.h"

enum { QUEUED = 64, SAMPLES = 100, PHASES = 8 };

static const char *kind, *mix;
static _Atomic int phase;
static _Atomic size_t in_use;  // with what is in the queue
static redox_buffer *queue[QUEUED];
static size_t queue_head, queue_tail;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t room, queued;

static double uniform(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static size_t log_normal(uint64_t *state, double median) {
    double normal = sqrt(-2 * log(uniform(state) + 1e-300)) * cos(2 * M_PI * uniform(state));
    return (size_t)(median * exp(0.5 * normal)) + 1;
}

static size_t draw_size(uint64_t *state) {
    static const double medians[] = {1500, 10000, 100000, 300000};
    if (!strcmp(mix, "mixed")) {
        return uniform(state) < 0.01 ? 1000000 + (size_t)(uniform(state) * 7e6)
                                     : 1000 + (size_t)(uniform(state) * 299000);
    }
    return log_normal(state, !strcmp(mix, "shift")  ? medians[phase % 4]
                             : !strcmp(mix, "10k") ? 10000
                                                   : 100000);
}

static redox_buffer *allocate(size_t size) {
    if (!strcmp(kind, "buffer")) {
        return redox_buffer_allocate(size);
    }
    redox_buffer *buffer = malloc(sizeof *buffer + size);
    if (buffer) {
        buffer->size = size;
        buffer->data = (char *)(buffer + 1);
    }
    return buffer;
}

static void drop(redox_buffer *buffer) {
    if (!strcmp(kind, "buffer")) {
        redox_buffer_drop(buffer);
    } else {
        free(buffer);
    }
}

static void *produce(void *number) {
    uint64_t state = (uintptr_t)number * 0x9E3779B97F4A7C15;
    for (;;) {
        size_t size = draw_size(&state);
        redox_buffer *buffer = allocate(size);
        if (!buffer) {
            perror("allocate");
            exit(1);
        }
        in_use += size;
        memset(buffer->data, 1, size);
        sem_wait(&room);
        pthread_mutex_lock(&queue_lock);
        queue[queue_head++ % QUEUED] = buffer;
        pthread_mutex_unlock(&queue_lock);
        sem_post(&queued);
    }
    return NULL;
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double rss_bytes(void) {
    unsigned long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &size, &resident) != 2) {
        exit(1);
    }
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

int main(int count, char **arguments) {
    if (count != 6) {
        fprintf(stderr, "usage: %s KIND MIX MEBIBYTES THREADS SECONDS\n", arguments[0]);
        return 2;
    }
    kind = arguments[1];
    mix = arguments[2];
    size_t limit = (size_t)atoi(arguments[3]) << 20, most = limit / 500, used = 0, held = 0, done = 0, counted = 0;
    double duration = atof(arguments[5]), sum = 0, highest = 0, cpu_before = 0;
    int taken = 0;
    long faults_before = 0;
    bool full = false;
    if (!strcmp(kind, "arena")) {
        mallopt(M_ARENA_MAX, 1);
    } else if (!strcmp(kind, "mmap")) {
        mallopt(M_MMAP_THRESHOLD, 64 << 10);
    }
    redox_buffer **all = calloc(most, sizeof *all);
    memset(all, 1, most * sizeof *all);
    sem_init(&room, 0, QUEUED);
    sem_init(&queued, 0, 0);
    double rss_before = rss_bytes(), start = seconds_of(CLOCK_MONOTONIC);
    uint64_t state = 88172645463325252;
    for (intptr_t i = 0; i < atoi(arguments[4]); i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, produce, (void *)(i + 1));
    }
    for (double part = 0; part < 1;) {
        sem_wait(&queued);
        pthread_mutex_lock(&queue_lock);
        redox_buffer *buffer = queue[queue_tail++ % QUEUED];
        pthread_mutex_unlock(&queue_lock);
        sem_post(&room);
        used += buffer->size;
        all[held++] = buffer;
        while (used > limit || held == most) {
            full = true;
            size_t place = (size_t)(uniform(&state) * (double)held);
            used -= all[place]->size;
            in_use -= all[place]->size;
            drop(all[place]);
            all[place] = all[--held];
        }
        if (++done % 64) {
            continue;
        }
        // Memory is filled first. That is not counted.
        part = (seconds_of(CLOCK_MONOTONIC) - start) / duration;
        phase = (int)(part * PHASES);
        if (!counted && full && part > 0.2) {
            counted = done;
            cpu_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
            faults_before = faults();
        }
        if (counted && taken < (int)(part * SAMPLES)) {
            double ratio = (rss_bytes() - rss_before) / (double)in_use;
            sum += ratio;
            highest = ratio > highest ? ratio : highest;
            taken++;
        }
    }
    double buffers = (double)(done - counted);
    printf("%-7s %-6s %5s MiB %2s threads: %6.1f us, %5.1f faults, RSS %.2f on average, %.2f at most\n", kind, mix,
           arguments[3], arguments[4], (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_before) * 1e6 / buffers,
           (double)(faults() - faults_before) / buffers, sum / taken, highest);
    fflush(stdout);
    _exit(0);
}
