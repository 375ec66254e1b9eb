// redoxfs.native.Reader, and its sources Files and Shards.
//
// The threads of the pool never touch Python. Results become Python objects in `take`. A read keeps its source until it
// is taken; a read that storage holds when the reader is closed keeps its source for ever.
#include <stdlib.h>

#include "python_types.h"
#include "reader.h"
#include "sources.h"

// Sources

// What results are made of: subclasses of tuple, for (size, mtime_ns, inode) and (data, stamp, changed).
typedef struct {
    PyTypeObject *stamp, *file;
} result_types;

typedef struct {
    PyObject_HEAD
    PyObject *tree;
    result_types types;
} source_object;

typedef struct {
    source_object base;
    redox_files files;
} files_object;

enum { COLUMNS = 6 };

typedef struct {
    source_object base;
    redox_shards shards;
    Py_buffer views[COLUMNS];  // the first `held` are
    int held;
} shards_object;

static PyTypeObject files_type, shards_type;

// The source behind a Python object, and the number of entries of its tree; NULL with TypeError set.
static const redox_source *source_of(PyObject *object, size_t *entries) {
    if (Py_IS_TYPE(object, &files_type)) {
        const redox_files *files = &((files_object *)object)->files;
        *entries = files->tree->entries;
        return &files->source;
    }
    if (Py_IS_TYPE(object, &shards_type)) {
        const redox_shards *shards = &((shards_object *)object)->shards;
        *entries = shards->tree->entries;
        return &shards->source;
    }
    return PyErr_Format(PyExc_TypeError, "Files or Shards, not %s", Py_TYPE(object)->tp_name), NULL;
}

// A read of a sequence of entries; NULL with an exception set.
static redox_read *new_read(PyObject *source_object, PyObject *sequence) {
    size_t tree_entries;
    const redox_source *source = source_of(source_object, &tree_entries);
    PyObject *entries = source ? PySequence_Tuple(sequence) : NULL;
    if (!entries) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    redox_read *read = redox_read_new(source, (size_t)count);
    if (!read) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; read && i < count; i++) {
        Py_ssize_t entry = PyNumber_AsSsize_t(PyTuple_GET_ITEM(entries, i), PyExc_IndexError);
        if (entry < 0 || (size_t)entry >= tree_entries) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_IndexError, "entry %zd of %zu", entry, tree_entries);
            }
            redox_read_free(read);
            read = NULL;
        } else {
            read->entries[i] = (int32_t)entry;
        }
    }
    Py_DECREF(entries);
    return read;
}

// A tuple of `type` that takes over three references; NULL with an exception set, if one of them is NULL too.
static PyObject *make(PyTypeObject *type, PyObject *first, PyObject *second, PyObject *third) {
    PyObject *made = first && second && third ? type->tp_alloc(type, 3) : NULL;
    if (!made) {
        Py_XDECREF(first), Py_XDECREF(second), Py_XDECREF(third);
        return NULL;
    }
    PyTuple_SET_ITEM(made, 0, first);
    PyTuple_SET_ITEM(made, 1, second);
    PyTuple_SET_ITEM(made, 2, third);
    return made;
}

static PyObject *result_of(const result_types *types, redox_file *file) {
    if (file->fault == REDOX_NARROWED) {
        return Py_BuildValue("(iiIII)", file->error, (int)file->fault, file->mode, file->uid, file->gid);
    }
    if (!file->buffer) {
        return Py_BuildValue("(ii)", file->error, (int)file->fault);
    }
    PyObject *size = PyLong_FromSize_t(file->grown_bytes ? (size_t)file->grown_bytes : file->buffer->size);
    PyObject *mtime_ns = PyLong_FromLongLong(file->mtime_ns), *inode = PyLong_FromUnsignedLongLong(file->inode);
    PyObject *stamp = make(types->stamp, size, mtime_ns, inode);
    if (!stamp) {
        return NULL;
    }
    // The object takes over the reference, also if it cannot be made.
    PyObject *data = redox_buffer_new_object(file->buffer);
    file->buffer = NULL;
    return make(types->file, data, stamp, PyBool_FromLong(file->changed));
}

