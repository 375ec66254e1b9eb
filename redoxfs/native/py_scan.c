// redoxfs.native.scan_directories: reads directories by threads that need no interpreter.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "python_types.h"
#include "scan.h"

static void *run(void *scan) {
    redox_scan_work(scan);
    return NULL;
}

static void stop(void *scan) { redox_scan_stop(scan); }

// The result: arrays as bytes objects, which Python reads by numpy.

enum { STATES, OWN, COUNTS, ROWS, LENGTHS, NAMES, LINK_AT, LINK_LENGTHS, TARGETS, LINK_ENDS, ARRAYS };

typedef struct {
    PyObject *objects[ARRAYS];
    char *to[ARRAYS];
} arrays;

static void put(arrays *all, int which, const void *data, size_t bytes) {
    memcpy(all->to[which], data, bytes);
    all->to[which] += bytes;
}

static void put_child(arrays *all, const redox_child *child, int64_t number) {
    int32_t length = (int32_t)child->length;
    put(all, ROWS, &child->row, sizeof child->row);
    put(all, LENGTHS, &length, sizeof length);
    put(all, NAMES, child->name, child->length);
    if (child->link) {
        int32_t target = (int32_t)child->link->length;
        uint64_t end[2] = {child->link->device, child->link->inode};
        put(all, LINK_AT, &number, sizeof number);
        put(all, LINK_LENGTHS, &target, sizeof target);
        put(all, TARGETS, child->link->target, child->link->length);
        put(all, LINK_ENDS, end, sizeof end);
    }
}

static int make_arrays(const redox_scan *scan, arrays *all) {
    size_t children = 0, names = 0, links = 0, targets = 0, done = scan->begun;
    for (size_t i = 0; i < done; i++) {
        for (size_t at = 0; at < scan->directories[i].child_count; at++) {
            const redox_child *child = scan->directories[i].children[at];
            children++;
            names += child->length;
            links += !!child->link;
            targets += child->link ? child->link->length : 0;
        }
    }
    size_t bytes[ARRAYS] = {
        [STATES] = done * sizeof(int32_t),
        [OWN] = done * sizeof(redox_row),
        [COUNTS] = done * sizeof(int32_t),
        [ROWS] = children * sizeof(redox_row),
        [LENGTHS] = children * sizeof(int32_t),
        [NAMES] = names,
        [LINK_AT] = links * sizeof(int64_t),
        [LINK_LENGTHS] = links * sizeof(int32_t),
        [TARGETS] = targets,
        [LINK_ENDS] = links * 2 * sizeof(uint64_t),
    };
    for (int i = 0; i < ARRAYS; i++) {
        all->objects[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes[i]);
        if (!all->objects[i]) {
            return -1;
        }
        all->to[i] = PyBytes_AS_STRING(all->objects[i]);
    }
    int64_t number = 0;
    for (size_t i = 0; i < done; i++) {
        const redox_directory *directory = &scan->directories[i];
        int32_t state = directory->state, count = (int32_t)directory->child_count;
        put(all, STATES, &state, sizeof state);
        put(all, OWN, &directory->own, sizeof directory->own);
        put(all, COUNTS, &count, sizeof count);
        for (size_t at = 0; at < directory->child_count; at++) {
            put_child(all, directory->children[at], number++);
        }
    }
    return 0;
}

