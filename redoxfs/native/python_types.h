// The Python types of the module: one pair of files py_NAME.c for each, over a core NAME.c that knows no Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdbool.h>

#include "buffer.h"
#include "histogram.h"
#include "shared.h"
#include "tree.h"

// Each adds its types or functions to the module; returns 0, or -1 with an exception set.
int redox_add_buffer(PyObject *module);
int redox_add_tree(PyObject *module);
int redox_add_reader(PyObject *module);
int redox_add_shared(PyObject *module);
int redox_add_session(PyObject *module);
int redox_add_histogram(PyObject *module);
int redox_add_opens(PyObject *module);
int redox_add_scan(PyObject *module);
int redox_add_archive(PyObject *module);
int redox_add_sections(PyObject *module);

// A column that is an array of Python's: its name, the size of one item, and where a core has the pointer to the items.
typedef struct redox_column {
    const char *name;
    Py_ssize_t item_bytes;
    size_t pointer_at;
} redox_column;

// Takes a view of each array, and puts the pointers into `core`. The caller releases the first `*held` views. Returns 0,
// or -1 with an exception set.
int redox_take_views(const redox_column *of, int count, PyObject *const *arrays, int flags, Py_buffer *views, int *held,
                     void *core);

enum { REDOX_CREW_MOST = 256 };

// Work that threads share. The core has a lock for the counts behind it, and a condition of which it tells when a thread
// ends. `stop` makes all threads return after the call that they are in.
typedef struct redox_crew {
    void *work;
    void *(*run)(void *work);
    void (*stop)(void *work);
    pthread_mutex_t *lock;
    pthread_cond_t *news;
    size_t *running;
    const size_t *found, *done;  // for `progress`
} redox_crew;

// Runs `count` threads, at most REDOX_CREW_MOST. Returns 0, or -1 with an exception set. *abandoned: threads still wait
// for storage that does not answer, and use the work whenever that ends.
int redox_crew_run(const redox_crew *crew, size_t count, PyObject *progress, bool *abandoned);

// Sequences are taken as tuples (PySequence_Tuple): a list may change, or its items go, while Python code runs, which
// any number, buffer or callback may be.

// The core object behind a Python object, borrowed, or NULL with TypeError set.
redox_buffer *redox_buffer_of(PyObject *object);
const redox_tree *redox_tree_of(PyObject *object);
redox_shared *redox_shared_of(PyObject *object);
redox_histogram *redox_histogram_of(PyObject *object);

// A Python Buffer that takes over one reference of `buffer`, which may be NULL. NULL with MemoryError set: then the
// reference is dropped.
PyObject *redox_buffer_new_object(redox_buffer *buffer);
