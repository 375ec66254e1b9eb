"""Mounts of packed datasets on a web server: an epoch, its requests, a server that comes and goes, other daemons."""

import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from declared import missing, undeclared
from images import make_images, path_in, read_each
from machine import Machine
from object_server import REFUSED, STATUS_503, Server, serving
from packs import Options, pack_here
from patience import SLOWNESS
from tars import tar_of

import redoxfs
from redoxfs.telemetry import METRICS, When

CLASSES = {f"n0000010{number}": 40 for number in range(4)}
PACKED = Options(shard_bytes=1 << 18, chunk_size=8)
MEMORY = ("--memory", "8MiB", "--storage-speed", "1000,100MiB")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("objects")
    make_images(folder / "source", CLASSES, typical_bytes=20_000)
    pack_here(folder / "source", folder / "dst", PACKED)
    return folder / "dst"


@pytest.fixture
def server(packed: Path) -> Iterator[Server]:
    with serving(packed) as server:
        yield server


def read_all(root: Path) -> Counter[str]:
    """Read each file once, by several threads: the paths that the bytes were made for."""
    return read_each([*root.glob("train/*/*")])


def test_an_epoch_reads_each_sample_once_and_each_byte_once(machine: Machine, server: Server, packed: Path) -> None:
    machine.ok("mount", server.url, machine.mnt, *MEMORY)
    before = server.traffic.sent
    for _ in range(2):
        read = read_all(machine.mnt)
        assert set(read.values()) == {1}
        assert len(read) >= sum(CLASSES.values()) - len(CLASSES)
    size = sum(shard.stat().st_size for shard in packed.glob("samples-*.tar"))
    assert server.traffic.sent - before <= 2 * 1.02 * size
    stats = machine.stats()
    assert stats["source"] == server.url
    assert stats["redirected"] > 0
    assert undeclared(stats, METRICS) == []
    assert missing(stats, METRICS, frozenset({When.ALWAYS, When.KEEPER, When.OBJECTS})) == []
    assert stats["objects"]["received_bytes"] == server.traffic.sent - before
    assert stats["objects"]["retries"] == 0


def test_a_second_mount_fetches_no_index(machine: Machine, server: Server) -> None:
    assert "fetched the index" in machine.ok("mount", server.url, machine.mnt, *MEMORY).stderr
    machine.ok("umount", machine.mnt)
    server.paths.clear()
    machine.ok("mount", server.url, machine.mnt, *MEMORY)
    assert not any("index/" in path for path in server.paths)


@pytest.fixture
def full_home(machine: Machine) -> Iterator[Callable[[], None]]:
    """The user's cache folder is on a small filesystem of its own. The function fills that."""
    home = Path(machine.environment["XDG_CACHE_HOME"])
    home.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", home], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")

    def fill() -> None:
        with suppress(OSError), open(home / "filler", "wb", 0) as file:
            while True:
                file.write(bytes(1 << 12))

    yield fill
    subprocess.run(["umount", home], check=True)


def test_a_home_without_room_stops_no_mount(machine: Machine, server: Server, full_home: Callable[[], None]) -> None:
    full_home()
    told = machine.ok("mount", server.url, machine.mnt, *MEMORY).stderr
    assert "No space left on device; the index is fetched again at each start" in told
    assert set(read_all(machine.mnt).values()) == {1}


def test_replaced_archives_are_never_read_by_the_index_of_those_before(
    machine: Machine, tmp_path: Path, full_home: Callable[[], None]
) -> None:
    """Also if the new index cannot be kept."""
    files = [{f"{name}/1.jpg": name.encode() * 300} for name in ("cat", "dog")]
    with serving(tmp_path) as server:
        for order in (files, files[::-1]):
            for number, members in enumerate(order):
                tar_of(tmp_path / f"s-{number}.tar", members)
            machine.ok("mount", f"{server.url}/s-{{0..1}}.tar", machine.mnt, *MEMORY)
            for name, content in (files[0] | files[1]).items():
                assert (machine.mnt / name).read_bytes() == content
            machine.ok("umount", machine.mnt)
            full_home()


def test_a_server_that_comes_back_serves_the_opens_that_wait(machine: Machine, server: Server) -> None:
    machine.ok("mount", server.url, machine.mnt, *MEMORY)
    refused = []

    def fails_at_first(_method: str, path: str) -> str | None:
        refused.append(path)
        return STATUS_503 if len(refused) < 20 else None

    server.fault = fails_at_first
    assert set(read_all(machine.mnt).values()) == {1}
    assert len(refused) >= 20
    server.stop()
    server.start()
    assert set(read_all(machine.mnt).values()) == {1}


