"""What another daemon needs to serve exactly what a dead one served: a memfd that outlives both.

The other daemon must not look at SOURCE: it may have changed since, and the kernel knows a file by its entry in the
first daemon's catalog. Nor may it look at a path below the mount, where nobody answers. So the recipe has the catalog
itself, with the options and all that was decided from them: among several nodes also their addresses, and this node's
key and certificates. Only descriptors are missing, which the keeper holds.

    head       magic, layout, and the places of what follows
    version    of the redoxfs that wrote it
    arrays     each at a multiple of `ALIGNMENT`
    dataset    pickled, without its arrays
    rest       pickled

Arrays are mapped and not copied, by every daemon, also the first: there is one catalog in memory. It is pickled because
its types are many, small and internal. `LAYOUT` is raised when one of them changes.
"""

import fcntl
import io
import mmap
import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redoxfs.launch.options import MountOptions
from redoxfs.launch.source import Dataset
from redoxfs.linux.descriptors import opened

if TYPE_CHECKING:
    import numpy.typing as npt

    from redoxfs.launch.members import Membership
    from redoxfs.peers import Transport

LAYOUT = 5
"""Of the head, and of every type that is pickled. Another one cannot be read."""

ALIGNMENT = 64

MAGIC = b"RedoxRec"

# Magic, layout, the number of arrays, and the places of the version, the dataset and the rest: offset and length.
_HEAD = struct.Struct("<8sIIQQQQQQ")

_PLACE = struct.Struct("<QQ")


class RecipeError(Exception):
    """A recipe cannot be used: one line."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All but the dataset and the descriptors.

    ``texts``       what is known of the dataset (`Dataset.texts`)
    ``state_path``  of the state file, if there is one, as a single node's
    ``request``     what was asked for, in the words of a command line
    ``members``     the nodes that met before the mount; None: there is one
    ``transport``   between them, with the keys and certificates that it has read
    """

    options: MountOptions
    source: str
    target: Path
    memory_bytes: int
    texts: Mapping[str, str]
    control_path: Path
    state_path: Path | None
    request: tuple[str, ...] = ()
    members: "Membership | None" = None
    transport: "Transport | None" = None


class RecipeMemory:
    """A new memfd, which is written in two steps: `keep_dataset` and `finish`. ``fd`` is its descriptor."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("redoxfs-recipe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._places: list[tuple[int, int]] = []
        self._dataset = (0, 0)
        self._end = _HEAD.size

    def keep_dataset(self, dataset: Dataset) -> Dataset:
        """Write a dataset, and return it with its arrays mapped, so that the arrays of ``dataset`` can be freed."""
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(dataset)
        for buffer in buffers:
            self._end += -self._end % ALIGNMENT
            self._places.append(self._write(buffer.raw()))
        self._dataset = self._write(stream.getbuffer())
        return _loaded(_mapped(self.fd), self._dataset, self._places)

    def finish(self, recipe: Recipe, version: str) -> None:
        """Write the rest. Nothing can be changed afterwards."""
        places = self._write(b"".join(_PLACE.pack(*place) for place in self._places))
        at_version = self._write(version.encode())
        rest = self._write(pickle.dumps((places, recipe), protocol=5))
        head = _HEAD.pack(MAGIC, LAYOUT, len(self._places), *at_version, *self._dataset, *rest)
        os.pwrite(self.fd, head, 0)
        fcntl.fcntl(
            self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )

    def _write(self, data: bytes | memoryview) -> tuple[int, int]:
        begin, rest = self._end, memoryview(data).cast("B")
        while rest:
            written = os.pwrite(self.fd, rest, self._end)
            self._end += written
            rest = rest[written:]
        return begin, self._end - begin


def read_recipe(fd: int, root_fd: int) -> tuple[Recipe, Dataset]:
    """What a former daemon kept. ``root_fd`` is the descriptor of SOURCE. Raises RecipeError."""
    memory = _mapped(fd)
    if len(memory) < _HEAD.size or memory[: len(MAGIC)] != MAGIC:
        raise RecipeError("the memory that the keeper holds is not a recipe of redoxfs")
    _, layout, count, *numbers = _HEAD.unpack_from(memory)
    version, at_dataset, rest = zip(numbers[::2], numbers[1::2], strict=True)
    if layout != LAYOUT:
        former = bytes(memory[version[0] : sum(version)]).decode()
        raise RecipeError(
            f"redoxfs {former} wrote the recipe of this mount in layout {layout}, and this one reads {LAYOUT}"
        )
    at_places, recipe = _loaded(memory, rest, [])
    places = [_PLACE.unpack_from(memory, at_places[0] + i * _PLACE.size) for i in range(count)]
    dataset: Dataset = _loaded(memory, at_dataset, places)
    return recipe, replace(dataset, root_fd=root_fd, texts=dict(recipe.texts))


def _mapped(fd: int) -> memoryview:
    # Through a descriptor that cannot write, or the kernel would not seal the memory. The views keep it mapped.
    with opened(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)) as readable:
        return memoryview(mmap.mmap(readable, 0, mmap.MAP_SHARED, mmap.PROT_READ))


def _loaded(memory: memoryview, place: tuple[int, int], arrays: list[tuple[int, int]]) -> Any:
    begin, length = place
    buffers = [memory[at : at + size] for at, size in arrays]
    # It was written by a daemon of this mount, and nobody else could open the memory.
    return pickle.loads(memory[begin : begin + length], buffers=buffers)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Columns that are the same for all entries stay one number."""
        import numpy as np

        if type(value) is np.ndarray and value.ndim == 1 and value.strides == (0,) and len(value):
            return _repeated, (value[:1].copy(), len(value))
        return NotImplemented


def _repeated(value: "npt.NDArray[Any]", count: int) -> "npt.NDArray[Any]":
    import numpy as np

    return np.broadcast_to(value, count)
