"""The AWS profile: keys, region and endpoint in the files that the AWS tools write.

obstore reads the environment, the roles of containers and web identities, and the metadata service of a machine. It
does not read ~/.aws. Here the plain settings of a profile are read; whatever needs a service of AWS to become keys
(single sign-on, an assumed role, an external program) is refused in one line, since its result can be exported.

Nothing here is logged, kept, or passed on, other than to obstore.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
"""Settings of a profile, and obstore's names of them."""

_NEEDS_SERVICE = ("sso_session", "sso_start_url", "role_arn", "credential_process")


_FILES: dict[str, dict[str, str | None]] = {
    "s3": {
        "AWS_CONFIG_FILE": ".aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials",
        "AWS_WEB_IDENTITY_TOKEN_FILE": None,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": None,
    },
    "gs": {
        "GOOGLE_APPLICATION_CREDENTIALS": ".config/gcloud/application_default_credentials.json",
        "GOOGLE_SERVICE_ACCOUNT": None,
        "GOOGLE_SERVICE_ACCOUNT_PATH": None,
    },
    "az": {"AZURE_FEDERATED_TOKEN_FILE": None},
}
"""By scheme: the variables that name files, and the file in the home folder that is read without the variable."""


def absolute_files(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name files of credentials, with absolute paths: a daemon works in another folder."""
    named = {variable: environ[variable] for variable in _FILES.get(scheme, {}) if environ.get(variable)}
    return {variable: os.path.abspath(os.path.expanduser(path)) for variable, path in named.items()}


def credential_files(scheme: str, environ: Mapping[str, str]) -> list[str]:
    """The files where credentials are looked for, whether they exist or not."""
    named = absolute_files(scheme, environ)
    defaults = {variable: path for variable, path in _FILES.get(scheme, {}).items() if path is not None}
    home = environ.get("HOME", "/")
    return [*named.values(), *(os.path.join(home, path) for name, path in defaults.items() if name not in named)]


class ProfileError(ValueError):
    """The profile cannot be used: one line."""


def aws_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of the profile that the environment names, less those that the environment has itself.

    Raises ProfileError.
    """
    asked = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    name = asked or "default"
    found: dict[str, str] = {}
    for variable, default, prefix in (
        ("AWS_CONFIG_FILE", ".aws/config", "profile "),
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", ""),
    ):
        sections = _read(Path(environ.get(variable) or Path(environ.get("HOME", "/")) / default))
        section = name if not prefix or name == "default" else prefix + name
        if sections.has_section(section):
            found |= dict(sections[section])
    if asked and not found:
        raise ProfileError(f"AWS_PROFILE is {asked!r}, and neither ~/.aws/config nor ~/.aws/credentials has it")
    settings = {ours: found[theirs] for theirs, ours in _KEYS.items() if found.get(theirs)}
    if "AWS_ACCESS_KEY_ID" in environ:
        for key in ("access_key_id", "secret_access_key", "session_token"):
            settings.pop(key, None)
    elif "access_key_id" not in settings:
        needed = [key for key in _NEEDS_SERVICE if key in found]
        if needed:
            raise ProfileError(
                f"the AWS profile {name!r} has no keys but {needed[0]}; "
                'run: eval "$(aws configure export-credentials --format env)"'
            )
    if "AWS_REGION" in environ or "AWS_DEFAULT_REGION" in environ:
        settings.pop("region", None)
    if any(variable in environ for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")):
        settings.pop("endpoint", None)
    return settings


def _read(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, default_section="\0", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # The text of these errors quotes lines of the file.
        raise ProfileError(f"{path}: is not a file of AWS profiles") from None
    return parser
