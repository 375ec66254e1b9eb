// redoxfs.native.Buffer: a Python object that holds one reference of a redox_buffer.
#include <string.h>

#include "python_types.h"

typedef struct {
    PyObject_HEAD
    redox_buffer *buffer;
} buffer_object;

// What Buffer.filled lends to its callback: its views can write. They keep the memory, so a view that outlives the call
// is an error and not a write into freed memory.
typedef struct {
    PyObject_HEAD
    redox_buffer *buffer;
    Py_ssize_t views;
} writable_object;

static PyTypeObject buffer_type;

static void writable_free(PyObject *self) {
    redox_buffer_drop(((writable_object *)self)->buffer);
    Py_TYPE(self)->tp_free(self);
}

static int writable_view(PyObject *self, Py_buffer *view, int flags) {
    writable_object *writable = (writable_object *)self;
    if (PyBuffer_FillInfo(view, self, writable->buffer->data, (Py_ssize_t)writable->buffer->size, 0, flags)) {
        return -1;
    }
    writable->views++;
    return 0;
}

static void writable_release(PyObject *self, Py_buffer *view) {
    (void)view;
    ((writable_object *)self)->views--;
}

static PyBufferProcs writable_views = {.bf_getbuffer = writable_view, .bf_releasebuffer = writable_release};

static PyTypeObject writable_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native._Writable",
    .tp_basicsize = sizeof(writable_object),
    .tp_dealloc = writable_free,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_buffer = &writable_views,
};

// A Buffer object of `type` that takes over a reference, which is dropped on failure.
static PyObject *wrap(PyTypeObject *type, redox_buffer *buffer) {
    if (!buffer) {
        return PyErr_NoMemory();
    }
    buffer_object *self = (buffer_object *)type->tp_alloc(type, 0);
    if (!self) {
        redox_buffer_drop(buffer);
        return NULL;
    }
    self->buffer = buffer;
    return (PyObject *)self;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
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
    return wrap(type, buffer);
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

// Calls fill(view). Returns 0, or -1 with an exception set.
static int call_fill(PyObject *fill, writable_object *writable) {
    PyObject *view = PyMemoryView_FromObject((PyObject *)writable);
    if (!view) {
        return -1;
    }
    PyObject *result = PyObject_CallOneArg(fill, view);
    if (!result) {
        Py_DECREF(view);
        return -1;
    }
    Py_DECREF(result);
    PyObject *released = PyObject_CallMethod(view, "release", NULL);
    Py_DECREF(view);
    if (!released) {
        return -1;
    }
    Py_DECREF(released);
    if (writable->views) {
        PyErr_SetString(PyExc_BufferError, "fill kept a view of the buffer, which must not change after the call");
        return -1;
    }
    return 0;
}

static PyObject *buffer_filled(PyObject *unused, PyObject *const *args, Py_ssize_t count) {
    (void)unused;
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "filled() takes 2 arguments: size and fill (%zd given)", count);
    }
    Py_ssize_t size = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (size < 0) {
        return PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes", size);
    }
    redox_buffer *buffer = redox_buffer_allocate((size_t)size);
    if (!buffer) {
        return PyErr_NoMemory();
    }
    writable_object *writable = PyObject_New(writable_object, &writable_type);
    if (!writable) {
        redox_buffer_drop(buffer);
        return NULL;
    }
    writable->buffer = redox_buffer_take(buffer);
    writable->views = 0;
    int failed = call_fill(args[1], writable);
    Py_DECREF(writable);
    if (failed) {
        redox_buffer_drop(buffer);
        return NULL;
    }
    return wrap(&buffer_type, buffer);
}

static PyObject *buffer_total_bytes(PyObject *unused, PyObject *no_args) {
    (void)unused, (void)no_args;
    return PyLong_FromSize_t(redox_buffer_bytes());
}

static PyMethodDef buffer_methods[] = {
    {"filled", (PyCFunction)(void (*)(void))buffer_filled, METH_FASTCALL | METH_STATIC,
     "A buffer of size bytes that fill writes, through a writable view that ends with the call."},
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

PyObject *redox_buffer_new_object(redox_buffer *buffer) { return wrap(&buffer_type, buffer); }

int redox_add_buffer(PyObject *module) {
    return PyType_Ready(&writable_type) || PyModule_AddType(module, &buffer_type) ? -1 : 0;
}
