// What the threads of this folder have in common.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

// As pthread_create. Signals are for the threads of the program: in the new one they interrupt no call to storage.
static inline int redox_thread_start(pthread_t *thread, const pthread_attr_t *options, void *(*run)(void *),
                                     void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(thread, options, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

// A condition whose timed waits go by the monotonic clock. Returns 0 or an errno.
static inline int redox_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    int failure = pthread_condattr_init(&monotonic);
    if (!failure) {
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        failure = pthread_cond_init(condition, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    return failure;
}
