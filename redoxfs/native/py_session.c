// redoxfs.native.Session: a Python object around a redox_session.
#include <errno.h>

#include "python_types.h"
#include "replies.h"
#include "session.h"

// Events that one call of take returns at most.
enum { EVENTS_AT_ONCE = 64 };

typedef struct {
    PyObject_HEAD
    redox_session *session;
    PyObject *tree;    // whose columns the session reads
    PyObject *shared;  // which it writes to; NULL if there is none
    size_t entries;
    bool taking;
    // What the session has handed over, until take returns it.
    redox_event events[EVENTS_AT_ONCE];
    int taken;
} session_object;

// Appends descriptors to devices[*count].
static bool to_devices(PyObject *clones, int devices[REDOX_DEVICES], unsigned *count) {
    PyObject *sequence = PySequence_Tuple(clones);
    Py_ssize_t more = sequence ? PyTuple_GET_SIZE(sequence) : 0;
    if (more > REDOX_MOST_HELPERS) {
        PyErr_Format(PyExc_ValueError, "clones: %zd are more than %d", more, REDOX_MOST_HELPERS);
        Py_CLEAR(sequence);
    }
    for (Py_ssize_t i = 0; sequence && i < more; i++) {
        int fd = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(sequence, i));
        if (fd < 0) {
            Py_CLEAR(sequence);
        } else {
            devices[(*count)++] = fd;
        }
    }
    bool is_done = sequence;
    Py_XDECREF(sequence);
    return is_done;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"device", "relay", "tree", "max_read", "helpers", "clones", "shared", "blames", NULL};
    int relay, helpers = -1, blames = 0, devices[REDOX_DEVICES];
    long long max_read = -1;
    PyObject *tree, *clones = NULL, *shared = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiO|$LiOOp:Session", names, &devices[0], &relay, &tree, &max_read,
                                     &helpers, &clones, &shared, &blames)) {
        return NULL;
    }
    const redox_tree *columns = redox_tree_of(tree);
    redox_shared *outlives = shared == Py_None ? NULL : redox_shared_of(shared);
    unsigned count = 1;
    if (!columns || (shared != Py_None && !outlives) || (clones && !to_devices(clones, devices, &count))) {
        return NULL;
    }
    if (max_read < 1 || max_read > REDOX_MOST_READ) {
        return PyErr_Format(PyExc_ValueError, "max_read: %lld is not in 1 to %d", max_read, REDOX_MOST_READ);
    }
    if (helpers < 0 || helpers > REDOX_MOST_HELPERS) {
        return PyErr_Format(PyExc_ValueError, "helpers: %d is not in 0 to %d", helpers, REDOX_MOST_HELPERS);
    }
    session_object *self = (session_object *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    redox_session_options options = {
        .devices = devices,
        .devices_count = count,
        .relay = relay,
        .tree = columns,
        .max_read = (uint32_t)max_read,
        .helpers = (unsigned)helpers,
        .shared = outlives,
        .blames = blames,
    };
    self->tree = Py_NewRef(tree);
    self->shared = outlives ? Py_NewRef(shared) : NULL;
    self->entries = columns->entries;
    self->session = redox_session_new(&options);
    if (!self->session) {
        errno == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void session_free(PyObject *object) {
    session_object *self = (session_object *)object;
    if (self->session) {
        // Helpers need no interpreter, so they end without its lock being released.
        redox_session_free(self->session);
    }
    Py_XDECREF(self->tree);
    Py_XDECREF(self->shared);
    Py_TYPE(object)->tp_free(object);
}

static redox_session *core(PyObject *object) { return ((session_object *)object)->session; }

// Arguments. Each sets an exception and returns false if it does not fit.

static bool count_is(const char *method, Py_ssize_t count, Py_ssize_t wanted) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, not %zd", method, wanted, count);
        return false;
    }
    return true;
}

static bool to_unsigned(PyObject *object, uint64_t *number) {
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        return false;
    }
    *number = value;
    return true;
}

static bool to_signed(PyObject *object, int64_t *number) {
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) {
        return false;
    }
    *number = value;
    return true;
}

static bool to_thread(PyObject *object, uint32_t *thread) {
    uint64_t number;
    if (!to_unsigned(object, &number)) {
        return false;
    }
    if (number > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a thread has 32 bits");
        return false;
    }
    *thread = (uint32_t)number;
    return true;
}

