"""`mount.redoxfs`, the helper that mount(8) runs for `-t redoxfs`: its arguments become those of `redoxfs mount`.

Each option of `redoxfs mount` is also a mount option, without its dashes; the grammar itself says which there are. The
others are values of `redoxfs mount -o`. mount(8) runs a helper without HOME and PATH, and as the user who asked for the
mount.
"""

import os
import shlex
from collections.abc import Sequence

from redoxfs.cli.arguments import mount_parser, parse
from redoxfs.cli.exits import INTERRUPTED, line_of
from redoxfs.cli.parser import Parser
from redoxfs.cli.program import run
from redoxfs.launch.errors import CommandError, UsageError
from redoxfs.launch.fuse_options import is_known, split_options, unquoted
from redoxfs.launch.options import MountOptions
from redoxfs.launch.say import print_error, read_or_not
from redoxfs.linux.descriptors import opened
from redoxfs.linux.libc import last_error, libc

# mount(8), "EXIT STATUS"
_INVOCATION, _INTERRUPTED, _FAILURE = 1, 8, 32
_CODES = {0: 0, 2: _INVOCATION, INTERRUPTED: _INTERRUPTED}

# <sched.h>
_CLONE_NEWNS = 0x20000

# mount(8) passes rw unless it is told ro. All three ask for less protection than a mount has.
_NOT_GRANTED = frozenset({"rw", "dev", "suid"})


def main(argv: Sequence[str] | None = None) -> int:
    """Mount; returns an exit code of mount(8)."""
    try:
        given = _parser().parse_args(argv)
        if given.namespace is not None:
            _enter(given.namespace)
        words = mount_words(given.source, given.mountpoint, given.options, is_sloppy=given.sloppy)
        options: MountOptions = parse(["mount", *words]).options
        if given.fake:
            from redoxfs.cli.csi import check_values

            check_values(options)
    except CommandError as error:
        print_error(line_of(error))
        return _INVOCATION
    if given.verbose:
        with read_or_not():
            print(shlex.join(["redoxfs", "mount", *words]))
    return 0 if given.fake else _CODES.get(run(["mount", *words]), _FAILURE)


def mount_words(source: str, mountpoint: str, texts: Sequence[str], *, is_sloppy: bool = False) -> list[str]:
    """The arguments of `redoxfs mount` that stand for mount options. Raises UsageError.

    Args:
        texts: the values of `-o`.
        is_sloppy: leave out options that nobody knows, instead of refusing them.
    """
    ours = {option: action for action in mount_parser()._actions for option in action.option_strings}
    words: list[str] = []
    others: list[str] = []
    for option in (option for text in texts for option in split_options(text)):
        name, equals, value = option.partition("=")
        action = ours.get(f"--{name.replace('_', '-')}")
        if action is None:
            if option == "remount":
                where = shlex.quote(mountpoint)
                raise UsageError(f"-o remount: redoxfs cannot change a mount; end it and mount again: umount {where}")
            if option in _NOT_GRANTED:
                continue
            if is_known(option):
                others.append(option)
            elif not is_sloppy:
                raise UsageError(
                    f'-o {option}: not an option of redoxfs mount or mount(8); quote a value with commas: name="a,b"'
                )
        elif action.nargs == 0:
            if equals:
                raise UsageError(f"-o {option}: {name} takes no value")
            words.append(f"--{name.replace('_', '-')}")
        elif not value:
            raise UsageError(f"-o {option}: {name} needs a value; write {name}=…")
        else:
            words.append(f"{action.option_strings[-1]}={unquoted(value)}")
    return [*words, *(word for other in others for word in ("-o", other)), "--", source, mountpoint]


def _parser() -> Parser:
    helper = Parser(
        prog="mount.redoxfs",
        description="The helper of mount(8): mount -t redoxfs SOURCE MOUNTPOINT -o OPTIONS.",
        epilog="Each option of redoxfs mount is a mount option, without its dashes: memory=10%,classes=dir,resume.",
    )
    helper.set_defaults(options=[], namespace=None, fake=False, sloppy=False, verbose=False)
    helper.add_argument("source", metavar="SOURCE")
    helper.add_argument("mountpoint", metavar="MOUNTPOINT")
    helper.add_argument("-o", dest="options", metavar="OPTIONS", action="append", help="separated by commas")
    helper.add_argument("-f", dest="fake", action="store_true", help="check the options and mount nothing")
    helper.add_argument("-s", dest="sloppy", action="store_true", help="ignore unknown options")
    helper.add_argument("-v", dest="verbose", action="store_true", help="print the command of redoxfs")
    helper.add_argument("-n", action="store_true", help="ignored: there is no /etc/mtab to write")
    helper.add_argument("-t", metavar="TYPE", help="ignored: the type is redoxfs")
    helper.add_argument("-N", dest="namespace", metavar="NS", help="mount in the mount namespace of this file or pid")
    return helper


def _enter(namespace: str) -> None:
    """Raises UsageError if that is not possible."""
    path = f"/proc/{namespace}/ns/mnt" if namespace.isdigit() else namespace
    try:
        with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            if libc.setns(fd, _CLONE_NEWNS) != 0:
                raise last_error()
    except OSError as failure:
        raise UsageError(f"-N {namespace}: {failure.strerror}") from None
