"""Another user of the machine, for tests that attack: a number that no account needs to have, and a folder."""

import os
import pwd
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redoxfs.linux.detach import detach
from redoxfs.linux.mount_table import read_mounts


def _of_nobody() -> int:
    """A number that is no account's and whose next is none either. Of each process another, as what a user has in /tmp
    goes by the number, and two suites may run at once."""
    for number in range(52_000 + 2 * (os.getpid() % 3_000), 65_000, 2):
        names = [name for uid in (number, number + 1) for name in (*known(uid), *Path("/tmp").glob(f"redoxfs-{uid}*"))]
        if not names:
            return number
    raise LookupError


def known(uid: int) -> list[str]:
    try:
        return [pwd.getpwuid(uid).pw_name]
    except KeyError:
        return []


UID = _of_nobody()

OTHER_UID = UID + 1


class Stranger:
    """``folder`` belongs to the user ``uid``, and everybody may enter it: pytest's own folders are private."""

    def __init__(self, folder: Path, uid: int = UID) -> None:
        self.folder = folder
        self.uid = uid

    def does(self, call: Callable[[], object]) -> None:
        """Run ``call`` as this user, in a child; what it raises fails the test."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                become(self.uid)
                call()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def may(self, call: Callable[[], object]) -> bool:
        """Whether ``call`` succeeds as this user, without an OSError."""
        child = os.fork()
        if child == 0:
            code = 2
            try:
                become(self.uid)
                call()
                code = 0
            except OSError:
                code = 1
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 1)
        return code == 0

    def mkdir(self, name: str, mode: int = 0o755) -> Path:
        """A folder of this user."""
        path = self.folder / name
        path.mkdir(mode=mode)
        os.chown(path, self.uid, self.uid)
        return path


def become(uid: int) -> None:
    """Give up root, in a child."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o022)


@contextmanager
def stranger_here(uid: int = UID) -> Iterator[Stranger]:
    """A user with a folder, until the end of the block; mounts below it end too."""
    folder = Path(tempfile.mkdtemp(prefix="stranger-", dir="/tmp"))
    try:
        os.chown(folder, uid, uid)
        folder.chmod(0o755)
        yield Stranger(folder, uid)
    finally:
        for mount in reversed(read_mounts()):
            if mount.mountpoint.startswith(str(folder)):
                detach(Path(mount.mountpoint))
        shutil.rmtree(folder, ignore_errors=True)
