"""The manifests of mount/kubernetes against the schemas of Kubernetes and each other, and the steps of the image.

They run in a root of their own, from which the plugin and the sidecar then serve a real mount. No kubelet has seen any
of it.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kube
import kubernetes_validate
import pytest
import yaml
from kube import Node, Pod
from machine import OTHERS_CLEARED
from patience import PATIENCE_S, completed

from redoxfs.cli.arguments import mount_options, parse
from redoxfs.cli.csi import check
from redoxfs.csi import DRIVER, Kind, VolumeOptions
from redoxfs.csi.attributes import DEFAULT_EMPTY_DIR, arguments_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "mount/kubernetes"
DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (path.name, document) for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())
]
OPTIONS = VolumeOptions({name: (option, Kind(values)) for name, option, values in mount_options()}, check)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NATIVE_SIDECARS_SINCE = "1.29"


def of_kind(kind: str, name: str | None = None) -> list[dict[str, Any]]:
    return [each for file, each in DOCUMENTS if each["kind"] == kind and name in (None, file)]


def pods() -> list[dict[str, Any]]:
    """The pods that the manifests make."""
    return [each["spec"]["template"]["spec"] for kind in ("DaemonSet", "Job") for each in of_kind(kind)]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def one(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (chosen,) = [each for each in found if each["name"] == name]
    return chosen


@pytest.mark.parametrize("version", [NATIVE_SIDECARS_SINCE, kubernetes_validate.latest_version()])
@pytest.mark.parametrize(("file", "document"), DOCUMENTS, ids=[f"{file}-{each['kind']}" for file, each in DOCUMENTS])
def test_a_manifest_is_valid(file: str, document: dict[str, Any], version: str) -> None:
    del file
    assert kubernetes_validate.validate(document, version, strict=True)


def test_every_mount_names_a_volume_and_every_volume_is_used() -> None:
    assert len(pods()) == 3
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        used = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
        assert volumes == used


def test_labels_services_and_accounts_fit_together() -> None:
    (plugin,) = of_kind("DaemonSet")
    (account,) = of_kind("ServiceAccount")
    (namespace,) = of_kind("Namespace")
    spec = plugin["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert {each["metadata"]["namespace"] for each in (plugin, account)} == {namespace["metadata"]["name"]}
    assert plugin["spec"]["selector"]["matchLabels"] == plugin["spec"]["template"]["metadata"]["labels"]
    # Nothing calls the API.
    assert spec["automountServiceAccountToken"] is False
    assert not [each for _, each in DOCUMENTS if "Role" in each["kind"]]
    (service,) = of_kind("Service")
    (job,) = of_kind("Job", "indexed-job.yaml")
    template = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    options = parse(one(template["spec"]["initContainers"], "redoxfs")["args"]).options.mount.cluster
    assert options.nodes == f"dns:{service['metadata']['name']}"
    assert options.node_count == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert [port["port"] for port in service["spec"]["ports"]] == [7420]


def test_the_driver_has_one_name_and_one_socket() -> None:
    (driver,) = of_kind("CSIDriver")
    assert driver["metadata"]["name"] == DRIVER
    (plugin,) = of_kind("DaemonSet")
    spec = plugin["spec"]["template"]["spec"]
    args = parse([arg.replace("$(NODE_NAME)", "n") for arg in one(spec["containers"], "redoxfs")["args"]])
    path = args.options.endpoint.removeprefix("unix://")
    folder = one(spec["volumes"], "plugin")["hostPath"]["path"]
    mounted = {
        each["name"]: mount["mountPath"]
        for each in spec["containers"]
        for mount in each["volumeMounts"]
        if mount["name"] == "plugin"
    }
    assert set(mounted.values()) == {os.path.dirname(path)}
    registrar = one(spec["containers"], "node-driver-registrar")["args"]
    assert f"--csi-address={path}" in registrar
    assert f"--kubelet-registration-path={folder}/{os.path.basename(path)}" in registrar
    assert f"--csi-address={path}" in one(spec["containers"], "liveness-probe")["args"]
    pods_mount = one(one(spec["containers"], "redoxfs")["volumeMounts"], "pods")
    assert pods_mount["mountPropagation"] == "Bidirectional"
    assert (
        pods_mount["mountPath"]
        == one(spec["volumes"], "pods")["hostPath"]["path"]
        == f"{args.options.kubelet_dir}/pods"
    )


def test_the_plugin_accepts_the_volumes_and_the_sidecar_its_arguments() -> None:
    volumes = [one(pod["volumes"], "dataset")["csi"] for pod in pods() if "initContainers" in pod]
    volumes += [each["spec"]["csi"] for each in of_kind("PersistentVolume")]
    assert len(volumes) == 3
    for volume in volumes:
        assert volume["driver"] == DRIVER
        arguments, _ = arguments_of(volume["volumeAttributes"], [], OPTIONS)
        assert len(arguments) == len(volume["volumeAttributes"])
    for each in of_kind("PersistentVolume"):
        arguments_of({}, each["spec"]["mountOptions"], OPTIONS)
        assert each["spec"]["accessModes"] == ["ReadOnlyMany"]


def test_the_sidecar_has_no_privilege_and_not_its_own_mount() -> None:
    for pod in pods():
        if "initContainers" not in pod:
            continue
        (sidecar,) = pod["initContainers"]
        assert sidecar["restartPolicy"] == "Always"
        security = sidecar["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert (security["allowPrivilegeEscalation"], security["runAsNonRoot"]) == (False, True)
        options = parse(sidecar["args"]).options
        assert sidecar["startupProbe"]["exec"]["command"] == ["redoxfs", "status", options.fd_socket]
        mounts = {mount["name"]: mount["mountPath"] for mount in sidecar["volumeMounts"]}
        assert "dataset" not in mounts
        assert mounts[DEFAULT_EMPTY_DIR] == os.path.dirname(options.fd_socket)
        assert mounts["source"] == options.mount.source
        assert "emptyDir" in one(pod["volumes"], DEFAULT_EMPTY_DIR)
        # The descriptor is for the sidecar alone.
        assert all(mount["name"] != DEFAULT_EMPTY_DIR for each in pod["containers"] for mount in each["volumeMounts"])


def test_the_image_is_of_this_version() -> None:
    images = {each["image"] for pod in pods() for each in containers(pod) if "redoxfs" in each["image"]}
    assert images == {f"localhost/redoxfs:{VERSION}"}
    assert f"-t localhost/redoxfs:{VERSION} " in (FOLDER / "Containerfile").read_text()


# The image


@dataclass
class Stage:
    """A stage of the Containerfile, as a root."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)


