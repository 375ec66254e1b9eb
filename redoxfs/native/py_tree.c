// To come.
#include "python_types.h"

int redox_add_tree(PyObject *module) {
    (void)module;
    return 0;
}