// The results of a read that is done: a tuple. NULL with an exception set.
static PyObject *results_of(PyObject *source, redox_read *read) {
    PyObject *results = PyTuple_New((Py_ssize_t)read->count);
    for (size_t i = 0; results && i < read->count; i++) {
        PyObject *result = result_of(&((source_object *)source)->types, &read->files[i]);
        if (result) {
            PyTuple_SET_ITEM(results, (Py_ssize_t)i, result);
        } else {
            Py_CLEAR(results);
        }
    }
    return results;
}

// Reads in this thread.
static PyObject *source_read(PyObject *self, PyObject *entries) {
    static const atomic_bool never;
    redox_read *read = new_read(self, entries);
    if (!read) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    read->source->read(read->source, read->entries, read->count, read->files, &never);
    Py_END_ALLOW_THREADS
    PyObject *results = results_of(self, read);
    redox_read_free(read);
    return results;
}

static PyMethodDef source_methods[] = {
    {"read", source_read, METH_O, "Read files in this thread, without the interpreter's lock."},
    {NULL},
};

static bool is_plain_tuple(PyTypeObject *type) {
    return PyType_IsSubtype(type, &PyTuple_Type) && type->tp_basicsize == PyTuple_Type.tp_basicsize;
}

// A new source of `type` over a tree; NULL with an exception set.
static source_object *new_source(PyTypeObject *type, PyObject *tree, result_types types) {
    if (!is_plain_tuple(types.stamp) || !is_plain_tuple(types.file)) {
        return PyErr_SetString(PyExc_TypeError, "stamp and file must be NamedTuples"), NULL;
    }
    source_object *self = redox_tree_of(tree) ? (source_object *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        self->tree = Py_NewRef(tree);
        self->types.stamp = (PyTypeObject *)Py_NewRef(types.stamp);
        self->types.file = (PyTypeObject *)Py_NewRef(types.file);
    }
    return self;
}

static void source_free(PyObject *object) {
    source_object *self = (source_object *)object;
    Py_DECREF(self->tree);
    Py_DECREF(self->types.stamp);
    Py_DECREF(self->types.file);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *files_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"tree", "root", "stamp", "file", "guards", NULL};
    PyObject *tree;
    int root, guards;
    result_types types;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oi$O!O!p:Files", keywords, &tree, &root, &PyType_Type, &types.stamp,
                                     &PyType_Type, &types.file, &guards)) {
        return NULL;
    }
    files_object *self = (files_object *)new_source(type, tree, types);
    if (self) {
        redox_files_init(&self->files, redox_tree_of(tree), root);
        self->files.guards = guards;
    }
    return (PyObject *)self;
}

static PyTypeObject files_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Files",
    .tp_doc = "Files of a tree under a directory descriptor, which stays the caller's. A source for Reader.",
    .tp_basicsize = sizeof(files_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = files_new,
    .tp_dealloc = source_free,
    .tp_methods = source_methods,
};

// Takes a view of an array of items of `item_bytes`: `wanted` of them, or any number (-1). Returns its items, or NULL
// with an exception set.
static const void *take_column(shards_object *self, PyObject *array, const char *name, Py_ssize_t item_bytes,
                               Py_ssize_t wanted, size_t *length) {
    Py_buffer *view = &self->views[self->held];
    if (PyObject_GetBuffer(array, view, PyBUF_ND)) {
        return NULL;
    }
    self->held++;
    Py_ssize_t items = view->len / item_bytes;
    if (view->itemsize != item_bytes || (uintptr_t)view->buf % (size_t)item_bytes) {
        return PyErr_Format(PyExc_ValueError, "%s: not aligned items of %zd bytes", name, item_bytes), NULL;
    }
    if (wanted >= 0 && items != wanted) {
        return PyErr_Format(PyExc_ValueError, "%s: %zd items instead of %zd", name, items, wanted), NULL;
    }
    *length = (size_t)items;
    return view->buf;
}

