"""A small dataset with class directories below train/ and test/, and what its file names say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tree:
    """`says`: what a script could read from a name, beside the class; "" if nothing. `field`: where, with an example.

    `kind` is "one field" or "several fields", by what varies within a class, or "opaque". `files` are paths.
    """

    name: str
    says: str
    field: str
    kind: str
    files: tuple[str, ...]
