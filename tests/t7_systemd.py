"""The units of mount/systemd and the commands of docs/hosts.md, with systemd.

A systemd of its own boots for each test, as the first process of a pid namespace, with mounts and a cgroup of its own.
It shares the files of this machine, except /etc, /run and where programs are linked, and knows only the targets that
units need. So it starts no service of this machine.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import has_ended
from patience import PATIENCE_S, completed, until

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "mount" / "systemd"
PAGE = (ROOT / "docs" / "hosts.md").read_text()
BIN = Path(sys.executable).parent

GENERATOR = "/usr/lib/systemd/system-generators/systemd-fstab-generator"

TARGETS = (
    *("basic", "sysinit", "shutdown", "umount", "local-fs", "local-fs-pre", "remote-fs", "remote-fs-pre"),
    *("network-online", "multi-user", "sockets", "timers", "paths", "slices", "final"),
)

# Arguments: the folder of the test, and the mountpoints of the cgroup hierarchies. Overlays keep what is written to
# this machine's own folders; they lie in a tmpfs because an overlay cannot be below another.
BOOT = r"""
folder=$1
shift
mount -t proc proc /proc
awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -l
mount -t tmpfs -o mode=755 tmpfs /run
for own in /etc /usr/local/bin "$(readlink -f /sbin)"; do
    mkdir -p "/run/own$own" "/run/work$own"
    mount -t overlay -o "lowerdir=$own,upperdir=/run/own$own,workdir=/run/work$own" overlay "$own"
done
mount -t tmpfs tmpfs /etc/systemd
mkdir -p /etc/systemd/system ~/.cache ~/.local/state
mount -t tmpfs tmpfs ~/.cache
mount -t tmpfs tmpfs ~/.local/state
for hierarchy; do
    umount -l "$hierarchy"
    case $hierarchy in
    */systemd) mount -t cgroup -o none,name=systemd cgroup "$hierarchy" ;;
    *) mount -t cgroup2 cgroup2 "$hierarchy" ;;
    esac
done
touch "$folder/console"
mount --bind "$folder/console" /dev/console
exec env -i container=test NOTIFY_SOCKET="$NOTIFY_SOCKET" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_UNIT_PATH="/etc/systemd/system:$folder/units" /lib/systemd/systemd --system --log-target=console
"""


def hierarchies() -> list[Path]:
    """Where the cgroups lie that systemd needs: one hierarchy of version 2, and beside version 1 one of its own."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mountpoint, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(mountpoint))
    return found


class Host:
    """A booted systemd. /data/set and /mnt/set of the page stand for ``source`` and ``mnt``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source, self.mnt = folder, folder / "data", folder / "mnt"
        self.mnt.mkdir()
        units = folder / "units"
        units.mkdir()
        for name in TARGETS:
            shutil.copy(f"/lib/systemd/system/{name}.target", units)
        (units / "default.target").symlink_to("multi-user.target")
        self.cgroups = [hierarchy / f"redoxfs-{uuid.uuid4().hex}" for hierarchy in hierarchies()]
        self.first = ""
        self._first: int | None = None
        for cgroup in self.cgroups:
            cgroup.mkdir()
        address = f"@{uuid.uuid4()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._listener.bind(address.replace("@", "\0"))
        self._listener.settimeout(PATIENCE_S)
        # It joins the cgroups before it is in a namespace of them, which shows them as the root.
        join = "".join(f"echo $$ > '{cgroup}/cgroup.procs'; " for cgroup in self.cgroups)
        spaces = "--pid --mount --uts --ipc --cgroup --fork --kill-child --propagation private"
        self._holder = subprocess.Popen(
            ["sh", "-ec", f'{join} exec unshare {spaces} sh -ec "$0" sh "$@"', BOOT, str(folder)]
            + [str(cgroup.parent) for cgroup in self.cgroups],
            env=os.environ | {"NOTIFY_SOCKET": address},
            stdin=subprocess.DEVNULL,
        )

    def boot(self) -> None:
        """Wait until it has booted. As a first process, systemd notifies whoever runs it."""
        with self._listener as listener:
            while b"READY=1" not in listener.recv(1 << 16).split(b"\n"):
                pass
        (self.first,) = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._first = os.pidfd_open(int(self.first))

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line for a shell, as the page has it."""
        unit = subprocess.run(["systemd-escape", "--path", self.mnt], capture_output=True, text=True, check=True).stdout
        here = {
            "sudo ": "",
            "$(command -v redoxfs)": str(BIN / "redoxfs"),
            "mount/systemd/": f"{UNITS}/",
            "/etc/redoxfs/mnt/set": f"/etc/redoxfs{self.mnt}",
            "/etc/redoxfs/mnt": f"/etc/redoxfs{self.mnt.parent}",
            "/data/set": str(self.source),
            "/mnt/set": str(self.mnt),
            "mnt-set": unit.strip().replace("\\", "\\\\"),
        }
        pattern = "|".join(map(re.escape, here))
        return completed(
            ["nsenter", "-t", self.first, "-m", "-p", "-u", "-i", "-C", "sh", "-c"]
            + [re.sub(pattern, lambda found: here[found[0]], command)]
        )

    def ok(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr} {self.log()}"
        return done.stdout

    def show(self, name: str, unit: str = "redoxfs@mnt-set.service") -> str:
        return self.ok(f"systemctl show --value --property={name} {unit}").strip()

    def log(self) -> str:
        return (self.folder / "console").read_text(errors="replace")

    def is_mounted(self) -> bool:
        return self.run("grep -q ' /mnt/set fuse.redoxfs ' /proc/self/mounts").returncode == 0

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._first is not None:
            # The kernel ends all processes of the namespace before its first.
            assert has_ended(self._first)
        for cgroup in self.cgroups:
            for folder, _, _ in os.walk(cgroup, topdown=False):
                os.rmdir(folder)