static PyObject *shards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"tree",  "shards", "shard_of", "data_at", "sums", "block_at",
                               "stamp", "file",   "versions", "guards",  NULL};
    PyObject *tree_object, *fds, *shard_of, *data_at, *sums, *block_at, *versions;
    result_types types;
    int guards;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$OOOOOO!O!Op:Shards", keywords, &tree_object, &fds, &shard_of,
                                     &data_at, &sums, &block_at, &PyType_Type, &types.stamp, &PyType_Type,
                                     &types.file, &versions, &guards)) {
        return NULL;
    }
    shards_object *self = (shards_object *)new_source(type, tree_object, types);
    if (!self) {
        return NULL;
    }
    redox_shards *shards = &self->shards;
    shards->tree = redox_tree_of(tree_object);
    Py_ssize_t entries = (Py_ssize_t)shards->tree->entries;
    size_t length;
    if (!(shards->fds = take_column(self, fds, "shards", 4, -1, &shards->shards)) ||
        !(shards->shard_of = take_column(self, shard_of, "shard_of", 4, entries, &length)) ||
        !(shards->data_at = take_column(self, data_at, "data_at", 8, entries, &length)) ||
        !(shards->sums = take_column(self, sums, "sums", 8, -1, &shards->sum_count)) ||
        !(shards->block_at = take_column(self, block_at, "block_at", 8, entries, &length)) ||
        (versions != Py_None && !(shards->versions = take_column(self, versions, "versions", 8,
                                                                 3 * (Py_ssize_t)shards->shards, &length)))) {
        Py_DECREF(self);
        return NULL;
    }
    shards->guards = guards;
    redox_shards_init(shards);
    return (PyObject *)self;
}

static void shards_free(PyObject *object) {
    shards_object *self = (shards_object *)object;
    for (int i = 0; i < self->held; i++) {
        PyBuffer_Release(&self->views[i]);
    }
    source_free(object);
}

// Takes views of a sequence of buffers. Returns the views, whose number is in *count, or NULL with an exception set.
static Py_buffer *take_views(PyObject *sequence, Py_ssize_t *count) {
    PyObject *items = PySequence_Tuple(sequence);
    if (!items) {
        return NULL;
    }
    Py_ssize_t wanted = PyTuple_GET_SIZE(items);
    Py_buffer *views = PyMem_Calloc((size_t)wanted + 1, sizeof *views);
    if (!views) {
        PyErr_NoMemory();
    }
    for (*count = 0; views && *count < wanted; ++*count) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(items, *count), &views[*count], PyBUF_SIMPLE)) {
            while (*count) {
                PyBuffer_Release(&views[--*count]);
            }
            PyMem_Free(views);
            views = NULL;
        }
    }
    Py_DECREF(items);
    return views;
}

static PyObject *shards_scatter(PyObject *self, PyObject *const *args, Py_ssize_t arguments) {
    if (arguments != 2) {
        return PyErr_Format(PyExc_TypeError, "scatter() takes 2 arguments: entries and pieces (%zd given)", arguments);
    }
    redox_read *read = new_read(self, args[0]);
    Py_ssize_t count = 0;
    Py_buffer *views = read ? take_views(args[1], &count) : NULL;
    struct iovec *pieces = views ? PyMem_Calloc((size_t)count + 1, sizeof *pieces) : NULL;
    PyObject *results = NULL;
    if (pieces) {
        for (Py_ssize_t i = 0; i < count; i++) {
            pieces[i] = (struct iovec){views[i].buf, (size_t)views[i].len};
        }
        Py_BEGIN_ALLOW_THREADS
        redox_shards_scatter(&((shards_object *)self)->shards, read->entries, read->count, read->files, pieces,
                             (size_t)count);
        Py_END_ALLOW_THREADS
        results = results_of(self, read);
    } else if (views) {
        PyErr_NoMemory();
    }
    PyMem_Free(pieces);
    for (Py_ssize_t i = 0; views && i < count; i++) {
        PyBuffer_Release(&views[i]);
    }
    PyMem_Free(views);
    redox_read_free(read);
    return results;
}

static PyMethodDef shards_methods[] = {
    {"read", source_read, METH_O, "Read files in this thread, without the interpreter's lock."},
    {"scatter", (PyCFunction)(void (*)(void))shards_scatter, METH_FASTCALL,
     "Make files of bytes that are in memory already, without the interpreter's lock."},
    {NULL},
};

static PyTypeObject shards_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Shards",
    .tp_doc = "Files in packed shards. A source for Reader.",
    .tp_basicsize = sizeof(shards_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = shards_new,
    .tp_dealloc = shards_free,
    .tp_methods = shards_methods,
};

// The reader

typedef struct {
    PyObject_HEAD
    redox_pool *pool;  // NULL once it is closed
    PyObject *reads;   // token: the address of its read. Keeps the tokens
} reader_object;

