// redoxfs.native.Sections: a Python object that holds the arrays of a redox_sections.
#include "python_types.h"
#include "sections.h"

enum { COLUMNS = 13 };

typedef struct {
    PyObject_HEAD
    redox_sections sections;
    Py_buffer views[COLUMNS];  // the first `held` are
    int held;
} sections_object;

enum { QUEUE = 0, AT = 1, CLASS_OF = 2, BEGUN = 3, STOCK = 10 };

// In the order of the constructor's arguments.
static const redox_column columns[COLUMNS] = {
    {"queue", 4, offsetof(redox_sections, queue)},       {"at", 4, offsetof(redox_sections, at)},
    {"class_of", 4, offsetof(redox_sections, class_of)}, {"begun", 4, offsetof(redox_sections, begun)},
    {"kept", 4, offsetof(redox_sections, kept)},         {"for_next", 4, offsetof(redox_sections, next)},
    {"served", 4, offsetof(redox_sections, served)},     {"stream", 4, offsetof(redox_sections, stream)},
    {"arrived", 4, offsetof(redox_sections, arrived)},   {"loaded", 4, offsetof(redox_sections, loaded)},
    {"stock", 4, offsetof(redox_sections, stock)},       {"had", 1, offsetof(redox_sections, had)},
    {"stays", 1, offsetof(redox_sections, stays)},
};

static redox_sections *core(PyObject *object) { return &((sections_object *)object)->sections; }

static void sections_free(PyObject *object) {
    sections_object *self = (sections_object *)object;
    for (int i = 0; i < self->held; i++) {
        PyBuffer_Release(&self->views[i]);
    }
    Py_TYPE(object)->tp_free(object);
}

// Checks the lengths of the arrays, and that the core may write to them. Returns 0, or -1 with an exception set.
static int check_arrays(sections_object *self) {
    redox_sections *sections = &self->sections;
    Py_ssize_t lengths[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        lengths[i] = self->views[i].len / columns[i].item_bytes;
    }
    sections->members = (size_t)lengths[QUEUE];
    sections->samples = (size_t)lengths[AT];
    sections->classes = (size_t)lengths[STOCK];
    for (int i = 0; i < COLUMNS; i++) {
        Py_ssize_t wanted = i == QUEUE                              ? lengths[QUEUE]
                            : i == BEGUN                            ? lengths[STOCK] + 1
                            : i == AT || i == CLASS_OF || i > STOCK ? lengths[AT]
                                                                    : lengths[STOCK];
        if (lengths[i] != wanted) {
            PyErr_Format(PyExc_ValueError, "%s: %zd items instead of %zd", columns[i].name, lengths[i], wanted);
            return -1;
        }
        if (self->views[i].readonly && i != CLASS_OF && i != BEGUN) {
            PyErr_Format(PyExc_ValueError, "%s: cannot be written", columns[i].name);
            return -1;
        }
    }
    return 0;
}

static PyObject *sections_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    char *keywords[COLUMNS + 1] = {NULL};
    for (int i = 0; i < COLUMNS; i++) {
        keywords[i] = (char *)columns[i].name;
    }
    PyObject *a[COLUMNS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOOOOOOOO:Sections", keywords, &a[0], &a[1], &a[2], &a[3],
                                     &a[4], &a[5], &a[6], &a[7], &a[8], &a[9], &a[10], &a[11], &a[12])) {
        return NULL;
    }
    sections_object *self = (sections_object *)type->tp_alloc(type, 0);
    if (self && (redox_take_views(columns, COLUMNS, a, PyBUF_ND, self->views, &self->held, &self->sections) ||
                 check_arrays(self))) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

// Reads `count` numbers. False with an exception set.
static bool numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t count, int64_t *into) {
    if (given != count) {
        PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", given, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        into[i] = PyLong_AsLongLong(args[i]);
        if (into[i] == -1 && PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

static PyObject *sections_take_out(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t of[2];
    if (!numbers(args, given, 2, of)) {
        return NULL;
    }
    int64_t sample = redox_sections_take_out(core(self), of[0], of[1]);
    if (sample < 0) {
        return PyErr_Format(PyExc_IndexError, "class %lld has no resident at %lld", of[0], of[1]);
    }
    return PyLong_FromLongLong(sample);
}

static PyObject *sections_keep(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t of[2];
    if (!numbers(args, given, 2, of)) {
        return NULL;
    }
    if (!redox_sections_keep(core(self), of[0], of[1])) {
        return PyErr_Format(PyExc_IndexError, "sample %lld had no turn", of[0]);
    }
    Py_RETURN_NONE;
}

static PyObject *sections_let_go(PyObject *self, PyObject *number) {
    int64_t sample;
    if (!numbers(&number, 1, 1, &sample)) {
        return NULL;
    }
    int retained = redox_sections_let_go(core(self), sample);
    if (retained < 0) {
        return PyErr_Format(PyExc_IndexError, "sample %lld does not stay", sample);
    }
    return PyBool_FromLong(retained);
}

static PyObject *sections_load(PyObject *self, PyObject *samples) {
    PyObject *list = PySequence_Tuple(samples), *all_loaded = PyList_New(0);
    redox_sections *sections = core(self);
    long this_lap = 0;
    bool failed = !list || !all_loaded;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(list); i++) {
        int64_t sample;
        PyObject *item = PyTuple_GET_ITEM(list, i);
        if (!numbers(&item, 1, 1, &sample)) {
            failed = true;
            break;
        }
        int is_fresh = redox_sections_load(sections, sample);
        if (is_fresh < 0) {
            PyErr_Format(PyExc_IndexError, "sample %lld is a resident", sample);
            failed = true;
        } else if (is_fresh) {
            int32_t cls = sections->class_of[sample];
            this_lap++;
            if (sections->loaded[cls] == sections->begun[cls + 1]) {
                PyObject *number = PyLong_FromLong(cls);
                failed = !number || PyList_Append(all_loaded, number);
                Py_XDECREF(number);
            }
        }
    }
    PyObject *result = failed ? NULL : Py_BuildValue("lO", this_lap, all_loaded);
    Py_XDECREF(list);
    Py_XDECREF(all_loaded);
    return result;
}

static PyMethodDef sections_methods[] = {
    {"take_out", (PyCFunction)(void (*)(void))sections_take_out, METH_FASTCALL,
     "Move the resident at a place over to those that had their turn."},
    {"keep", (PyCFunction)(void (*)(void))sections_keep, METH_FASTCALL,
     "A sample that had its turn stays for the next lap."},
    {"let_go", sections_let_go, METH_O, "Undo keep."},
    {"load", sections_load, METH_O, "Make samples residents."},
    {NULL},
};

static PyTypeObject sections_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "redoxfs.native._native.Sections",
    .tp_doc = "The columns of the pool's queues. Keeps the arrays alive.",
    .tp_basicsize = sizeof(sections_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = sections_new,
    .tp_dealloc = sections_free,
    .tp_methods = sections_methods,
};

int redox_add_sections(PyObject *module) { return PyModule_AddType(module, &sections_type); }
