// To come.
#include "python_types.h"

int redox_add_reader(PyObject *module) {
    (void)module;
    return 0;
}
