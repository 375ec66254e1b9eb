"""The address of a folder in an object store.

An address has no key, password or signature: `ps`, the mount table, logs and stats show it.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

SCHEMES = {
    "s3": "s3://BUCKET/PREFIX",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://CONTAINER/PREFIX",
    "http": "http://HOST/PATH",
    "https": "https://HOST/PATH",
}
"""By scheme: what an address looks like."""

READ_ONLY = frozenset({"http", "https"})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)

_BUCKET = re.compile(r"[A-Za-z0-9$._-]+", re.ASCII)


class AddressError(ValueError):
    """An address cannot be used: one line, without the secret that it may contain."""


@dataclass(frozen=True, slots=True)
class Address:
    """A folder in an object store, without a slash at its end."""

    scheme: str
    url: str

    @property
    def is_read_only(self) -> bool:
        return self.scheme in READ_ONLY

    def of(self, name: str) -> str:
        """The address of an object in the folder; without a name, of the folder."""
        return f"{self.url}/{name}" if name else self.url

    def __str__(self) -> str:
        return self.url


def is_address(text: str) -> bool:
    """Whether a SOURCE or DST is an address rather than a path. A path of that form can be written as ./s3:/…"""
    return _SCHEME.match(text) is not None


def parse_address(text: str) -> Address:
    """The address that a text is. Raises AddressError."""
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    if scheme not in SCHEMES:
        raise AddressError(f"{scheme}:// is no object store; redoxfs knows {', '.join(f'{s}://' for s in SCHEMES)}")
    try:
        parts = urlsplit(text)
        has_user = parts.username is not None
        # A secret with a slash would end before its @. What is left of it is neither a port nor a part of a bucket.
        port = parts.port
    except ValueError:
        raise AddressError(f"{scheme}://…: is not an address; write {SCHEMES[scheme]}") from None
    if has_user or parts.query or parts.fragment:
        raise AddressError(
            f"{scheme}://…: an address must not contain a user, a key or a signature, since other users can see it; "
            "credentials come from the environment"
        )
    is_name = parts.hostname and port != 0 if scheme in READ_ONLY else _BUCKET.fullmatch(parts.netloc)
    if not is_name:
        raise AddressError(f"{scheme}://…: is not an address; write {SCHEMES[scheme]}")
    path = "/".join(part for part in parts.path.split("/") if part)
    if any(part in (".", "..") for part in path.split("/")):
        raise AddressError(f"{text}: has . or .. in its path")
    return Address(scheme, f"{scheme}://{parts.netloc}" + (f"/{path}" if path else ""))
