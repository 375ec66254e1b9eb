"""Where AppArmor lets fusermount3 mount. Ubuntu 25.04 and later confine it to a few folders.

The kernel would say EACCES, after the scan, and no log of a user says why. So the profile is read: its `mount` rules,
and those of the local file that it includes. What cannot be read, or has a variable that is not known here, counts as
permitted: then the mount itself tells.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/etc/apparmor.d")
ENABLED = Path("/sys/module/apparmor/parameters/enabled")

NAME = "fusermount3"

VARIABLES = {"HOME": "{/home/*,/root}", "HOMEDIRS": "/home", "run": "{/run,/var/run}", "uid": "*"}
"""Of AppArmor's tunables, those in the rules of mountpoints, as they are installed."""

_RULE = re.compile(r"^\s*mount\b(?P<conditions>[^#\n]*?)->\s*(?P<where>\S+?),\s*(?:#.*)?$", re.MULTILINE)
_ANYWHERE = re.compile(r"^\s*mount\s*(?:fstype=\S+\s*)?(?:options=\S+\s*)?,\s*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Confined:
    """The folders, as AppArmor writes them, where fusermount3 may mount."""

    places: tuple[str, ...]
    folder: Path

    def permits(self, mountpoint: Path) -> bool:
        """Whether a mount at ``mountpoint``, an absolute path, is permitted, as far as that is known."""
        return any(re.fullmatch(_regex(place), f"{mountpoint}/".replace("//", "/")) for place in self.places)

    def mending(self, mountpoint: Path | str) -> str:
        """The command of root's that permits mounts at ``mountpoint``."""
        rule = f"mount fstype=@{{fuse_types}} options=(nosuid,nodev,ro) -> {mountpoint}/,"
        local, profile = self.folder / "local" / NAME, self.folder / NAME
        return f"echo '{rule}' | sudo tee -a {local} && sudo apparmor_parser -r {profile}"


def confinement(folder: Path = FOLDER, enabled: Path = ENABLED) -> Confined | None:
    """Where fusermount3 may mount; None: AppArmor does not confine it, as far as can be seen."""
    try:
        if enabled.read_text().strip() != "Y" or os.path.lexists(folder / "disable" / NAME):
            return None
        text = (folder / NAME).read_text("utf-8", "replace")
    except OSError:
        return None
    head = text.partition("{")[0].rpartition("profile")[2] + text.partition("{")[2].partition("\n")[0]
    if re.search(r"flags=\([^)]*(complain|unconfined)", head):
        return None
    with contextlib.suppress(OSError):
        text += "\n" + (folder / "local" / NAME).read_text("utf-8", "replace")
    if _ANYWHERE.search(text):
        return None
    places = dict.fromkeys(rule["where"].strip('"') for rule in _RULE.finditer(text) if _is_fuse(rule["conditions"]))
    return Confined(tuple(places), folder)


_TOKENS = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
"""Of a pattern of AppArmor, those that mean something, as regular expressions."""


def _is_fuse(conditions: str) -> bool:
    types = re.search(r"fstype\s*=\s*(\S+)", conditions)
    return types is None or "fuse" in types[1] or "*" in types[1] or "@" in types[1]


def _regex(pattern: str) -> str:
    """A pattern of AppArmor as a regular expression. A variable that is not known stands for anything."""
    while (variable := re.search(r"@\{(\w+)\}", pattern)) is not None:
        value = VARIABLES.get(variable[1], "**")
        pattern = pattern[: variable.start()] + value + pattern[variable.end() :]
    tokens = re.findall(r"\*\*|\\.|.", pattern, re.DOTALL)
    return "".join(_TOKENS.get(token) or re.escape(token.removeprefix("\\")) for token in tokens)
