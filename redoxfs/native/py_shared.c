// redoxfs.native.Shared: a Python object around a redox_shared.
#include <errno.h>

#include "python_types.h"
#include "shared.h"

typedef struct {
    PyObject_HEAD
    redox_shared shared;
} shared_object;

static PyObject *shared_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "entries", "checkpoint_bytes", NULL};
    int fd;
    unsigned long long entries = 1 << 16, checkpoint_bytes = 1 << 20;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|KK:Shared", names, &fd, &entries, &checkpoint_bytes)) {
        return NULL;
    }
    if (!entries || entries & (entries - 1) || entries >= UINT32_MAX || checkpoint_bytes >= UINT64_C(1) << 40) {
        return PyErr_Format(PyExc_ValueError, "entries: a power of two; checkpoint_bytes: less than 2^40");
    }
    shared_object *self = (shared_object *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    uint32_t layout;
    int error = redox_shared_open(&self->shared, fd, entries, checkpoint_bytes, &layout);
    if (!error) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    if (error == EPROTO) {
        return PyErr_Format(PyExc_ValueError, "the shared memory has layout %u, and this redoxfs reads layout %d", layout,
                            REDOX_LAYOUT);
    }
    if (error == EINVAL) {
        return PyErr_Format(PyExc_ValueError, "the shared memory is damaged");
    }
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static void shared_free(PyObject *object) {
    redox_shared_close(&((shared_object *)object)->shared);
    Py_TYPE(object)->tp_free(object);
}

static redox_shared *core(PyObject *object) { return &((shared_object *)object)->shared; }

// The lowest bits of a number: the caller's are in range, and a wrong one does no harm here.
static bool to_bits(PyObject *object, uint64_t *bits) {
    *bits = PyLong_AsUnsignedLongLongMask(object);
    return *bits != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *shared_note(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { FIELDS = 8 };
    uint64_t field[FIELDS];
    if (count != FIELDS) {
        return PyErr_Format(PyExc_TypeError, "note() takes %d positional arguments, not %zd", FIELDS, count);
    }
    for (int i = 0; i < FIELDS; i++) {
        if (!to_bits(args[i], &field[i])) {
            return NULL;
        }
    }
    redox_shared_note(core(self), &(redox_note){
                                      .kind = (uint8_t)field[0],
                                      .file = (uint8_t)field[1],
                                      .flags = (uint16_t)field[2],
                                      .thread = (uint32_t)field[3],
                                      .path = (uint32_t)field[4],
                                      .sample = (int32_t)field[5],
                                      .request = field[6],
                                      .value = (int64_t)field[7],
                                  });
    Py_RETURN_NONE;
}

static PyObject *shared_entries(PyObject *self, PyObject *after) {
    const redox_shared *shared = core(self);
    unsigned long long from = PyLong_AsUnsignedLongLong(after);
    if (from == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    uint64_t position = shared->head->position, most = shared->head->entries;
    if (from > position || position - from > most) {
        return PyErr_Format(PyExc_ValueError, "the journal has no entries after %llu any more", from);
    }
    PyObject *list = PyList_New((Py_ssize_t)(position - from));
    for (uint64_t at = from; list && at < position; at++) {
        const redox_note *note = &shared->ring[at & (most - 1)];
        PyObject *tuple =
            Py_BuildValue("(iiIIIiKL)", note->kind, note->file, (unsigned)note->flags, note->thread, note->path,
                          note->sample, (unsigned long long)note->request, (long long)note->value);
        if (!tuple) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)(at - from), tuple);
        }
    }
    return list;
}

static PyObject *shared_checkpoint(PyObject *self, PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) {
        return NULL;
    }
    int error = redox_shared_checkpoint(core(self), view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    if (error) {
        return PyErr_Format(PyExc_ValueError, "a checkpoint of %zd bytes does not fit in %llu", view.len,
                            (unsigned long long)core(self)->head->area_bytes);
    }
    Py_RETURN_NONE;
}

static PyObject *shared_checkpointed(PyObject *self, PyObject *none) {
    (void)none;
    const redox_shared *shared = core(self);
    const redox_shared_head *head = shared->head;
    if (!head->latest) {
        Py_RETURN_NONE;
    }
    unsigned area = head->latest - 1;
    return Py_BuildValue("(Ky#)", (unsigned long long)head->checkpoints[area].position,
                         shared->areas + area * head->area_bytes, (Py_ssize_t)head->checkpoints[area].bytes);
}

static PyObject *shared_position(PyObject *self, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(core(self)->head->position);
}

static PyMethodDef shared_methods[] = {
    {"note", (PyCFunction)(void (*)(void))shared_note, METH_FASTCALL, "Append an entry to the journal."},
    {"entries", shared_entries, METH_O, "The entries after a position."},
    {"checkpoint", shared_checkpoint, METH_O, "Replace the older checkpoint by one that covers all entries."},
    {"checkpointed", shared_checkpointed, METH_NOARGS, "The last checkpoint, and the position that it covers."},
    {NULL},
};

static PyGetSetDef shared_properties[] = {
    {"position", shared_position, NULL, "How many entries were appended.", NULL},
    {NULL},
};

static PyTypeObject shared_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Shared",
    .tp_doc = "Memory that outlives a daemon, and from which the next one goes on.",
    .tp_basicsize = sizeof(shared_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = shared_new,
    .tp_dealloc = shared_free,
    .tp_methods = shared_methods,
    .tp_getset = shared_properties,
};

redox_shared *redox_shared_of(PyObject *object) {
    if (!PyObject_TypeCheck(object, &shared_type)) {
        PyErr_Format(PyExc_TypeError, "expected a Shared, not %s", Py_TYPE(object)->tp_name);
        return NULL;
    }
    return core(object);
}

int redox_add_shared(PyObject *module) {
    return PyModule_AddType(module, &shared_type) || PyModule_AddIntConstant(module, "LAYOUT", REDOX_LAYOUT) ? -1 : 0;
}
