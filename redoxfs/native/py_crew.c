// Threads that share some work and need no interpreter, and the caller's thread, which waits for them.
#include <errno.h>
#include <time.h>

#include "python_types.h"
#include "threads.h"

// How often the caller hears of progress, and Ctrl-C is noticed.
enum { TICK_MS = 100 };

// How long threads may take to return after an exception.
enum { PATIENCE_TICKS = 10 };

// Waits for the threads, a tick at most. Returns whether all have ended.
static bool await_threads(const redox_crew *crew, size_t *found, size_t *done) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(crew->lock);
    for (int failure = 0; *crew->running && !failure;) {
        failure = pthread_cond_timedwait(crew->news, crew->lock, &until);
    }
    bool ended = !*crew->running;
    *found = *crew->found;
    *done = *crew->done;
    pthread_mutex_unlock(crew->lock);
    return ended;
}

int redox_crew_run(const redox_crew *crew, size_t count, PyObject *progress, bool *abandoned) {
    pthread_t threads[REDOX_CREW_MOST];
    size_t started = 0;
    int failure = 0;
    *crew->running = count;
    for (; started < count && !failure; started += !failure) {
        failure = redox_thread_start(&threads[started], NULL, crew->run, crew->work);
    }
    if (failure) {
        // As many as there are do the work.
        pthread_mutex_lock(crew->lock);
        *crew->running -= count - started;
        pthread_mutex_unlock(crew->lock);
    }
    bool ended = !started, raised = false;
    for (int ticks = 0; !ended && ticks < PATIENCE_TICKS; ticks += raised) {
        size_t found, done;
        Py_BEGIN_ALLOW_THREADS
        ended = await_threads(crew, &found, &done);
        Py_END_ALLOW_THREADS
        if (!raised && PyErr_CheckSignals()) {
            raised = true;
        }
        if (!raised && progress != Py_None) {
            PyObject *none = PyObject_CallFunction(progress, "nn", (Py_ssize_t)found, (Py_ssize_t)done);
            raised = !none;
            Py_XDECREF(none);
        }
        if (raised) {
            crew->stop(crew->work);
        }
    }
    *abandoned = !ended;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < started; i++) {
        if (ended) {
            pthread_join(threads[i], NULL);
        } else {
            pthread_detach(threads[i]);
        }
    }
    Py_END_ALLOW_THREADS
    if (!started) {
        errno = failure;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return raised ? -1 : 0;
}
