"""Secrets by reference: the configuration names an environment variable, a file, or the AWS chain, and never
holds the secret itself.

A reference is read only when it is needed (``serve``, ``check``). So ``shadeproxy config`` works without the
secrets, and cannot show them. Errors name the reference, never the secret.
"""

import configparser
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from shadeproxy.config.fields import Section, WrongKeys
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.sigv4 import Credentials

_LITERALS = frozenset(
    {"secret", "secret_key", "secret_access_key", "aws_secret_access_key", "password", "session_token"}
)
_CONTROL = frozenset(map(chr, (*range(32), 127)))


def refuse_literals(table: Any, *, instead: str) -> Any:
    """Return ``table`` unchanged. Raises WrongKeys if the table has a key for the text of a secret; the error
    says to write ``instead``.
    """
    found = sorted(_LITERALS & table.keys()) if isinstance(table, dict) else []
    if found:
        raise WrongKeys(
            f"{found[0]}: a secret does not stand in the configuration; write {instead}", found[0]
        )
    return table


def read_secret(what: str, *, env: str = "", file: str = "") -> str:
    """Return the secret in the environment variable ``env`` or in the file ``file``, without surrounding
    white space.

    Raises ConfigError, which names ``what`` (the use of the secret), and the variable or file.
    """
    secret, place = _read(what, env, file)
    try:
        secret.encode()
    except UnicodeEncodeError:  # Python turns bytes of a variable that it cannot decode into surrogates.
        raise ConfigError(f"{what}: {place} is not UTF-8 text; it must hold the secret alone") from None
    if not _CONTROL.isdisjoint(secret):
        raise ConfigError(
            f"{what}: {place} has a line end or control character; it must hold the secret alone"
        )
    return secret


def _is_reference(value: Any) -> str:
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if value != "" and not (kind in {"env", "file"} and name):
        raise ValueError('a secret does not stand in the configuration; write "env:NAME" or "file:PATH"')
    return str(value)


Reference = Annotated[str, BeforeValidator(_is_reference)]
"""A secret by reference: "env:NAME", "file:PATH", or "" for none."""


def resolve(what: str, reference: str) -> str | None:
    """Return the secret to which ``reference`` refers, or None if it is "". Raises ConfigError like
    ``read_secret``.
    """
    if not reference:
        return None
    kind, _, name = reference.partition(":")
    return read_secret(what, **{kind: name})


def resolve_argument(what: str, reference: str) -> str | None:
    """Return the secret to which ``reference``, an argument of the command line, refers; None if it is "".
    Raises ConfigError, which names ``what``.
    """
    try:
        _is_reference(reference)
    except ValueError:
        raise ConfigError(
            f'{what}: write "env:NAME" or "file:PATH"; a secret itself would be seen in the list of processes'
        ) from None
    return resolve(what, reference)


def _read(what: str, env: str, file: str) -> tuple[str, str]:
    """Return the text of a variable or file without surrounding white space, and words that name this
    variable or file. Raises ConfigError.
    """
    if env:
        text, place = os.environ.get(env), f"the environment variable {env}"
        if text is None:
            raise ConfigError(f"{what}: {place} is not set; set it to the secret")
    else:
        place = f"the file {file}"
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"{what}: cannot read {place}: {reason}") from None
    if not text.strip():
        raise ConfigError(f"{what}: {place} is empty; it must hold the secret")
    return text.strip(), place


class UpstreamCredentials(Section):
    """A client's rights at the origin: either "shared", which means the rights of the proxy, or a table with
    the client's own credentials.
    """

    access_key: str = ""
    secret_env: str = ""
    secret_file: str = ""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        if value == "shared":
            return {}
        if isinstance(value, str):
            raise ValueError('write "shared", or { access_key = "...", secret_env = "NAME" }')  # noqa: TRY004  pydantic explains ValueError only
        return refuse_literals(value, instead='secret_env = "NAME" or secret_file = "PATH"')

    @model_validator(mode="after")
    def _complete(self) -> Self:
        references = bool(self.secret_env) + bool(self.secret_file)
        if references != bool(self.access_key):
            raise WrongKeys(
                "write access_key and one of secret_env, secret_file",
                "access_key",
                "secret_env",
                "secret_file",
            )
        return self

    @model_serializer(mode="wrap")
    def _write(self, inner: SerializerFunctionWrapHandler) -> Any:
        return "shared" if self.is_shared else inner(self)

    @property
    def is_shared(self) -> bool:
        return not self.access_key

    def resolve(self) -> Credentials | None:
        """Return the client's own credentials, or None for "shared". Raises ConfigError."""
        if self.is_shared:
            return None
        what = f"upstream credentials of {self.access_key}"
        return Credentials(self.access_key, read_secret(what, env=self.secret_env, file=self.secret_file))


