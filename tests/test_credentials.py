"""Tokens and certificates are shown, checked and followed when they change; never logged."""

import datetime
import ipaddress
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from libra.agent.credentials import MAX_TOKEN_BYTES, CredentialsError, Token
from libra.agent.reporter import Reporter
from libra.agent.settings import settings_from_env
from tests.balancers import Reply, Request, ToldBalancer, eventually
from tests.test_reporter import reporting, totals

SECRET = "libra_5up3r-s3cret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write(path, SECRET)
    return path


def write(path: Path, token: str) -> None:
    """Replace the file as rotation does: at once."""
    part = path.with_suffix(".part")
    part.write_text(f"{token}\n")
    part.chmod(0o600)
    part.replace(path)


def guarded(*tokens: str) -> Any:
    """Answer as a balancer that takes these tokens alone."""

    def answer(request: Request) -> Reply:
        shown = request.headers.get("authorization", "")
        return Reply() if shown in [f"Bearer {token}" for token in tokens] else Reply(status=401)

    return answer


def keeps_reporting(reporter: Reporter) -> bool:
    """Push steps; tell whether one more report is taken."""
    before = reporter.sent
    reporter.push(totals(before))
    return eventually(lambda: reporter.sent > before)


def test_the_token_goes_into_a_header(file: Path) -> None:
    """It is shown with every request, and to nobody else."""
    with (
        ToldBalancer(guarded(SECRET)) as balancer,
        reporting(balancer.url, token_file=str(file)) as reporter,
    ):
        assert keeps_reporting(reporter)
    assert all(SECRET not in request.path for request in balancer.requests)


@pytest.mark.fault
def test_a_rotated_token_is_taken_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changed is read again; where its time did not, the refusal makes it so."""
    monkeypatch.setattr("libra.agent.reporter.HEARTBEAT_S", 3600.0)
    with (
        ToldBalancer(guarded(SECRET)) as balancer,
        reporting(balancer.url, token_file=str(file)) as reporter,
    ):
        assert keeps_reporting(reporter)
        write(file, "second")
        balancer.answer = guarded(SECRET, "second")
        assert keeps_reporting(reporter)
        assert balancer.requests[-1].headers["authorization"] == "Bearer second"
        # The same size, inode and time: only a refusal tells.
        times = file.stat()
        with file.open("r+") as old:
            old.write("third!")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        balancer.answer = guarded("third!")
        asked = len(balancer.requests)
        assert keeps_reporting(reporter)

    shown = [request.headers["authorization"] for request in balancer.requests[asked:]]
    assert shown[:2] == ["Bearer second", "Bearer third!"]


@pytest.mark.fault
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_told_once_and_retried_slowly(
    status: int, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job's log gets one line, the balancer a request now and then, nobody the token."""
    caplog.set_level(logging.DEBUG)
    slow: dict[str, Any] = {"first_retry_s": 0.01, "max_retry_s": 600.0}
    with (
        ToldBalancer(lambda _: Reply(status=status)) as balancer,
        reporting(balancer.url, token_file=str(file), pushed=3, **slow) as reporter,
    ):
        assert eventually(lambda: reporter._backoff.failures == 1)
        assert not eventually(lambda: len(balancer.requests) > 1, timeout_s=0.3)
        assert reporter.unsent_steps == 3
        assert reporter.refused == 0
    assert caplog.text.count(f"status {status}") == 1
    assert SECRET not in caplog.text
    assert SECRET not in repr(reporter._settings)


@pytest.mark.fault
def test_a_token_that_comes_later_is_found(tmp_path: Path) -> None:
    """A file that is missing at first costs nothing but the wait."""
    path = tmp_path / "late"
    with (
        ToldBalancer(guarded(SECRET)) as balancer,
        reporting(balancer.url, token_file=str(path), pushed=1) as reporter,
    ):
        assert eventually(lambda: reporter._backoff.failures >= 1)
        assert not balancer.requests
        write(path, SECRET)
        assert eventually(lambda: reporter.sent >= 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"two words", b"a\r\nX-Evil: 1", "tök€n".encode(), b"x" * (MAX_TOKEN_BYTES + 1)],
    ids=["empty", "blank", "words", "header", "letters", "long"],
)
def test_what_is_no_token_is_not_sent(content: bytes, file: Path) -> None:
    """A wrong file is an error that names the file and tells nothing of its content."""
    file.write_bytes(content)
    with pytest.raises(CredentialsError, match="must hold one token and nothing else") as caught:
        _ = Token(str(file)).value
    assert str(caught.value).startswith(str(file))


