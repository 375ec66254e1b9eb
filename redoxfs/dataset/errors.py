"""Errors in a source directory or in the options that describe its classes.

Each message is one line for the person who can act: what was found, where, and what to type next. The command
line prints the message unchanged. No code catches these errors to continue with a guess.
"""


def show(path: bytes) -> str:
    """A path for a one-line message: bytes that are not UTF-8 or not printable as escapes; "." for the root."""
    text = path.decode("utf-8", "backslashreplace") or "."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class SourceError(Exception):
    """The source directory, or something in it, cannot be read."""


class ClassesError(Exception):
    """`--classes`, `--samples` or `--groups` contradict the source directory or themselves."""
