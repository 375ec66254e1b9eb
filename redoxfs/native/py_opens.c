// redoxfs.native.Opens: a Python object with a redox_opens, which counts in histograms that are Python objects too.
#include "opens.h"
#include "python_types.h"
#include "times.h"

// A call of `records` returns no more, so that opens do not wait for it.
enum { MOST_RECORDS = 1024, MOST_HISTOGRAMS = 16, MOST_CAPACITY = 1 << 24 };

typedef struct {
    PyObject_HEAD
    redox_opens opens;
    PyObject *slow;  // called with the record of a slow open
    unsigned histograms_count;
    PyObject *histograms[MOST_HISTOGRAMS];
} opens_object;

static PyObject *opens_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"histograms", "capacity", "slow_ns", "slow", NULL};
    PyObject *histograms, *slow;
    long long capacity, slow_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LLO:Opens", names, &PyTuple_Type, &histograms, &capacity,
                                     &slow_ns, &slow)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(histograms);
    if (count > MOST_HISTOGRAMS || capacity < 1 || capacity > MOST_CAPACITY || capacity & (capacity - 1) ||
        slow_ns < 0) {
        return PyErr_Format(PyExc_ValueError, "up to %d histograms, a power of two up to %d, and a time",
                            MOST_HISTOGRAMS, MOST_CAPACITY);
    }
    opens_object *self = (opens_object *)type->tp_alloc(type, 0);
    for (Py_ssize_t i = 0; self && i < count; i++) {
        PyObject *histogram = PyTuple_GET_ITEM(histograms, i);
        if (!redox_histogram_of(histogram)) {
            Py_CLEAR(self);
        } else {
            self->histograms[self->histograms_count++] = Py_NewRef(histogram);
        }
    }
    if (self) {
        self->slow = Py_NewRef(slow);
        self->opens = (redox_opens){.mask = (uint64_t)capacity - 1, .slow_ns = slow_ns ? slow_ns : INT64_MAX};
        redox_opens_read_by(&self->opens, NULL);
    }
    return (PyObject *)self;
}

static void opens_free(PyObject *object) {
    opens_object *self = (opens_object *)object;
    PyMem_Free(self->opens.ring);
    Py_XDECREF(self->slow);
    for (unsigned i = 0; i < self->histograms_count; i++) {
        Py_DECREF(self->histograms[i]);
    }
    Py_TYPE(object)->tp_free(object);
}

static PyObject *record_object(const redox_open_record *record) {
    return Py_BuildValue("(LLKiIIi)", (long long)record->at_ns, (long long)record->took_ns,
                         (unsigned long long)record->inode, (int)record->sample, (unsigned)record->thread,
                         (unsigned)record->outcome, (int)record->error);
}

// What only some opens cost. The open has its reply, so an error of `slow` is reported and goes no further.
static void note(opens_object *self, redox_open_record *record) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    record->at_ns = redox_time_ns(now.tv_sec, now.tv_nsec);
    redox_opens_record(&self->opens, record);
    if (record->took_ns < self->opens.slow_ns) {
        return;
    }
    PyObject *told = record_object(record);
    PyObject *result = told ? PyObject_CallOneArg(self->slow, told) : NULL;
    if (!result) {
        PyErr_WriteUnraisable(self->slow);
    }
    Py_XDECREF(told);
    Py_XDECREF(result);
}

