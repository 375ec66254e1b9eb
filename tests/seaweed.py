"""A real S3 server for tests: SeaweedFS, with one bucket."""

import json
import os
import shutil
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from object_server import environment
from patience import PATIENCE_S, completed, until
from ports import reserve

BUCKET, KEY, SECRET = "bucket", "someone", "hunter2hunter2"


def program() -> str | None:
    """The path of `weed`; None if it is not installed."""
    beside = Path(sysconfig.get_path("purelib")) / "bin/weed"
    return shutil.which("weed") or (str(beside) if os.access(beside, os.X_OK) else None)


class Seaweed:
    """A server that keeps its data in ``folder``. ``inside``, put before a command, runs it where ``host`` is."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.folder = folder
        self.host = host
        self._inside = inside
        # It starts again on the same ports, also in a later test.
        self._holders: list[socket.socket] = []
        self.master, self.volume, self.filer, self.port, *self._grpc = reserve(8, self._holders)
        (folder / "data").mkdir(parents=True)
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        identities = [{"name": "test", "credentials": credentials, "actions": actions}]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        self._process: subprocess.Popen[bytes] | None = None
        # A proxy may kill it in another thread than the one that starts it again.
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start, also after `kill`; returns when S3 answers."""
        weed = program()
        assert weed is not None
        master, volume, filer, s3 = self._grpc
        with self._changing, (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._inside,
                    weed,
                    "server",
                    "-s3",
                    f"-ip={self.host}",
                    f"-ip.bind={self.host}",
                    f"-dir={self.folder / 'data'}",
                    f"-s3.config={self.folder / 's3.json'}",
                    f"-s3.port={self.port}",
                    f"-s3.port.grpc={s3}",
                    f"-master.port={self.master}",
                    f"-master.port.grpc={master}",
                    f"-volume.port={self.volume}",
                    f"-volume.port.grpc={volume}",
                    f"-filer.port={self.filer}",
                    f"-filer.port.grpc={filer}",
                    "-volume.max=0",
                    "-master.volumeSizeLimitMB=256",
                    # Their ports are fixed.
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment(),
            )
        until(self._answers, "the server does not answer")

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        with self._changing:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None

    def close(self) -> None:
        """Kill it, and release its ports."""
        self.kill()
        for holder in self._holders:
            holder.close()
        # The place of its sockets is fixed.
        for port in (*self._grpc, self.filer, self.port):
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink()

    def make_bucket(self) -> None:
        """Make the bucket, as soon as the server has room for it."""
        weed = program()
        assert weed is not None
        address = f"{self.host}:{self.master}.{self._grpc[0]}"
        done = completed(
            [weed, "shell", f"-master={address}"], input=f"s3.bucket.create -name {BUCKET}\n", env=self._environment()
        )
        assert "created bucket" in done.stdout, done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        """It logs to the folder of temporary files."""
        return {**os.environ, "TMPDIR": str(self.folder)}

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            urlopen(f"http://{self.host}:{self.port}/", timeout=PATIENCE_S).close()
        except HTTPError:
            return True
        except (URLError, OSError):
            return False
        return True


def settings(port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """The environment of a program that reaches the server, or a proxy of it, on ``port`` of ``host``."""
    # On another host, redoxfs asks whether the network is trusted.
    trusted = {} if host == "127.0.0.1" else {"AWS_ALLOW_HTTP": "true"}
    return environment(
        **trusted,
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_REGION="us-east-1",
    )


@contextmanager
def seaweed(folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> Iterator[Seaweed]:
    """A server with its bucket, until the block ends."""
    server = Seaweed(folder, host, inside)
    try:
        server.start()
        server.make_bucket()
        yield server
    finally:
        server.close()
