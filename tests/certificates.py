"""Certificates for tests, made by the `openssl` command, so that tests need no cryptography library."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patience import PATIENCE_S

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE_S)


def expired_days() -> Sequence[str]:
    """Older versions cannot be told dates; newer ones refuse an end before the start."""
    version = subprocess.run(["openssl", "version"], check=True, capture_output=True, text=True).stdout.split()[1]
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) < (3, 4):
        return "-days", "-1"
    return "-not_before", "20200101000000Z", "-not_after", "20200102000000Z"


@dataclass(frozen=True, slots=True)
class Files:
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA whose files are in ``folder``."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    @classmethod
    def at(cls, folder: Path) -> "Authority":
        folder.mkdir()
        authority = cls(folder)
        subject = ("-subj", f"/CN={folder.name}")
        openssl("req", "-x509", *KEY, "-keyout", folder / "ca.key", "-out", authority.file, "-days", "2", *subject)
        return authority

    def issue(
        self, name: str, *names: str, expired: bool = False, usage: Sequence[str] = (), subject: str = "node"
    ) -> Files:
        """A certificate for ``names``, such as "IP:127.0.0.1", for two days, or for a day that was long ago."""
        made = Files(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        lines = ["basicConstraints=CA:FALSE"]
        lines += [f"subjectAltName={','.join(names)}"] if names else []
        lines += [f"extendedKeyUsage={','.join(usage)}"] if usage else []
        extensions.write_text("\n".join(lines) + "\n")
        openssl("req", *KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={subject}")
        ca = ("-CA", self.file, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        days = expired_days() if expired else ("-days", "2")
        openssl("x509", "-req", "-in", request, *ca, "-out", made.cert, *days, "-extfile", extensions)
        return made
