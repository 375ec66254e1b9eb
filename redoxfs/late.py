"""Public names of a room that are imported when somebody asks for one.

A room that imports the modules of all its public names makes each command, and each daemon that programs wait for, pay
for what only others need. With `names_of` as its `__getattr__`, each name costs what its own module costs:

    if TYPE_CHECKING:
        from redoxfs.packed.index import Index, is_packed
    else:
        __getattr__ = names_of(__name__, index="Index is_packed")

`from redoxfs.packed import Index` imports at once, as ever; only the room itself imports nothing. So a module that has
such a line at its top is complete when it is imported, and a daemon imports nothing later.

No public name may be that of a module in the room: the import of a module sets the room's attribute of its name.
"""

import sys
from collections.abc import Callable
from importlib import import_module


def names_of(room: str, **modules: str) -> Callable[[str], object]:
    """The `__getattr__` of ``room``: ``modules`` are modules in it, each with its public names, between blanks."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def named(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(import_module(f"{room}.{module_of[name]}"), name)
        # So it is looked up here once.
        setattr(sys.modules[room], name, value)
        return value

    return named