def test_a_refused_read_is_one_open_that_fails_and_no_more(machine: Machine, server: Server) -> None:
    machine.ok("mount", server.url, machine.mnt, *MEMORY)
    server.fault = lambda _method, _path: REFUSED
    path = next(machine.mnt.glob("train/*/*-1.png"))
    with pytest.raises(OSError) as raised:
        path.read_bytes()
    assert raised.value.errno
    server.fault = lambda _method, _path: None
    assert path_in(path.read_bytes())
    assert "permission denied (403)" in machine.log()


def test_a_successor_reads_the_same_objects(machine: Machine, server: Server) -> None:
    machine.ok("mount", server.url, machine.mnt, *MEMORY)
    first = read_all(machine.mnt)
    machine.kill(signal.SIGKILL)
    assert read_all(machine.mnt) == first


def test_secrets_of_the_environment_are_nowhere(machine: Machine, packed: Path) -> None:
    secret = "hunter2hunter2"
    with serving(packed.parent) as s3:
        machine.environment |= {
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": s3.url,
            "AWS_REGION": "us-east-1",
        }
        said = machine.ok("mount", f"s3://{packed.name}", machine.mnt, *MEMORY).stderr
        assert set(read_all(machine.mnt).values()) == {1}
        s3.fault = lambda _method, _path: REFUSED
        read_all_or_fail(machine.mnt)
        bundle = machine.folder / "bundle.tar.gz"
        machine.ok("debug", machine.mnt, "-o", bundle)
        told = [said, machine.log(), (machine.mnt / ".redoxfs/stats.json").read_text()]
        told += [Path(f"/proc/{pid}/cmdline").read_text() for pid in machine.processes_of()]
        assert not [text for text in told if secret in text]
        assert secret.encode() not in unpacked(bundle)


def settings_of(s3: Server) -> dict[str, str]:
    """The environment of a mount that reads its keys from a file."""
    return {"AWS_ENDPOINT_URL": s3.url, "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null"}


def test_a_relative_path_of_credentials_is_that_of_the_command(
    machine: Machine, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(packed.parent) as s3:
        (machine.folder / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=S\n")
        monkeypatch.chdir(machine.folder)
        machine.environment |= {
            **settings_of(s3),
            "AWS_SHARED_CREDENTIALS_FILE": "keys",
            "PYTHONPATH": str(Path(redoxfs.__file__).parents[1]),
        }
        machine.ok("mount", f"s3://{packed.name}", machine.mnt, *MEMORY)
        assert set(read_all(machine.mnt).values()) == {1}


def test_a_mount_that_would_hide_credentials_is_refused(machine: Machine, packed: Path) -> None:
    with serving(packed.parent) as s3:
        machine.environment |= {**settings_of(s3), "AWS_SHARED_CREDENTIALS_FILE": str(machine.mnt / "keys")}
        done = machine.run("mount", f"s3://{packed.name}", machine.mnt, *MEMORY)
        assert done.returncode == 4
        assert f"would hide {machine.mnt / 'keys'}" in done.stderr
        assert not s3.traffic.requests


def read_all_or_fail(root: Path) -> None:
    for path in root.glob("train/*/*"):
        try:
            path.read_bytes()
        except OSError:
            return


def unpacked(bundle: Path) -> bytes:
    with tarfile.open(bundle) as tar:
        files = [tar.extractfile(member) for member in tar if member.isfile()]
        return b"".join(file.read() for file in files if file is not None)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("ftp://host/data", "ftp:// is no object store"),
        ("https://me:hunter2@host/data", "must not contain a user"),
        ("http://127.0.0.1:{port}/nothing", "is not a packed dataset"),
        ("http://127.0.0.1:1/data", "no connection to the server"),
    ],
)
def test_an_address_that_cannot_be_mounted_is_one_line(
    machine: Machine, server: Server, source: str, words: str
) -> None:
    done = machine.run("mount", source.format(port=server.port), machine.mnt, "--timeout", str(5 * SLOWNESS))
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("redoxfs: ")]
    assert words in line
    assert "hunter2" not in done.stderr
    assert done.returncode in (2, 3)


def test_the_doctor_says_whether_an_address_answers(machine: Machine, server: Server) -> None:
    done = machine.run("doctor", server.url)
    assert f"{server.url} answers" in done.stdout
    assert "verdict: cannot say of an address until it is mounted; then: redoxfs doctor MOUNTPOINT" in done.stdout
    done = machine.run("doctor", f"{server.url}/nothing")
    assert "is not a packed dataset" in done.stdout
    assert done.returncode == 11