static redox_pool *pool_of(PyObject *self) {
    redox_pool *pool = ((reader_object *)self)->pool;
    if (!pool) {
        PyErr_SetString(PyExc_ValueError, "the reader is closed");
    }
    return pool;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"threads", NULL};
    unsigned threads;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I:Reader", keywords, &threads)) {
        return NULL;
    }
    reader_object *self = (reader_object *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->reads = PyDict_New();
    if (self->reads && !(self->pool = redox_pool_new(threads))) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!self->pool) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *reader_fileno(PyObject *self, PyObject *no_args) {
    (void)no_args;
    redox_pool *pool = pool_of(self);
    return pool ? PyLong_FromLong(redox_pool_fd(pool)) : NULL;
}

// The read of a token, or NULL; an exception is set only if the token cannot be looked up.
static redox_read *read_of(PyObject *self, PyObject *token) {
    PyObject *address = PyDict_GetItemWithError(((reader_object *)self)->reads, token);
    return address ? PyLong_AsVoidPtr(address) : NULL;
}

// Ends a read: frees it, and lets go of its source and token.
static void end_read(PyObject *self, redox_read *read) {
    if (PyDict_DelItem(((reader_object *)self)->reads, read->token)) {
        PyErr_Clear();
    }
    Py_DECREF((PyObject *)read->keeper);
    redox_read_free(read);
}

// A read for a pair (token, entries), known by its token; NULL with an exception set.
static redox_read *prepare(PyObject *self, PyObject *source, PyObject *pair) {
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        return PyErr_SetString(PyExc_TypeError, "a read is a pair of a token and entries"), NULL;
    }
    PyObject *token = PyTuple_GET_ITEM(pair, 0);
    redox_read *read = new_read(source, PyTuple_GET_ITEM(pair, 1));
    if (!read) {
        return NULL;
    }
    PyObject *address = PyLong_FromVoidPtr(read);
    PyObject *known = address ? PyDict_SetDefault(((reader_object *)self)->reads, token, address) : NULL;
    if (known && known != address) {
        PyErr_SetString(PyExc_ValueError, "a read with this token is under way");
        known = NULL;
    }
    Py_XDECREF(address);
    if (!known) {
        redox_read_free(read);
        return NULL;
    }
    read->token = token;
    read->keeper = Py_NewRef(source);
    return read;
}