// (number of the directory, name in it or None, errno) of the first failure, or None.
static PyObject *failure_of(const redox_scan *scan) {
    for (size_t i = 0; i < scan->begun; i++) {
        const redox_directory *directory = &scan->directories[i];
        if (directory->state > 0) {
            return Py_BuildValue("ny#i", (Py_ssize_t)i, directory->failed ? directory->failed->name : NULL,
                                 (Py_ssize_t)(directory->failed ? directory->failed->length : 0), directory->state);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *result_of(const redox_scan *scan) {
    arrays all = {0};
    size_t skipped = 0, left_out = 0;
    for (size_t i = 0; i < scan->begun; i++) {
        skipped += scan->directories[i].skipped;
        left_out += scan->directories[i].has_control_name;
    }
    PyObject *failure = failure_of(scan), *result = NULL;
    if (failure && !make_arrays(scan, &all)) {
        PyObject **each = all.objects;
        result = Py_BuildValue("(OOOOOOOOOO)nnO", each[STATES], each[OWN], each[COUNTS], each[ROWS], each[LENGTHS],
                               each[NAMES], each[LINK_AT], each[LINK_LENGTHS], each[TARGETS], each[LINK_ENDS],
                               (Py_ssize_t)skipped, (Py_ssize_t)left_out, failure);
    }
    for (int i = 0; i < ARRAYS; i++) {
        Py_XDECREF(all.objects[i]);
    }
    Py_XDECREF(failure);
    return result;
}

static PyObject *scan_directories(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"root", "paths", "known", "threads", "most_entries", "checks_only", "progress", NULL};
    int root, checks_only;
    PyObject *given, *progress, *result = NULL;
    Py_buffer known;
    Py_ssize_t threads, most_entries;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iOy*$nnpO:scan_directories", names, &root, &given, &known,
                                     &threads, &most_entries, &checks_only, &progress)) {
        return NULL;
    }
    PyObject *paths = PySequence_Tuple(given);
    size_t count = paths ? (size_t)PyTuple_GET_SIZE(paths) : 0;
    redox_directory *directories = NULL;
    redox_scan *scan = NULL;
    bool abandoned = false;
    if (!paths) {
        goto end;
    }
    if (threads < 1 || threads > REDOX_CREW_MOST || most_entries < 1) {
        PyErr_Format(PyExc_ValueError, "threads: 1 to %d; most_entries: 1 or more", REDOX_CREW_MOST);
        goto end;
    }
    if (known.len && (size_t)known.len != count * sizeof(redox_known)) {
        PyErr_SetString(PyExc_ValueError, "known: not three numbers for each path");
        goto end;
    }
    if (!(directories = calloc(count ? count : 1, sizeof *directories))) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; i < count; i++) {
        char *path;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(paths, (Py_ssize_t)i), &path, &length)) {
            goto end;
        }
        const redox_known *one = known.len ? (const redox_known *)known.buf + i : NULL;
        directories[i].path = path;
        directories[i].path_length = (size_t)length;
        // No directory has inode 0.
        directories[i].known = one && one->inode ? one : NULL;
    }
    if (!(scan = malloc(sizeof *scan))) {
        PyErr_NoMemory();
        goto end;
    }
    *scan = (redox_scan){
        // The caller may close its own while threads are left behind.
        .root = fcntl(root, F_DUPFD_CLOEXEC, 0),
        .directories = directories,
        .directory_count = count,
        .most_entries = (size_t)most_entries,
        .checks_only = checks_only,
    };
    if (scan->root < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto end;
    }
    int failure = redox_scan_init(scan);
    if (failure) {
        close(scan->root);
        errno = failure;
        PyErr_SetFromErrno(PyExc_OSError);
        goto end;
    }
    redox_crew crew = {scan, run, stop, &scan->lock, &scan->news, &scan->running, &scan->looked, &scan->done};
    if (!redox_crew_run(&crew, (size_t)threads, progress, &abandoned)) {
        result = result_of(scan);
    }
    if (abandoned) {
        // All that the threads use stays: the paths, `known`, the descriptor and the scan.
        return NULL;
    }
    redox_scan_free(scan);
    close(scan->root);
end:
    free(scan);
    free(directories);
    Py_XDECREF(paths);
    PyBuffer_Release(&known);
    return result;
}

static PyMethodDef functions[] = {
    {"scan_directories", (PyCFunction)(void (*)(void))scan_directories, METH_VARARGS | METH_KEYWORDS,
     "Read directories, several at once."},
    {NULL},
};

int redox_add_scan(PyObject *module) { return PyModule_AddFunctions(module, functions); }