static PyObject *opens_done(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    opens_object *self = (opens_object *)object;
    if (count != 6) {
        return PyErr_Format(PyExc_TypeError, "done() takes 6 positional arguments, not %zd", count);
    }
    unsigned long long inode = PyLong_AsUnsignedLongLong(args[2]);
    long long outcome = PyLong_AsLongLong(args[0]), received_ns = PyLong_AsLongLong(args[1]);
    long long thread = PyLong_AsLongLong(args[3]), sample = PyLong_AsLongLong(args[4]);
    long long error = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (outcome < 0 || outcome >= self->histograms_count) {
        return PyErr_Format(PyExc_IndexError, "outcome %lld of %u", outcome, self->histograms_count);
    }
    int64_t took_ns = redox_now_ns() - received_ns;
    took_ns = took_ns > 0 ? took_ns : 0;
    redox_histogram_record(redox_histogram_of(self->histograms[outcome]), took_ns);
    if (took_ns >= self->opens.least_ns) {
        redox_open_record record = {
            .took_ns = took_ns,
            .inode = inode,
            .sample = (int32_t)sample,
            .thread = (uint32_t)thread,
            .outcome = (uint32_t)outcome,
            .error = (int32_t)error,
        };
        note(self, &record);
    }
    Py_RETURN_NONE;
}

static PyObject *opens_start(PyObject *object, PyObject *none) {
    (void)none;
    redox_opens *opens = &((opens_object *)object)->opens;
    if (!opens->ring) {
        redox_open_record *ring = PyMem_Malloc((opens->mask + 1) * sizeof *ring);
        if (!ring) {
            return PyErr_NoMemory();
        }
        redox_opens_read_by(opens, ring);
    }
    Py_RETURN_NONE;
}

static PyObject *opens_stop(PyObject *object, PyObject *none) {
    (void)none;
    redox_opens *opens = &((opens_object *)object)->opens;
    PyMem_Free(opens->ring);
    redox_opens_read_by(opens, NULL);
    Py_RETURN_NONE;
}

static PyObject *opens_records(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    const redox_opens *opens = &((opens_object *)object)->opens;
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "records() takes 2 positional arguments, not %zd", count);
    }
    unsigned long long after = PyLong_AsUnsignedLongLong(args[0]);
    long long most = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!opens->ring || after > opens->position || most < 0) {
        return PyErr_Format(PyExc_ValueError, "position %llu of %llu", after, (unsigned long long)opens->position);
    }
    uint64_t from = redox_opens_oldest(opens, after), left = opens->position - from;
    most = most < MOST_RECORDS ? most : MOST_RECORDS;
    Py_ssize_t size = left < (uint64_t)most ? (Py_ssize_t)left : (Py_ssize_t)most;
    PyObject *list = PyList_New(size);
    for (Py_ssize_t i = 0; list && i < size; i++) {
        PyObject *record = record_object(&opens->ring[(from + (uint64_t)i) & opens->mask]);
        if (!record) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, record);
        }
    }
    return list ? Py_BuildValue("(KN)", (unsigned long long)(from - after), list) : NULL;
}

static PyObject *opens_position(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(((opens_object *)object)->opens.position);
}

static PyObject *opens_records_now(PyObject *object, void *none) {
    (void)none;
    return PyBool_FromLong(((opens_object *)object)->opens.ring != NULL);
}

static PyMethodDef opens_methods[] = {
    {"done", (PyCFunction)(void (*)(void))opens_done, METH_FASTCALL, "An open has its reply."},
    {"start", opens_start, METH_NOARGS, "Record opens from now on."},
    {"stop", opens_stop, METH_NOARGS, "Record no more, and free the memory of records."},
    {"records", (PyCFunction)(void (*)(void))opens_records, METH_FASTCALL, "Records after a position."},
    {NULL},
};

static PyGetSetDef opens_attributes[] = {
    {"position", opens_position, NULL, "How many opens were recorded so far.", NULL},
    {"is_recording", opens_records_now, NULL, "Whether opens are recorded.", NULL},
    {NULL},
};

static PyTypeObject opens_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Opens",
    .tp_doc = "How long opens took, and records of them.",
    .tp_basicsize = sizeof(opens_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = opens_new,
    .tp_dealloc = opens_free,
    .tp_methods = opens_methods,
    .tp_getset = opens_attributes,
};

int redox_add_opens(PyObject *module) { return PyModule_AddType(module, &opens_type); }
