"""Chooses how many reads are in flight: more as long as that raises the storage's rate.

Network storage with a latency of 20 ms takes four times as many small files a second with 128 reads in flight as with
32. A page cache or a single disk takes no more with 32 than with a few, and threads cost processor time there. So the
depth is doubled and halved while that pays. Only times count in which nearly all threads read: otherwise programs did
not ask for more, which says nothing about the storage.

Rejected: deriving the depth from the time of a read. It grows with the depth as soon as the storage is at its limit,
but also where threads wait for a processor, and it differs from file to file.
"""

WINDOW_S = 0.5
"""How long a depth is measured. Shorter, and one chunk of large files decides."""

LEAST_READS = 4
"""Reads for each thread in a window. A window with fewer goes on."""

FULL_SHARE = 0.75
"""The share of the threads that read, on average over a window that counts."""

LEAST_GAIN = 1.1
"""Twice the depth must bring at least this times the rate, since threads have a cost."""

MOST_LOSS = 0.97
"""Half the depth must keep at least this share of the rate. Smaller differences are chance."""

PAUSE_S = 30.0
"""After neither direction has paid. The next attempt costs about a window at half the rate."""

LEAST_DEPTH = 4


class Depth:
    """The number of threads, from observations. Does not read a clock.

    Args:
        start: what the store asks for; ``most``: what it allows.
    """

    def __init__(self, start: int, most: int) -> None:
        self.threads = start
        self._least = min(start, LEAST_DEPTH)
        self._most = most
        self._began: tuple[float, int, int, int] | None = None
        # While another depth is tried: the one before, and its rate.
        self._before: tuple[int, float] | None = None
        self._grows = True
        self._try_at = 0.0

    def observe(self, now_s: float, reads: int, read_ns: int, amount: int) -> int:
        """``reads`` were carried out so far and took ``read_ns``, summed over the threads. Returns `threads`.

        ``amount``: the files or bytes that they read. Their rate decides, since reads differ in length.
        """
        if self._began is None:
            self._began = (now_s, reads, read_ns, amount)
            return self.threads
        elapsed_s = now_s - self._began[0]
        done = reads - self._began[1]
        if elapsed_s < WINDOW_S or done < LEAST_READS * self.threads:
            return self.threads
        in_flight = (read_ns - self._began[2]) / 1e9 / elapsed_s
        rate = (amount - self._began[3]) / elapsed_s
        self._began = (now_s, reads, read_ns, amount)
        if in_flight >= FULL_SHARE * self.threads:
            self._judge(now_s, rate)
        return self.threads

    def _judge(self, now_s: float, rate: float) -> None:
        """The storage has delivered ``rate`` files or bytes a second at this depth."""
        if self._before is not None:
            threads, rate_before = self._before
            self._before = None
            if rate < rate_before * (LEAST_GAIN if self._grows else MOST_LOSS):
                self._turn_back(now_s, threads)
                return
        if now_s < self._try_at:
            return
        threads = min(2 * self.threads, self._most) if self._grows else max(self.threads // 2, self._least)
        if threads == self.threads:
            self._turn_back(now_s, threads)
        else:
            self._before = (self.threads, rate)
            self._set(threads)

    def _turn_back(self, now_s: float, threads: int) -> None:
        """This direction does not pay: back to ``threads``. The other one is next, at once after growing."""
        self._set(threads)
        if not self._grows:
            self._try_at = now_s + PAUSE_S
        self._grows = not self._grows

    def _set(self, threads: int) -> None:
        self.threads = threads
        # Reads that began at the depth before are under way, so the next window begins with the next observation.
        self._began = None