static PyObject *reader_submit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    redox_pool *pool = pool_of(self);
    if (!pool) {
        return NULL;
    }
    if (count != 3) {
        return PyErr_Format(PyExc_TypeError, "submit() takes 3 arguments: source, reads, awaited (%zd given)", count);
    }
    int awaited = PyObject_IsTrue(args[2]);
    PyObject *pairs = awaited < 0 ? NULL : PySequence_Tuple(args[1]);
    if (!pairs) {
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(pairs), ready = 0;
    redox_read **reads = PyMem_New(redox_read *, length + 1);
    if (!reads) {
        PyErr_NoMemory();
    }
    while (reads && ready < length && (reads[ready] = prepare(self, args[0], PyTuple_GET_ITEM(pairs, ready)))) {
        ready++;
    }
    if (reads && ready == length) {
        redox_pool_submit(pool, reads, (size_t)length, awaited);
    } else {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        while (ready) {
            end_read(self, reads[--ready]);
        }
        PyErr_Restore(type, value, traceback);
    }
    PyMem_Free(reads);
    Py_DECREF(pairs);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *reader_hasten(PyObject *self, PyObject *token) {
    redox_pool *pool = pool_of(self);
    redox_read *read = pool ? read_of(self, token) : NULL;
    if (read) {
        redox_pool_hasten(pool, read);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *reader_cancel(PyObject *self, PyObject *token) {
    redox_pool *pool = pool_of(self);
    redox_read *read = pool ? read_of(self, token) : NULL;
    if (PyErr_Occurred()) {
        return NULL;
    }
    bool cancelled = read && redox_pool_cancel(pool, read);
    if (cancelled) {
        end_read(self, read);
    }
    return PyBool_FromLong(cancelled);
}

static PyObject *reader_take(PyObject *self, PyObject *number) {
    redox_pool *pool = pool_of(self);
    Py_ssize_t most = pool ? PyNumber_AsSsize_t(number, NULL) : -1;
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    redox_read *read;
    // One by one: if there is no memory for a result, the others stay where they are.
    while (list && PyList_GET_SIZE(list) < most && redox_pool_take(pool, &read, 1)) {
        PyObject *results = results_of(read->keeper, read);
        PyObject *pair = results ? PyTuple_Pack(2, (PyObject *)read->token, results) : NULL;
        Py_XDECREF(results);
        if (!pair || PyList_Append(list, pair)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
        end_read(self, read);
    }
    return list;
}

static PyObject *reader_set_threads(PyObject *self, PyObject *number) {
    redox_pool *pool = pool_of(self);
    unsigned long threads = pool ? PyLong_AsUnsignedLong(number) : 0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    redox_pool_set_threads(pool, threads > UINT_MAX ? UINT_MAX : (unsigned)threads);
    Py_RETURN_NONE;
}

static PyObject *reader_counts(PyObject *self, PyObject *no_args) {
    (void)no_args;
    redox_pool *pool = pool_of(self);
    if (!pool) {
        return NULL;
    }
    redox_pool_counts counts = redox_pool_count(pool);
    return Py_BuildValue("{snsnsnsnsnsnsK}", "queued", (Py_ssize_t)counts.queued, "running", (Py_ssize_t)counts.running,
                         "done", (Py_ssize_t)counts.done, "reads", (Py_ssize_t)counts.reads, "amount",
                         (Py_ssize_t)counts.files, "threads", (Py_ssize_t)counts.threads, "read_ns",
                         (unsigned long long)counts.read_ns);
}

static void close_pool(reader_object *self, double wait_s) {
    redox_pool *pool = self->pool;
    self->pool = NULL;
    redox_read *rest;
    Py_BEGIN_ALLOW_THREADS
    rest = redox_pool_close(pool, wait_s);
    Py_END_ALLOW_THREADS
    while (rest) {
        redox_read *next = rest->next;
        end_read((PyObject *)self, rest);
        rest = next;
    }
    PyDict_Clear(self->reads);
}

static PyObject *reader_close(PyObject *self, PyObject *number) {
    double wait_s = PyFloat_AsDouble(number);
    if (wait_s == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!(wait_s >= 0 && wait_s <= 1e6)) {
        return PyErr_SetString(PyExc_ValueError, "wait_s must be from 0 to 1e6"), NULL;
    }
    if (((reader_object *)self)->pool) {
        close_pool((reader_object *)self, wait_s);
    }
    Py_RETURN_NONE;
}

static void reader_free(PyObject *object) {
    reader_object *self = (reader_object *)object;
    if (self->pool) {
        close_pool(self, 0);
    }
    Py_XDECREF(self->reads);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef reader_methods[] = {
    {"fileno", reader_fileno, METH_NOARGS, "An eventfd that is readable while take has something to return."},
    {"submit", (PyCFunction)(void (*)(void))reader_submit, METH_FASTCALL, "Queue reads of a source."},
    {"hasten", reader_hasten, METH_O, "A request waits for this read."},
    {"cancel", reader_cancel, METH_O, "Drop a read that has not begun; False if it has."},
    {"take", reader_take, METH_O, "Completed reads, those that are waited for first."},
    {"set_threads", reader_set_threads, METH_O, "How many reads may be in flight from now on."},
    {"counts", reader_counts, METH_NOARGS, "Numbers of reads, and their time."},
    {"close", reader_close, METH_O, "End the threads."},
    {NULL},
};

static PyTypeObject reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Reader",
    .tp_doc = "A pool of threads that carry out reads.",
    .tp_basicsize = sizeof(reader_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = reader_new,
    .tp_dealloc = reader_free,
    .tp_methods = reader_methods,
};

static int add_faults(PyObject *module) {
    return PyModule_AddIntConstant(module, "FAILED", REDOX_FAILED) ||
           PyModule_AddIntConstant(module, "NOT_REGULAR", REDOX_NOT_REGULAR) ||
           PyModule_AddIntConstant(module, "CHANGED", REDOX_CHANGED) ||
           PyModule_AddIntConstant(module, "NARROWED", REDOX_NARROWED) ||
           PyModule_AddIntConstant(module, "WRONG_SUM", REDOX_WRONG_SUM) ||
           PyModule_AddIntConstant(module, "ELSEWHERE", REDOX_ELSEWHERE);
}

int redox_add_reader(PyObject *module) {
    return PyModule_AddType(module, &files_type) || PyModule_AddType(module, &shards_type) ||
                   PyModule_AddType(module, &reader_type) || add_faults(module)
               ? -1
               : 0;
}
