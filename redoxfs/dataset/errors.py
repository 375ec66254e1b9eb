"""What can be wrong with a source directory or with what was said about its classes.

Each message is one line for the person who can act: what was found, where, and what to type next. The command
line prints it as it is; nothing here is ever caught to guess on.
"""


def show(path: bytes) -> str:
    """A path as part of one line: what is not UTF-8 or cannot be printed as escapes; "." for the root."""
    text = path.decode("utf-8", "backslashreplace") or "."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class SourceError(Exception):
    """The source directory, or something in it, cannot be read."""


class ClassesError(Exception):
    """`--classes`, `--samples` or `--groups` contradict the source directory or themselves."""