static bool to_bool(PyObject *object, bool *value) {
    int truth = PyObject_IsTrue(object);
    *value = truth > 0;
    return truth >= 0;
}

static bool to_entry(PyObject *self, PyObject *object, size_t *entry) {
    int64_t number;
    if (!to_signed(object, &number)) {
        return false;
    }
    size_t entries = ((session_object *)self)->entries;
    if (number < 0 || (uint64_t)number >= entries) {
        PyErr_Format(PyExc_IndexError, "entry %lld of %zu", (long long)number, entries);
        return false;
    }
    *entry = (size_t)number;
    return true;
}

// Calls `act` with each of a sequence of entries.
static PyObject *for_entries(PyObject *self, PyObject *entries, void (*act)(redox_session *, size_t)) {
    PyObject *sequence = PySequence_Tuple(entries);
    if (!sequence) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); i++) {
        size_t entry;
        if (!to_entry(self, PyTuple_GET_ITEM(sequence, i), &entry)) {
            Py_DECREF(sequence);
            return NULL;
        }
        act(core(self), entry);
    }
    Py_DECREF(sequence);
    Py_RETURN_NONE;
}

// Methods

static PyObject *session_fileno(PyObject *self, PyObject *none) {
    (void)none;
    return PyLong_FromLong(redox_session_fd(core(self)));
}

static PyObject *session_watch(PyObject *self, PyObject *file) {
    int fd = PyObject_AsFileDescriptor(file);
    if (fd < 0) {
        return NULL;
    }
    int error = redox_session_watch(core(self), fd);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *event_object(const redox_event *event) {
    PyObject *tuple = PyTuple_New(6);
    if (!tuple) {
        return NULL;
    }
    PyTuple_SET_ITEM(tuple, 0, PyLong_FromLong(event->kind));
    PyTuple_SET_ITEM(tuple, 1, PyLong_FromUnsignedLongLong(event->unique));
    PyTuple_SET_ITEM(tuple, 2, PyLong_FromUnsignedLongLong(event->number));
    PyTuple_SET_ITEM(tuple, 3, PyLong_FromUnsignedLong(event->thread));
    PyTuple_SET_ITEM(tuple, 4, PyLong_FromUnsignedLongLong(event->offset));
    PyTuple_SET_ITEM(tuple, 5, PyLong_FromUnsignedLongLong(event->size));
    if (PyErr_Occurred()) {
        Py_DECREF(tuple);
        return NULL;
    }
    return tuple;
}

static PyObject *session_take(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    session_object *self = (session_object *)object;
    int64_t look_us, wait_ms;
    if (!count_is("take", count, 2) || !to_signed(args[0], &look_us) || !to_signed(args[1], &wait_ms)) {
        return NULL;
    }
    enum { LONGEST_LOOK_US = 1000000, LONGEST_WAIT_MS = 3600000 };
    if (look_us < 0 || look_us > LONGEST_LOOK_US || wait_ms < 0 || wait_ms > LONGEST_WAIT_MS) {
        return PyErr_Format(PyExc_ValueError, "look_us: 0 to %d, wait_ms: 0 to %d", LONGEST_LOOK_US, LONGEST_WAIT_MS);
    }
    if (self->taking) {
        return PyErr_Format(PyExc_RuntimeError, "another thread is in take()");
    }
    // Without memory for them, the last call has left some.
    if (!self->taken) {
        self->taking = true;
        Py_BEGIN_ALLOW_THREADS
        self->taken = redox_session_take(self->session, (uint32_t)look_us, (uint32_t)wait_ms, self->events,
                                         EVENTS_AT_ONCE);
        Py_END_ALLOW_THREADS
        self->taking = false;
    }
    if (self->taken < 0) {
        self->taken = 0;
        errno = redox_session_error(self->session);
        return errno ? PyErr_SetFromErrnoWithFilename(PyExc_OSError, "/dev/fuse") : Py_NewRef(Py_None);
    }
    PyObject *list = PyList_New(self->taken);
    for (int i = 0; list && i < self->taken; i++) {
        PyObject *event = event_object(&self->events[i]);
        if (!event) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, event);
        }
    }
    self->taken = list ? 0 : self->taken;
    return list;
}