@pytest.fixture
def host(tmp_path: Path, source: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    assert host.source == source
    try:
        host.boot()
        yield host
    finally:
        host.close()


def commands(section: str) -> list[str]:
    """The commands of a section of the page, in order."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    ((?:sudo|redoxfs|printf) .*)", text, re.MULTILINE)


def install(host: Host) -> None:
    """The page's commands, but the last, which starts the unit."""
    *prepare, start = commands("systemd")
    for command in prepare:
        host.ok(command)
    assert start.endswith("enable --now redoxfs@mnt-set.service")
    # The log of this systemd is a file: it has no journal.
    host.ok("mkdir /etc/systemd/system/redoxfs@.service.d")
    text = f"[Service]\\nStandardOutput=append:{host.folder}/console\\nStandardError=append:{host.folder}/console\\n"
    host.ok(f"printf '{text}' > /etc/systemd/system/redoxfs@.service.d/log.conf; systemctl daemon-reload")


def test_the_pages_commands_start_and_stop_the_service(host: Host) -> None:
    install(host)
    host.ok(commands("systemd")[-1])
    # It is started when it answers.
    assert host.ok("cat /mnt/set/train/n02121808/cat3.jpg").startswith("cat ")
    assert host.show("ActiveState") == "active"
    assert f"is served at {host.mnt}" in host.show("StatusText")
    # The process that systemd watches is the keeper.
    assert host.show("MainPID") in host.ok("sed -n 's/^ *\"pid\": //p' /mnt/set/.redoxfs/stats.json")
    host.ok("systemctl stop redoxfs@mnt-set.service")
    assert host.show("Result") == "success", host.log()
    assert not host.is_mounted()
    assert host.run("pgrep -f 'redoxfs-[k]eeper|[m]ount --foreground'").returncode == 1


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
def test_programs_and_systemd_go_on_when_the_daemon_is_killed(host: Host, signal: str) -> None:
    install(host)
    host.ok("systemctl start redoxfs@mnt-set.service")
    keeper = host.show("MainPID")
    # An open file shows that the mount is the same.
    host.ok(f"exec 3< /mnt/set/train/n02121808/cat3.jpg; pkill -{signal} -P {keeper}; head -c 4 <&3 | grep -q '^cat '")
    assert host.ok("cat /mnt/set/train/n02121808/cat4.jpg").startswith("cat ")
    assert (host.show("MainPID"), host.show("NRestarts")) == (keeper, "0")
    assert (host.show("ActiveState"), host.show("Result")) == ("active", "success")
    assert f"was killed by {signal}; starting another" in host.log()
    host.ok("systemctl stop redoxfs@mnt-set.service")
    assert host.show("Result") == "success", host.log()
    assert not host.is_mounted()


def test_a_keeper_that_is_killed_is_restarted_and_its_mount_ended(host: Host) -> None:
    install(host)
    host.ok("systemctl start redoxfs@mnt-set.service")
    before = host.show("MainPID")
    # systemd ends the daemon, which unmounts. The wait is for the next start job: it ends when the mount answers again.
    host.ok("systemctl kill --signal=SIGKILL --kill-whom=main redoxfs@mnt-set.service")
    until(lambda: host.show("NRestarts") == "1" and host.show("ActiveState") == "active", "the mount is not restarted")
    assert host.show("MainPID") != before
    assert host.ok("cat /mnt/set/train/n02121808/cat3.jpg").startswith("cat ")
    assert host.ok("grep -c ' /mnt/set fuse.redoxfs ' /proc/self/mounts").strip() == "1"


def test_the_pages_drop_in_ends_the_service_before_the_mount_of_source(host: Host) -> None:
    install(host)
    (requires,) = re.findall(r"^    (RequiresMountsFor=.*)", PAGE, re.MULTILINE)
    host.ok(f"printf '[Unit]\\n{requires}\\n' > /etc/systemd/system/redoxfs@.service.d/source.conf")
    # systemd requires only mounts that a unit or /etc/fstab describes.
    mount = '"$(systemd-escape --path --suffix=mount /data/set)"'
    unit = "[Mount]\\nWhat=/data/set\\nWhere=/data/set\\nOptions=bind\\n"
    host.ok(f"printf '{unit}' > /etc/systemd/system/{mount}; systemctl daemon-reload")
    host.ok("systemctl start redoxfs@mnt-set.service; mountpoint /data/set")
    host.ok(f"systemctl stop {mount}")
    assert host.show("ActiveState") == "inactive"
    assert not host.is_mounted()
    assert host.run("mountpoint -q /data/set").returncode != 0


def test_a_mistake_fails_the_start_once_and_for_all(host: Host) -> None:
    install(host)
    host.ok("printf 'SOURCE=/data/set\\nOPTIONS=--memory 1kB\\n' > /etc/redoxfs/mnt/set.conf")
    assert host.run("systemctl start redoxfs@mnt-set.service").returncode == 1
    assert (host.show("ActiveState"), host.show("NRestarts")) == ("failed", "0")
    assert host.show("ExecMainStatus") == "5"
    assert not host.is_mounted()


def test_a_mount_unit_mounts_by_the_helper(host: Host) -> None:
    host.ok(f"{BIN}/redoxfs install-helper")
    for kind in ("mount", "automount"):
        text = (UNITS / f"mnt-set.{kind}").read_text()
        host.ok(f"cat > \"/etc/systemd/system/mnt-set.{kind}\" <<'END'\n{text}\nEND")
    host.ok("systemctl daemon-reload; systemctl start mnt-set.mount")
    assert host.is_mounted()
    assert host.ok("cat /mnt/set/train/n02121808/cat3.jpg").startswith("cat ")
    host.ok("systemctl stop mnt-set.mount")
    assert not host.is_mounted()
    host.ok("systemctl start mnt-set.automount")
    assert not host.is_mounted()
    assert host.ok("cat /mnt/set/train/n02121808/cat3.jpg").startswith("cat ")
    assert host.is_mounted()
    host.ok("systemctl stop mnt-set.automount mnt-set.mount")
    assert not host.is_mounted()


# Without a systemd that runs


def verified(folder: Path, *units: Path) -> None:
    """Each unit passes `systemd-analyze verify` without a word."""
    done = completed(
        ["systemd-analyze", "verify", "--man=no", *units], env=os.environ | {"SYSTEMD_UNIT_PATH": f"{folder}:"}
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_units_pass_verify_and_security(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/usr/local/bin/redoxfs", str(BIN / "redoxfs"))
        (tmp_path / unit.name).write_text(text)
    verified(tmp_path, *(tmp_path / unit.name for unit in UNITS.iterdir()))
    security = ["systemd-analyze", "security", "--offline=yes", "--no-pager"]
    done = completed([*security, tmp_path / "redoxfs@.service"])
    assert done.returncode == 0, done.stdout
    (rated,) = re.findall(r"Overall exposure level for \S+ ([0-9.]+) OK", done.stdout)
    # 4.2 with systemd 252; later versions weigh other settings.
    assert float(rated) <= 4.5


def test_a_line_of_fstab_becomes_a_mount_unit(tmp_path: Path) -> None:
    (line,) = re.findall(r"^    (/data/set .*)", PAGE, re.MULTILINE)
    fstab, made = tmp_path / "fstab", tmp_path / "made"
    made.mkdir()
    fstab.write_text(line.replace("nofail", "nofail,x-systemd.automount,x-systemd.mount-timeout=1h") + "\n")
    environment = os.environ | {"SYSTEMD_FSTAB": str(fstab), "SYSTEMD_LOG_LEVEL": "warning"}
    subprocess.run([GENERATOR, made, made, made], env=environment, check=True)
    unit = (made / "mnt-set.mount").read_text()
    for words in ("What=/data/set", "Where=/mnt/set", "Type=redoxfs", "memory=10%%,allow_other", "TimeoutSec=1h"):
        assert words in unit
    verified(made, made / "mnt-set.mount", made / "mnt-set.automount")
