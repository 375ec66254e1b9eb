"""Whether a job opens some files of its samples once, and others again and again, although `--groups` joins them.

Such a job keeps what it read at first, such as labels, and pairs it with what comes later. redoxfs only sees how often
each file of a sample was opened: the first of all samples, the second, and so on. A file is opened no longer if all
samples together had it opened about once, and not since others were opened twice more.
"""

from collections.abc import Sequence

NEWS = 1 / 20
"""Of the samples. Fewer opens, such as a look at some files, do not count."""

ONCE = (1 / 2, 3 / 2)
"""Opens for each sample."""

MORE = 1.9
"""Opens for each sample. A loader may leave out the last batch of an epoch."""


class MemberWatch:
    """Follows how often each file of ``samples`` samples was opened, by its number in the sample."""

    def __init__(self, samples: int, files: int) -> None:
        self._samples = samples
        self._known = [0] * files
        self._since = [0] * files
        self._told = False

    def look(self, opens: Sequence[int]) -> tuple[int, int] | None:
        """The numbers of a file that is opened again and again, and of one that is opened no longer; once."""
        for file, count in enumerate(opens):
            most = max(each for other, each in enumerate(opens) if other != file)
            if count - self._known[file] > NEWS * self._samples:
                self._known[file], self._since[file] = count, most
            is_once = ONCE[0] * self._samples <= count <= ONCE[1] * self._samples
            if is_once and most - self._since[file] >= MORE * self._samples and not self._told:
                self._told = True
                return opens.index(most), file
        return None