def test_a_token_that_others_can_read_is_told_of(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is used all the same, with one warning for the file's mode."""
    file.chmod(0o644)
    token = Token(str(file))
    assert token.value == SECRET
    token.forget()
    assert token.value == SECRET
    assert caplog.text.count("has mode 644") == 1
    assert SECRET not in caplog.text


def test_the_environment_names_the_files() -> None:
    """Every file has its variable."""
    names = "token_file", "ca_file", "cert_file", "key_file"
    environ = {f"LIBRA_{name.upper()}": f"/etc/{name}" for name in names}
    found = settings_from_env({"LIBRA_BALANCER": "https://h", "LIBRA_JOB": "j", **environ})
    assert found is not None
    assert [getattr(found, name) for name in names] == [f"/etc/{name}" for name in names]
    with pytest.raises(ValueError, match="key_file='/k': needs the cert_file"):
        settings_from_env({"LIBRA_BALANCER": "https://h", "LIBRA_JOB": "j", "LIBRA_KEY_FILE": "/k"})


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A certificate authority and where it keeps what it signs."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("authority", key, "authority", key, authority=True)
        own = cls(folder=folder, key=key, certificate=certificate)
        (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return own

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.pem")

    def sign(self, name: str) -> tuple[str, str]:
        """Return the files of a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(name, key, "authority", self.key, authority=False)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(files[0]), str(files[1])


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    subject, signer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=signer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=1),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), True)
    if not authority:
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([loopback]), False)
    return builder.sign(issuer_key, hashes.SHA256())


@contextmanager
def secured(authority: Authority, *, mutual: bool = False) -> Iterator[ToldBalancer]:
    """Run a balancer behind TLS, with ``mutual`` for the authority's clients alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    if mutual:
        context.load_verify_locations(authority.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    balancer = ToldBalancer(lambda _: Reply())
    balancer.secure(context)
    with balancer:
        yield balancer


def test_a_balancer_behind_tls_is_trusted_by_its_authority(tmp_path: Path) -> None:
    """The balancer's certificate is checked against LIBRA_CA_FILE, and no other's."""
    right, wrong = (Authority.make(tmp_path / name) for name in ("right", "wrong"))
    with secured(right) as balancer:
        with reporting(balancer.url, ca_file=right.ca_file, pushed=1) as reporter:
            assert eventually(lambda: reporter.sent >= 1)
        asked = len(balancer.requests)
        for ca_file in ("", wrong.ca_file, str(tmp_path / "absent")):
            with reporting(balancer.url, pushed=1, ca_file=ca_file) as reporter:
                assert eventually(lambda: reporter._backoff.failures >= 1)
                assert reporter.sent == 0
        assert len(balancer.requests) == asked


@pytest.mark.fault
def test_a_client_certificate_is_shown_and_followed(tmp_path: Path) -> None:
    """Mutual TLS works, also when the certificate comes, or is renewed, while the job runs."""
    authority = Authority.make(tmp_path / "authority")
    cert_file, key_file = tmp_path / "client.pem", tmp_path / "client.key"
    files: dict[str, Any] = {"cert_file": str(cert_file), "key_file": str(key_file)}
    with (
        secured(authority, mutual=True) as balancer,
        reporting(balancer.url, ca_file=authority.ca_file, pushed=1, **files) as reporter,
    ):
        assert eventually(lambda: reporter._backoff.failures >= 1)
        assert not balancer.requests
        for _ in range(2):
            signed = authority.sign("client")
            for source, target in zip(signed, (cert_file, key_file), strict=True):
                target.write_bytes(Path(source).read_bytes())
            connections = set(balancer.connections)
            assert keeps_reporting(reporter)
            assert eventually(lambda: bool(balancer.connections - connections))  # noqa: B023


def test_a_balancer_on_a_unix_socket_is_reached(tmp_path: Path) -> None:
    """``unix:///path.sock`` is an address like any other."""
    with tempfile.TemporaryDirectory(prefix="libra-") as folder:
        path = Path(folder, "balancer.sock")
        balancer = ToldBalancer(lambda _: Reply(), unix=path)
        with balancer, reporting(f"unix://{path}", pushed=1) as reporter:
            assert eventually(lambda: reporter.sent >= 1)
    assert balancer.requests[0].path == "/api/v1/jobs/job/reports"