static PyObject *session_opened(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    redox_opening opening = {0};
    if (!count_is("opened", count, 8) || !to_unsigned(args[0], &opening.unique) ||
        !to_unsigned(args[1], &opening.inode) || !to_thread(args[2], &opening.thread) ||
        !to_unsigned(args[3], &opening.handle) || !to_signed(args[5], &opening.size) ||
        !to_bool(args[6], &opening.keep_pages) || !to_bool(args[7], &opening.shares_pages)) {
        return NULL;
    }
    if (args[4] != Py_None && !(opening.data = redox_buffer_of(args[4]))) {
        return NULL;
    }
    int error = redox_session_opened(core(self), &opening);
    if (error == ENOMEM) {
        return PyErr_NoMemory();
    }
    if (error == EINVAL) {
        return PyErr_Format(PyExc_ValueError, "handle %llu is in use or out of range, or the session is closed",
                            (unsigned long long)opening.handle);
    }
    return PyBool_FromLong(!error);
}

static PyObject *session_reopened(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    redox_opening opening = {0};
    if (!count_is("reopened", count, 5) || !to_unsigned(args[0], &opening.handle) ||
        !to_unsigned(args[1], &opening.inode) || !to_thread(args[2], &opening.thread) ||
        !to_signed(args[3], &opening.size) || !to_bool(args[4], &opening.shares_pages)) {
        return NULL;
    }
    int error = redox_session_reopened(core(self), &opening);
    if (error) {
        return error == ENOMEM ? PyErr_NoMemory()
                               : PyErr_Format(PyExc_ValueError, "handle %llu is in use or out of range",
                                              (unsigned long long)opening.handle);
    }
    Py_RETURN_NONE;
}

static PyObject *session_answered(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique, handle;
    bool shares_pages;
    if (!count_is("answered", count, 3) || !to_unsigned(args[0], &unique) || !to_unsigned(args[1], &handle) ||
        !to_bool(args[2], &shares_pages)) {
        return NULL;
    }
    redox_session_answered(core(self), unique, handle, shares_pages);
    Py_RETURN_NONE;
}

static PyObject *session_released(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique, handle;
    if (!count_is("released", count, 2) || !to_unsigned(args[0], &unique) || !to_unsigned(args[1], &handle)) {
        return NULL;
    }
    redox_session_released(core(self), unique, handle);
    Py_RETURN_NONE;
}