def steps() -> list[tuple[str, str]]:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    return [(name, rest) for line in lines if line and line[0] != "#" for name, _, rest in [line.partition(" ")]]


IN_STAGE = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "TMPDIR": "/tmp",
    # Compilers take half the time without optimization.
    "CFLAGS": "-O0",
}
"""What the environment of a step has besides, or in the place of, this machine's."""


def in_stage(stage: Stage, command: str) -> None:
    """Run a step's command in its root, with this machine's ways to reach package mirrors."""
    lend(stage.root)
    script = OTHERS_CLEARED
    script += 'for each in proc dev; do mount --rbind "/$each" "$0/$each"; done; exec chroot "$0" sh -ec "$1"'
    done = completed(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, stage.root, command],
        env={**os.environ, **IN_STAGE, **stage.environment},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def base_root(into: Path) -> Path:
    """What `debian:bookworm-slim` is about: Debian's smallest root."""
    mirror = "http://deb.debian.org/debian"
    subprocess.run(
        ["debootstrap", "--variant=minbase", "bookworm", into, mirror], check=True, capture_output=True, text=True
    )
    return into


def lend(root: Path) -> None:
    """Copy how this machine reaches mirrors, and whom it trusts. That is not the image's, and packages replace it."""
    for name in ("etc/resolv.conf", "etc/pip.conf", "etc/apt/apt.conf.d", "etc/ssl/certs/ca-certificates.crt"):
        source, target = Path("/") / name, root / name
        for path in source.iterdir() if source.is_dir() else [source] if source.exists() else []:
            if "docker" not in path.name:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The last stage of the Containerfile, by its own steps."""
    for tool in ("debootstrap", "chroot", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; scripts/test-engines installs it")
    if kube.why_not() is not None:
        pytest.skip(str(kube.why_not()))
    folder = tmp_path_factory.mktemp("image")
    # In memory, since each package is unpacked with a sync of every file.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    try:
        yield built(folder)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)


def built(folder: Path) -> Stage:
    """The last stage of the Containerfile, with its roots below ``folder``."""
    base = base_root(folder / "base")
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for name, rest in steps():
        words = shlex.split(rest) if name != "RUN" else []
        match name, words:
            case "FROM", ["debian:bookworm-slim", *more]:
                stage = Stage(folder / f"stage{len(stages)}")
                stages[more[-1] if more else ""] = stage
                subprocess.run(["cp", "-a", "--reflink=auto", base, stage.root], check=True)
            case "RUN", _:
                in_stage(stage, rest)
            case "COPY", [".", target]:
                copied = stage.root / target.lstrip("/")
                subprocess.run(["git", "-C", ROOT, "checkout-index", "-a", f"--prefix={copied}/"], check=True)
            case "COPY", [origin, source, target]:
                into = stage.root / target.lstrip("/")
                into.parent.mkdir(parents=True, exist_ok=True)
                made = stages[origin.removeprefix("--from=")].root / source.lstrip("/")
                subprocess.run(["cp", "-a", made, into], check=True)
            case "ENV", [assignment]:
                variable, _, value = assignment.partition("=")
                stage.environment[variable] = value
            case "USER", [user]:
                stage.user = user
            case "ENTRYPOINT", _:
                stage.entrypoint = json.loads(rest)
            case _:
                raise AssertionError(f"a step that this test cannot do: {name} {rest}")
    return stage


@pytest.fixture
def node(image: Stage) -> Iterator[Node]:
    node = Node(image.entrypoint, image.root, image.environment)
    try:
        node.start_plugin()
        yield node
    finally:
        node.close()


def test_the_image_runs_redoxfs_as_its_own_user(image: Stage) -> None:
    uid, _, gid = image.user.partition(":")
    assert uid == gid == str(kube.SIDECAR_UID)
    for pod in pods():
        for sidecar in pod.get("initContainers", []):
            assert str(sidecar["securityContext"]["runAsUser"]) == uid
    in_stage(image, "redoxfs --version && ! command -v gcc")


def test_plugin_and_sidecar_serve_a_mount_from_the_image(node: Node) -> None:
    pod = Pod(node)
    pod.publish(classes="dir")
    waiting = pod.reader()
    sidecar = pod.serving()
    assert os.path.samefile(f"/proc/{sidecar.pid}/root", node.root)
    assert pod.probe() == 0
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out.count("\n")) == (0, 40), err
    assert pod.samples() == list(range(40))
    node.end(sidecar)
    node.end(node.plugin)
    node.start_plugin()
    pod.serving()
    assert pod.samples() == list(range(40))
    pod.unpublish()
    assert not node.leftovers()
    assert node.end(node.plugin, signal.SIGTERM) == 0
