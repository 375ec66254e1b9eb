// The extension module redoxfs.native._native: its types and functions.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python_types.h"

// What the extension was built of, as redoxfs/native/sources.py has it. Defined by scripts/build_native.py.
#ifndef REDOX_SOURCES
#define REDOX_SOURCES ""
#endif

static int add_types(PyObject *module) {
    int failed = redox_add_buffer(module) || redox_add_tree(module) || redox_add_reader(module) ||
                 redox_add_shared(module) || redox_add_session(module) || redox_add_histogram(module) ||
                 redox_add_opens(module) || redox_add_scan(module) || redox_add_archive(module) ||
                 redox_add_sections(module) ||
                 PyModule_AddStringConstant(module, "SOURCES", REDOX_SOURCES);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "redoxfs.native._native",
    .m_doc = "Moves bytes between storage, memory and the kernel. Decides nothing.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
