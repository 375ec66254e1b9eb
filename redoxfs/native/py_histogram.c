// redoxfs.native.Histogram: a Python object with a redox_histogram.
#include "histogram.h"
#include "python_types.h"
#include "times.h"

typedef struct {
    PyObject_HEAD
    redox_histogram histogram;
} histogram_object;

static redox_histogram *core(PyObject *object) { return &((histogram_object *)object)->histogram; }

static PyObject *histogram_record(PyObject *self, PyObject *number) {
    long long ns = PyLong_AsLongLong(number);
    if (ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    redox_histogram_record(core(self), ns);
    Py_RETURN_NONE;
}

static PyObject *histogram_since(PyObject *self, PyObject *number) {
    long long began_ns = PyLong_AsLongLong(number);
    if (began_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    redox_histogram_record(core(self), redox_now_ns() - began_ns);
    Py_RETURN_NONE;
}

static PyObject *histogram_sum_ns(PyObject *self, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(core(self)->sum_ns);
}

static PyObject *histogram_counts(PyObject *self, PyObject *none) {
    (void)none;
    PyObject *list = PyList_New(REDOX_BUCKETS);
    for (unsigned i = 0; list && i < REDOX_BUCKETS; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(core(self)->counts[i]);
        if (!count) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, count);
        }
    }
    return list;
}

static PyObject *histogram_bounds_ns(PyObject *self, PyObject *none) {
    (void)self;
    (void)none;
    PyObject *list = PyList_New(REDOX_BUCKETS - 1);
    for (unsigned i = 0; list && i < REDOX_BUCKETS - 1; i++) {
        PyObject *bound = PyLong_FromUnsignedLongLong(redox_bound_of(i));
        if (!bound) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, bound);
        }
    }
    return list;
}

static PyMethodDef histogram_methods[] = {
    {"record", histogram_record, METH_O, "Count a time in ns."},
    {"since", histogram_since, METH_O, "Count the time since a moment of the monotonic clock, in ns."},
    {"counts", histogram_counts, METH_NOARGS, "How many times lie in each bucket."},
    {"bounds_ns", histogram_bounds_ns, METH_NOARGS | METH_STATIC, "The upper bound of each bucket but the last."},
    {NULL},
};

static PyGetSetDef histogram_attributes[] = {
    {"sum_ns", histogram_sum_ns, NULL, "All times together.", NULL},
    {NULL},
};

static PyTypeObject histogram_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Histogram",
    .tp_doc = "How long something took.",
    .tp_basicsize = sizeof(histogram_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = histogram_methods,
    .tp_getset = histogram_attributes,
};

redox_histogram *redox_histogram_of(PyObject *object) {
    if (!Py_IS_TYPE(object, &histogram_type)) {
        PyErr_Format(PyExc_TypeError, "a Histogram is needed, not a %s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    return core(object);
}

int redox_add_histogram(PyObject *module) { return PyModule_AddType(module, &histogram_type); }