static PyObject *session_waiting(PyObject *self, PyObject *none) {
    (void)none;
    uint64_t *uniques = PyMem_Malloc(REDOX_SLOTS * sizeof *uniques);
    if (!uniques) {
        return PyErr_NoMemory();
    }
    unsigned count = redox_session_waiting(core(self), uniques);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (unsigned i = 0; list && i < count; i++) {
        PyList_SET_ITEM(list, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(uniques[i]));
    }
    PyMem_Free(uniques);
    if (PyErr_Occurred()) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *session_log_opened(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique, handle;
    if (!count_is("log_opened", count, 2) || !to_unsigned(args[0], &unique) || !to_unsigned(args[1], &handle)) {
        return NULL;
    }
    return PyBool_FromLong(!redox_session_log_opened(core(self), unique, handle));
}

static PyObject *session_polled(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique, events;
    if (!count_is("polled", count, 2) || !to_unsigned(args[0], &unique) || !to_unsigned(args[1], &events)) {
        return NULL;
    }
    redox_session_polled(core(self), unique, (uint32_t)events);
    Py_RETURN_NONE;
}

static PyObject *session_wake(PyObject *self, PyObject *number) {
    uint64_t waiter;
    if (!to_unsigned(number, &waiter)) {
        return NULL;
    }
    redox_session_wake(core(self), waiter);
    Py_RETURN_NONE;
}

static PyObject *session_crashes(PyObject *self, PyObject *number) {
    uint64_t unique;
    if (!to_unsigned(number, &unique)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(redox_session_crashes(core(self), unique));
}

static PyObject *session_deciding(PyObject *self, PyObject *number) {
    uint64_t unique;
    if (!to_unsigned(number, &unique)) {
        return NULL;
    }
    redox_session_deciding(core(self), unique);
    Py_RETURN_NONE;
}

static PyObject *session_stat(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique;
    size_t entry;
    int64_t size;
    bool bound;
    if (!count_is("stat", count, 4) || !to_unsigned(args[0], &unique) || !to_entry(self, args[1], &entry) ||
        !to_signed(args[2], &size) || !to_bool(args[3], &bound)) {
        return NULL;
    }
    redox_session_stat(core(self), unique, entry, size, bound);
    Py_RETURN_NONE;
}

static PyObject *session_data(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique;
    Py_buffer view;
    if (!count_is("data", count, 2) || !to_unsigned(args[0], &unique) ||
        PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE)) {
        return NULL;
    }
    redox_session_data(core(self), unique, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *session_failed(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t unique;
    int64_t error;
    // The kernel takes these as errors.
    enum { LAST_ERRNO = 511 };
    if (!count_is("failed", count, 2) || !to_unsigned(args[0], &unique) || !to_signed(args[1], &error)) {
        return NULL;
    }
    redox_session_failed(core(self), unique, error > 0 && error <= LAST_ERRNO ? (int)error : EIO);
    Py_RETURN_NONE;
}

static PyObject *session_bind(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    size_t entry;
    int64_t size;
    if (!count_is("bind", count, 2) || !to_entry(self, args[0], &entry) || !to_signed(args[1], &size)) {
        return NULL;
    }
    if (size < 0) {
        return PyErr_Format(PyExc_ValueError, "size: %lld is negative", (long long)size);
    }
    return redox_session_bind(core(self), entry, size) ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *session_turned(PyObject *self, PyObject *entries) {
    return for_entries(self, entries, redox_session_turned);
}

static PyObject *session_freed(PyObject *self, PyObject *entries) {
    return for_entries(self, entries, redox_session_freed);
}

static PyObject *session_changed(PyObject *self, PyObject *number) {
    uint64_t inode;
    if (!to_unsigned(number, &inode)) {
        return NULL;
    }
    redox_session_changed(core(self), inode);
    Py_RETURN_NONE;
}

static PyObject *session_ask(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    size_t entry;
    bool asks;
    if (!count_is("ask", count, 2) || !to_entry(self, args[0], &entry) || !to_bool(args[1], &asks)) {
        return NULL;
    }
    redox_session_ask(core(self), entry, asks);
    Py_RETURN_NONE;
}

static PyObject *session_shed(PyObject *self, PyObject *number) {
    size_t entry;
    if (!to_entry(self, number, &entry)) {
        return NULL;
    }
    redox_session_shed(core(self), entry);
    Py_RETURN_NONE;
}

static PyObject *session_sizes_differ(PyObject *self, PyObject *argument) {
    bool differ;
    if (!to_bool(argument, &differ)) {
        return NULL;
    }
    redox_session_sizes_differ(core(self), differ);
    Py_RETURN_NONE;
}

static PyObject *session_void_size(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    size_t entry;
    int64_t settles_ns;
    if (!count_is("void_size", count, 2) || !to_entry(self, args[0], &entry) || !to_signed(args[1], &settles_ns)) {
        return NULL;
    }
    return PyBool_FromLong(redox_session_void_size(core(self), entry, settles_ns));
}

static PyObject *session_unhold(PyObject *self, PyObject *number) {
    int64_t thread;
    if (!to_signed(number, &thread)) {
        return NULL;
    }
    redox_session_unhold(core(self), thread);
    Py_RETURN_NONE;
}

static PyObject *session_counts(PyObject *self, PyObject *none) {
    (void)none;
    redox_session_count counts = redox_session_counts(core(self));
    return Py_BuildValue("{sKsKsKsKsKsKsKsK}", "bytes_served", (unsigned long long)counts.bytes_served, "requests",
                         (unsigned long long)counts.requests, "handles", (unsigned long long)counts.handles, "bound",
                         (unsigned long long)counts.bound, "relayed", (unsigned long long)counts.relayed, "malformed",
                         (unsigned long long)counts.malformed, "not_voided", (unsigned long long)counts.not_voided,
                         "looks", (unsigned long long)counts.looks);
}

static PyObject *session_close(PyObject *object, PyObject *none) {
    (void)none;
    session_object *self = (session_object *)object;
    if (self->taking) {
        return PyErr_Format(PyExc_RuntimeError, "another thread is in take()");
    }
    Py_BEGIN_ALLOW_THREADS
    redox_session_close(self->session);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef session_methods[] = {
    {"fileno", session_fileno, METH_NOARGS, "Readable when take would return or do something."},
    {"watch", session_watch, METH_O, "take also returns when this descriptor is readable."},
    {"take", (PyCFunction)(void (*)(void))session_take, METH_FASTCALL,
     "Receive requests, answer those that need no decision, and return the others; None when the mount is over."},
    {"opened", (PyCFunction)(void (*)(void))session_opened, METH_FASTCALL, "Answer an OPEN."},
    {"reopened", (PyCFunction)(void (*)(void))session_reopened, METH_FASTCALL, "An open file of a former session."},
    {"answered", (PyCFunction)(void (*)(void))session_answered, METH_FASTCALL,
     "Answer an OPEN whose file a former session had opened."},
    {"released", (PyCFunction)(void (*)(void))session_released, METH_FASTCALL, "What a RELEASE asks for is done."},
    {"log_opened", (PyCFunction)(void (*)(void))session_log_opened, METH_FASTCALL, "Answer an OPEN of the access log."},
    {"polled", (PyCFunction)(void (*)(void))session_polled, METH_FASTCALL, "Answer a LOG_POLL."},
    {"wake", session_wake, METH_O, "Wake the program whose LOG_POLL had this number."},
    {"waiting", session_waiting, METH_NOARGS, "The requests that wait to be delivered again."},
    {"crashes", session_crashes, METH_O, "How many sessions crashed while they were at a request."},
    {"deciding", session_deciding, METH_O, "The caller is at this request now; 0: at none."},
    {"stat", (PyCFunction)(void (*)(void))session_stat, METH_FASTCALL, "Answer a STAT."},
    {"data", (PyCFunction)(void (*)(void))session_data, METH_FASTCALL, "Answer a READ."},
    {"failed", (PyCFunction)(void (*)(void))session_failed, METH_FASTCALL, "Answer with an errno."},
    {"bind", (PyCFunction)(void (*)(void))session_bind, METH_FASTCALL, "Bind a file of a group."},
    {"turned", session_turned, METH_O, "Sizes that the kernel got while the files had no answer are void."},
    {"freed", session_freed, METH_O, "Files are not bound any more."},
    {"changed", session_changed, METH_O, "Attributes in the kernel are void."},
    {"ask", (PyCFunction)(void (*)(void))session_ask, METH_FASTCALL, "Whether requests for the entry are relayed."},
    {"shed", session_shed, METH_O, "The handles of an entry let go of their bytes."},
    {"sizes_differ", session_sizes_differ, METH_O, "Whether the size of a bound file depends on who asks."},
    {"void_size", (PyCFunction)(void (*)(void))session_void_size, METH_FASTCALL, "Void the size of a bound file."},
    {"unhold", session_unhold, METH_O, "What a thread opened is no longer known as its own; -1: all threads."},
    {"counts", session_counts, METH_NOARGS, "Counters, and sizes of tables."},
    {"close", session_close, METH_NOARGS, "End the helpers and drop all handles."},
    {NULL},
};

static PyTypeObject session_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Session",
    .tp_doc = "One mounted filesystem, on the kernel's side.",
    .tp_basicsize = sizeof(session_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = session_new,
    .tp_dealloc = session_free,
    .tp_methods = session_methods,
};

int redox_add_session(PyObject *module) {
    if (PyModule_AddType(module, &session_type)) {
        return -1;
    }
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"INIT", REDOX_INIT},
        {"OPEN", REDOX_OPEN},
        {"STAT", REDOX_STAT},
        {"READ", REDOX_READ},
        {"RELEASE", REDOX_RELEASE},
        {"LOG_READ", REDOX_LOG_READ},
        {"LOG_TRY", REDOX_LOG_TRY},
        {"LOG_POLL", REDOX_LOG_POLL},
        {"LOG_RELEASE", REDOX_LOG_RELEASE},
        {"INTERRUPT", REDOX_INTERRUPT},
        {"EVENTS_AT_ONCE", EVENTS_AT_ONCE},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value)) {
            return -1;
        }
    }
    return 0;
}