class OriginCredentials(Section):
    """The proxy's own credentials. They have at most one source: the two keys ``access_key_env`` and
    ``secret_key_env``, a profile, a file, or "anonymous". A profile together with a file is one source: a
    section of that file.
    """

    source: Literal["chain", "anonymous"] = "chain"
    profile: str = ""
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    file: str = ""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"source": value}
        return refuse_literals(value, instead="access_key_env and secret_key_env, a profile, or a file")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.access_key_env) != bool(self.secret_key_env):
            raise WrongKeys(
                "access_key_env and secret_key_env belong together: write both",
                "access_key_env",
                "secret_key_env",
            )
        if self.session_token_env and not self.access_key_env:
            raise WrongKeys("session_token_env needs access_key_env and secret_key_env", "session_token_env")
        anonymous = self.source == "anonymous"
        if bool(self.access_key_env) + bool(self.file or self.profile) + anonymous > 1:
            raise WrongKeys(
                "write only one of profile (or file), access_key_env, anonymous",
                "profile",
                "file",
                "access_key_env",
                "source",
            )
        return self

    def resolve(self) -> Credentials | None:
        """Return the credentials from the named environment variables or from the file. Return None for all
        other sources: "anonymous", a profile without a file, and the AWS chain.

        ``file`` has the format of ``~/.aws/credentials``; ``profile`` names a section of it (by default
        "default"). Raises ConfigError.
        """
        what = "origin.credentials"
        if self.access_key_env:
            token = self.session_token_env
            return Credentials(
                read_secret(what, env=self.access_key_env),
                read_secret(what, env=self.secret_key_env),
                read_secret(what, env=token) if token else None,
            )
        return _read_credentials_file(self.file, self.profile or "default") if self.file else None


class SecretReference(Section):
    """References to the secret of a client's key. For a temporary key, there is also a reference to its
    session token. Each reference names an environment variable or a file.
    """

    access_key: str
    secret_env: str = ""
    secret_file: str = ""
    session_token_env: str = ""
    session_token_file: str = ""

    @field_validator("access_key")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value or not value.isprintable() or set(value) & set("/, ="):
            raise ValueError("an access key is not empty and has no spaces, slashes, commas or equal signs")
        return value

    @model_validator(mode="before")
    @classmethod
    def _no_literal(cls, value: Any) -> Any:
        token = isinstance(value, dict) and "session_token" in value
        what = "session_token" if token else "secret"
        return refuse_literals(value, instead=f'{what}_env = "NAME" or {what}_file = "PATH"')

    @model_validator(mode="after")
    def _one_reference(self) -> Self:
        if bool(self.secret_env) == bool(self.secret_file):
            raise WrongKeys("write one of secret_env and secret_file", "secret_env", "secret_file")
        if self.session_token_env and self.session_token_file:
            raise WrongKeys(
                "write one of session_token_env and session_token_file, or neither",
                "session_token_env",
                "session_token_file",
            )
        return self

    def secret(self) -> str:
        """Return the secret key of the client. Raises ConfigError."""
        return read_secret(f"auth.clients {self.access_key}", env=self.secret_env, file=self.secret_file)

    def session_token(self) -> str | None:
        """Return the session token that a client with a temporary key must send, or None for a permanent key.
        Raises ConfigError.
        """
        if not self.session_token_env and not self.session_token_file:
            return None
        what = f"session token of auth.clients {self.access_key}"
        return read_secret(what, env=self.session_token_env, file=self.session_token_file)


def _read_credentials_file(file: str, profile: str) -> Credentials:
    text, _ = _read("origin.credentials.file", "", file)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
        section = parser[profile]
        access_key, secret_key = section["aws_access_key_id"], section["aws_secret_access_key"]
    except (configparser.Error, KeyError):
        # The text of the parser's own error would quote the line, which may be the secret.
        raise ConfigError(
            f"origin.credentials.file: {file} needs a section [{profile}] with aws_access_key_id and"
            " aws_secret_access_key, as in ~/.aws/credentials"
        ) from None
    return Credentials(access_key, secret_key, section.get("aws_session_token"))
