// redoxfs.native.Tree: a Python object that holds the arrays of a redox_tree.
#include <limits.h>
#include <stdlib.h>

#include "python_types.h"

enum { COLUMNS = 13 };

typedef struct {
    PyObject_HEAD
    redox_tree tree;
    Py_buffer views[COLUMNS];  // the first `held` are
    int held;
} tree_object;

// In the order of the constructor's arguments.
static const redox_column columns[COLUMNS] = {
    {"names", 1, offsetof(redox_tree, names)},
    {"name_at", 8, offsetof(redox_tree, name_at)},
    {"parent", 4, offsetof(redox_tree, parent)},
    {"first_child", 4, offsetof(redox_tree, first_child)},
    {"children", 4, offsetof(redox_tree, children)},
    {"mode", 4, offsetof(redox_tree, mode)},
    {"nlink", 4, offsetof(redox_tree, nlink)},
    {"uid", 4, offsetof(redox_tree, uid)},
    {"gid", 4, offsetof(redox_tree, gid)},
    {"size", 8, offsetof(redox_tree, size)},
    {"mtime_ns", 8, offsetof(redox_tree, mtime_ns)},
    {"ctime_ns", 8, offsetof(redox_tree, ctime_ns)},
    {"sample_of", 4, offsetof(redox_tree, sample_of)},
};

enum { NAMES = 0, NAME_AT = 1, PARENT = 2 };

static void tree_free(PyObject *object) {
    tree_object *self = (tree_object *)object;
    for (int i = 0; i < self->held; i++) {
        PyBuffer_Release(&self->views[i]);
    }
    free((void *)self->tree.flags);
    Py_TYPE(object)->tp_free(object);
}

int redox_take_views(const redox_column *of, int count, PyObject *const *arrays, int flags, Py_buffer *views, int *held,
                     void *core) {
    for (int i = 0; i < count; i++) {
        Py_buffer *view = &views[i];
        if (PyObject_GetBuffer(arrays[i], view, flags)) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                PyErr_Format(PyExc_ValueError, "%s: not a contiguous array", of[i].name);
            }
            return -1;
        }
        (*held)++;
        if (view->itemsize != of[i].item_bytes) {
            PyErr_Format(PyExc_ValueError, "%s: items of %zd bytes instead of %zd", of[i].name, view->itemsize,
                         of[i].item_bytes);
            return -1;
        }
        if ((uintptr_t)view->buf % (size_t)of[i].item_bytes) {
            PyErr_Format(PyExc_ValueError, "%s: not aligned in memory", of[i].name);
            return -1;
        }
        memcpy((char *)core + of[i].pointer_at, &view->buf, sizeof view->buf);
    }
    return 0;
}

// Checks that the arrays are of one length. Returns 0, or -1 with an exception set.
static int check_lengths(tree_object *self) {
    Py_ssize_t entries = self->views[PARENT].len / columns[PARENT].item_bytes;
    if (entries < 1 || entries > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "parent: %zd entries; a tree has 1 (its root) to %d", entries, INT32_MAX);
        return -1;
    }
    for (int i = 0; i < COLUMNS; i++) {
        Py_ssize_t length = self->views[i].len / columns[i].item_bytes, wanted = entries + (i == NAME_AT);
        if (i != NAMES && length != wanted) {
            PyErr_Format(PyExc_ValueError, "%s: %zd items instead of %zd", columns[i].name, length, wanted);
            return -1;
        }
    }
    self->tree.entries = (size_t)entries;
    self->tree.name_bytes = (size_t)self->views[NAMES].len;
    return 0;
}

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    char *keywords[COLUMNS + 1] = {NULL};
    for (int i = 0; i < COLUMNS; i++) {
        keywords[i] = (char *)columns[i].name;
    }
    PyObject *a[COLUMNS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOOOOOOOO:Tree", keywords, &a[0], &a[1], &a[2], &a[3], &a[4],
                                     &a[5], &a[6], &a[7], &a[8], &a[9], &a[10], &a[11], &a[12])) {
        return NULL;
    }
    tree_object *self = (tree_object *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    if (redox_take_views(columns, COLUMNS, a, PyBUF_ND, self->views, &self->held, &self->tree) || check_lengths(self)) {
        Py_DECREF(self);
        return NULL;
    }
    // No more than the columns have, one byte an entry.
    self->tree.flags = calloc(self->tree.entries, sizeof *self->tree.flags);
    if (!self->tree.flags) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static Py_ssize_t tree_len(PyObject *self) { return (Py_ssize_t)((tree_object *)self)->tree.entries; }

static PyObject *tree_path(PyObject *self, PyObject *number) {
    const redox_tree *tree = &((tree_object *)self)->tree;
    Py_ssize_t entry = PyNumber_AsSsize_t(number, PyExc_IndexError);
    if (entry == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (entry < 0 || (size_t)entry >= tree->entries) {
        return PyErr_Format(PyExc_IndexError, "entry %zd of %zu", entry, tree->entries);
    }
    char path[PATH_MAX];
    size_t length = redox_tree_path(tree, (size_t)entry, path, sizeof path);
    if (!length && entry) {
        return PyErr_Format(PyExc_ValueError, "entry %zd has no path of less than %d bytes", entry, PATH_MAX);
    }
    return PyBytes_FromStringAndSize(path, (Py_ssize_t)length);
}

static PyMethodDef tree_methods[] = {
    {"path", tree_path, METH_O, "The path of an entry, relative to the root."},
    {NULL},
};

static PySequenceMethods tree_sequence = {.sq_length = tree_len};

static PyTypeObject tree_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Tree",
    .tp_doc = "The columns of a redoxfs.dataset.Tree and the samples of its entries. Keeps the arrays alive.",
    .tp_basicsize = sizeof(tree_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = tree_new,
    .tp_dealloc = tree_free,
    .tp_as_sequence = &tree_sequence,
    .tp_methods = tree_methods,
};

const redox_tree *redox_tree_of(PyObject *object) {
    if (!Py_IS_TYPE(object, &tree_type)) {
        return PyErr_Format(PyExc_TypeError, "a Tree, not %s", Py_TYPE(object)->tp_name), NULL;
    }
    return &((tree_object *)object)->tree;
}

int redox_add_tree(PyObject *module) { return PyModule_AddType(module, &tree_type); }
