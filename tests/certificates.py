"""Authorities and certificates, made for one test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate and its key, as files."""

    cert: Path
    key: Path
    issuer: x509.Name
    private: ec.EllipticCurvePrivateKey

    @property
    def pair(self) -> tuple[str, str]:
        return str(self.cert), str(self.key)


def make_certificate(
    folder: Path, name: str, *, by: Certificate | None = None, days: int = 1
) -> Certificate:
    """Make a certificate for this common name and for loopback, by an authority or as one.

    ``days`` is for how long; a negative number makes one that is over.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.issuer if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(by.private if by else key, hashes.SHA256())
    )
    stem = folder / f"{name}-{len(list(folder.iterdir()))}"
    cert, key_path = stem.with_suffix(".pem"), stem.with_suffix(".key")
    cert.write_bytes(built.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Certificate(cert=cert, key=key_path, issuer=subject, private=key)
