// redoxfs.native.index_archives: indexes tar archives by threads that need no interpreter.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "archive.h"
#include "python_types.h"

static void *run(void *index) {
    redox_index_work(index);
    return NULL;
}

static void stop(void *index) { redox_index_stop(index); }

// Calls read(number, size, at), which returns the bytes, or an errno.
static int read_by_call(void *callable, int number, char *to, size_t size, int64_t at) {
    PyGILState_STATE state = PyGILState_Ensure();
    int failure = EIO;
    Py_buffer found;
    PyObject *result = PyObject_CallFunction(callable, "inL", number, (Py_ssize_t)size, (long long)at);
    if (result && PyLong_Check(result)) {
        long number_of = PyLong_AsLong(result);
        failure = number_of > 0 && number_of < 4096 ? (int)number_of : EIO;
    } else if (result && !PyObject_GetBuffer(result, &found, PyBUF_SIMPLE)) {
        if ((size_t)found.len == size) {
            memcpy(to, found.buf, size);
            failure = 0;
        }
        PyBuffer_Release(&found);
    }
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(callable);
    }
    Py_XDECREF(result);
    PyGILState_Release(state);
    return failure;
}

static PyObject *result_of(const redox_index *index) {
    PyObject *all = PyList_New((Py_ssize_t)index->archive_count);
    for (size_t i = 0; all && i < index->archive_count; i++) {
        const redox_archive *archive = &index->archives[i];
        PyObject *one = Py_BuildValue(
            "iLy#y#nnnNN", archive->state, (long long)archive->at, archive->count ? (char *)archive->members : "",
            (Py_ssize_t)(archive->count * sizeof *archive->members), archive->text_bytes ? archive->texts : "",
            (Py_ssize_t)archive->text_bytes, (Py_ssize_t)archive->sparse, (Py_ssize_t)archive->special,
            (Py_ssize_t)archive->unnameable, PyBool_FromLong(archive->has_end_mark), PyBool_FromLong(archive->has_rest));
        if (!one) {
            Py_CLEAR(all);
            break;
        }
        PyList_SET_ITEM(all, (Py_ssize_t)i, one);
    }
    return all;
}

static PyObject *index_archives(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"archives", "threads",      "most_headers", "through_bytes", "long_window",
                            "short_window", "salvages", "read",         "progress",      NULL};
    PyObject *given, *read, *progress, *result = NULL;
    Py_ssize_t threads, most_headers, long_window, short_window;
    long long through_bytes;
    int salvages;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O$nnLnnpOO:index_archives", names, &given, &threads, &most_headers,
                                     &through_bytes, &long_window, &short_window, &salvages, &read, &progress)) {
        return NULL;
    }
    if (threads < 1 || threads > REDOX_CREW_MOST || most_headers < 0 || short_window < REDOX_TAR_BLOCK ||
        long_window < short_window) {
        return PyErr_Format(PyExc_ValueError, "threads: 1 to %d; most_headers: 0 or more; windows: a block or more",
                            REDOX_CREW_MOST);
    }
    PyObject *ranges = PySequence_Tuple(given);
    if (!ranges) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(ranges);
    redox_archive *archives = calloc(count ? count : 1, sizeof *archives);
    redox_index *index = malloc(sizeof *index);
    bool abandoned = false;
    if (!archives || !index) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; i < count; i++) {
        long long begin, finish;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(ranges, (Py_ssize_t)i), "iLL:archives", &archives[i].fd, &begin,
                              &finish)) {
            goto end;
        }
        archives[i].begin = begin;
        archives[i].end = finish;
    }
    *index = (redox_index){
        .archives = archives,
        .archive_count = count,
        .most_headers = (size_t)most_headers,
        .through_bytes = through_bytes,
        .long_window = (size_t)long_window,
        .short_window = (size_t)short_window,
        .salvages = salvages,
        .read = read == Py_None ? NULL : read_by_call,
        .context = read,
    };
    int failure = redox_index_init(index);
    if (failure) {
        errno = failure;
        PyErr_SetFromErrno(PyExc_OSError);
        goto end;
    }
    size_t useful = count ? count : 1;
    redox_crew crew = {index, run, stop, &index->lock, &index->news, &index->running, &index->headers, &index->done};
    if (!redox_crew_run(&crew, (size_t)threads < useful ? (size_t)threads : useful, progress, &abandoned)) {
        result = result_of(index);
    }
    if (abandoned) {
        // All that the threads use stays.
        Py_INCREF(read);
        Py_DECREF(ranges);
        return NULL;
    }
    redox_index_free(index);
end:
    free(index);
    free(archives);
    Py_DECREF(ranges);
    return result;
}

static PyMethodDef functions[] = {
    {"index_archives", (PyCFunction)(void (*)(void))index_archives, METH_VARARGS | METH_KEYWORDS,
     "Read the headers of tar archives, several archives at once."},
    {NULL},
};

int redox_add_archive(PyObject *module) { return PyModule_AddFunctions(module, functions); }
