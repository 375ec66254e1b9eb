"""What the ranks of a job share, in one process."""


class JobStore:
    """Calls that the ranks' code makes, as of a store of torch.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values.get(key, expected).encode()


class LostStore(JobStore):
    """One that does not answer any more."""

    def compare_set(self, *_: str) -> bytes:
        raise ConnectionError
