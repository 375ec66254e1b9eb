// redoxfs.native.Buffer: a Python object that holds one reference of a redox_buffer.
#include <string.h>

#include "python_types.h"

typedef struct {
    PyObject_HEAD
    redox_buffer *buffer;
} buffer_object;

static PyTypeObject buffer_type;

PyObject *redox_buffer_new_object(redox_buffer *buffer) {
    if (!buffer) {
        return PyErr_NoMemory();
    }
    buffer_object *self = (buffer_object *)buffer_type.tp_alloc(&buffer_type, 0);
    if (!self) {
        redox_buffer_drop(buffer);
        return NULL;
    }
    self->buffer = buffer;
    return (PyObject *)self;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type;
    static char *keywords[] = {"data", NULL};
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*:Buffer", keywords, &view)) {
        return NULL;
    }
    redox_buffer *buffer = redox_buffer_allocate((size_t)view.len);
    if (buffer) {
        memcpy(buffer->data, view.buf, (size_t)view.len);
    }
    PyBuffer_Release(&view);
    return redox_buffer_new_object(buffer);
}

static void buffer_free(PyObject *self) {
    redox_buffer_drop(((buffer_object *)self)->buffer);
    Py_TYPE(self)->tp_free(self);
}

static int buffer_view(PyObject *self, Py_buffer *view, int flags) {
    redox_buffer *buffer = ((buffer_object *)self)->buffer;
    return PyBuffer_FillInfo(view, self, buffer->data, (Py_ssize_t)buffer->size, 1, flags);
}

static Py_ssize_t buffer_len(PyObject *self) { return (Py_ssize_t)((buffer_object *)self)->buffer->size; }

static PyObject *buffer_total_bytes(PyObject *unused, PyObject *no_args) {
    (void)unused, (void)no_args;
    return PyLong_FromSize_t(redox_buffer_bytes());
}

static PyMethodDef buffer_methods[] = {
    {"total_bytes", buffer_total_bytes, METH_NOARGS | METH_STATIC, "The bytes of all buffers of the process."},
    {NULL},
};

static PyBufferProcs buffer_views = {.bf_getbuffer = buffer_view};
static PySequenceMethods buffer_sequence = {.sq_length = buffer_len};

static PyTypeObject buffer_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Buffer",
    .tp_doc = "The bytes of one file. Supports the buffer protocol, read-only; len() is its size in bytes.",
    .tp_basicsize = sizeof(buffer_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = buffer_new,
    .tp_dealloc = buffer_free,
    .tp_as_buffer = &buffer_views,
    .tp_as_sequence = &buffer_sequence,
    .tp_methods = buffer_methods,
};

redox_buffer *redox_buffer_of(PyObject *object) {
    if (!Py_IS_TYPE(object, &buffer_type)) {
        return PyErr_Format(PyExc_TypeError, "a Buffer, not %s", Py_TYPE(object)->tp_name), NULL;
    }
    return ((buffer_object *)object)->buffer;
}

int redox_add_buffer(PyObject *module) { return PyModule_AddType(module, &buffer_type); }
