// The Python types of the module: one pair of files py_NAME.c for each, over a core NAME.c that knows no Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

// The core object behind a Python object, borrowed, or NULL with TypeError set.
redox_buffer *redox_buffer_of(PyObject *object);
const redox_tree *redox_tree_of(PyObject *object);
redox_shared *redox_shared_of(PyObject *object);
redox_histogram *redox_histogram_of(PyObject *object);

// A Python Buffer that takes over one reference of `buffer`; NULL with MemoryError set (the reference is dropped).
PyObject *redox_buffer_new_object(redox_buffer *buffer);
