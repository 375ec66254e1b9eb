// To come.
#include "python_types.h"

int redox_add_session(PyObject *module) {
    (void)module;
    return 0;
}
