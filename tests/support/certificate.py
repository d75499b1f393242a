"""A server certificate for 127.0.0.1, valid for 90 days, and the certificate of the authority that signed it.

They are two certificates, because some clients refuse an authority's own certificate as that of a server.
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Certificate:
    """Paths of PEM files: certificate, key and authority. The client's context trusts this authority only."""

    cert: Path
    key: Path
    authority: Path

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def write_certificate(
    directory: Path, name: str = "loopback", *, hosts: Sequence[str] = (), days: float = 90
) -> Certificate:
    """Write ``name``.crt, ``name``.key and ``name``.authority.crt into ``directory``. Existing files are
    overwritten.

    ``hosts``: names that the certificate has besides the address, such as ``*.example.org``.
    ``days``: the time until the certificate expires.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = (
        _begin(f"authority of {name}", f"authority of {name}", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, hosts)]
    certificate = (
        _begin(name, f"authority of {name}", key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificate(
        directory / f"{name}.crt", directory / f"{name}.key", directory / f"{name}.authority.crt"
    )
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    _write(made, certificate, key)
    return made


def write_self_signed(directory: Path, name: str = "alone") -> Certificate:
    """Write a certificate that is signed with its own key, as `openssl req -x509` makes it.

    This certificate is used as the server's and as the authority's.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        _begin(name, name, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key", directory / f"{name}.crt")
    _write(made, certificate, key)
    return made


def _write(made: Certificate, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _begin(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: float = 90
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=days))
    )
