"""``libra serve`` with certificates, and the commands that ask it: over TLS, and who may what."""

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509

from libra.balancer import __main__ as command
from tests.certificates import Certificate, make_certificate
from tests.guarded import TokenFile, token_file
from tests.running import RunningBalancer, running_balancer, wait_for


@dataclass(frozen=True, kw_only=True)
class Served:
    """A balancer with TLS, whose files of certificate and key can be replaced."""

    balancer: RunningBalancer
    authority: Certificate
    tokens: TokenFile
    cert: Path
    key: Path

    def replace(self, new: Certificate) -> None:
        """Renew both files, each in one move."""
        for source, place in ((new.cert, self.cert), (new.key, self.key)):
            fresh = place.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.rename(place)

    def serial(self) -> int:
        """Return the serial number of the certificate that a new connection is shown."""
        where = urlsplit(self.balancer.url)
        shown = ssl.get_server_certificate((str(where.hostname), int(where.port or 0)), timeout=20)
        return x509.load_pem_x509_certificate(shown.encode()).serial_number


def serial_of(certificate: Certificate) -> int:
    return x509.load_pem_x509_certificate(certificate.cert.read_bytes()).serial_number


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    authority = make_certificate(tmp_path, "authority")
    first = make_certificate(tmp_path, "balancer", by=authority)
    tokens = token_file(tmp_path / "tokens")
    cert, key = tmp_path / "served.pem", tmp_path / "served.key"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())
    options = [
        *("--tls-cert", str(cert), "--tls-key", str(key), "--tls-reload-s", "0.05"),
        *("--tls-client-ca", str(authority.cert), "--tokens", str(tokens.path)),
        *("--tls-clients", "admin:ops", "--tls-clients", "report:node-*=job-*"),
    ]
    with running_balancer(tmp_path / "s.sqlite", *options) as balancer:
        yield Served(balancer=balancer, authority=authority, tokens=tokens, cert=cert, key=key)


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("BALANCER", "JOB", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"LIBRA_{name}", raising=False)


def written(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_commands_ask_over_tls(
    served: Served,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By flags or the variables that agents have, with a certificate or a token."""
    ops = make_certificate(tmp_path, "ops", by=served.authority)
    url, trusted = ("--url", served.balancer.url), ("--ca-file", str(served.authority.cert))
    shown = ("--cert-file", str(ops.cert), "--key-file", str(ops.key))
    token = ("--token-file", written(tmp_path / "read", served.tokens.texts["read"]))

    assert served.balancer.url.startswith("https://")
    for who in (shown, token):
        for name in (["status"], ["jobs"], ["top", "--once"], ["doctor"]):
            assert command.main([*name, *url, *trusted, *who]) == 0, capsys.readouterr().out
    monkeypatch.setenv("LIBRA_CA_FILE", str(served.authority.cert))
    monkeypatch.setenv("LIBRA_CERT_FILE", str(ops.cert))
    monkeypatch.setenv("LIBRA_KEY_FILE", str(ops.key))
    assert command.main(["status", *url]) == 0


def test_commands_say_plainly_why_not(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each: whom they do not trust, who was refused and which scope it takes; a file
    that cannot be used is named, with status 2.
    """
    node = make_certificate(tmp_path, "node-1", by=served.authority)
    url, trusted = ("--url", served.balancer.url), ("--ca-file", str(served.authority.cert))
    report = written(tmp_path / "report", served.tokens.texts["report"])
    cases = [
        ([], 1, "CERTIFICATE_VERIFY_FAILED"),
        ([*trusted], 1, "--token-file"),
        ([*trusted, "--token-file", written(tmp_path / "x", "libra_x")], 1, "--token-file"),
        ([*trusted, "--token-file", report], 1, "needs the scope read; libra token new"),
        ([*trusted, "--cert-file", str(node.cert), "--key-file", str(node.key)], 1, "scope read"),
        (["--ca-file", report], 2, "ca_file="),
        ([*trusted, "--cert-file", report], 2, "cert_file="),
    ]
    for name in (["status"], ["jobs"], ["top"]):
        for options, status, text in cases:
            assert command.main([*name, *url, *options]) == status
            [line] = capsys.readouterr().err.splitlines()
            assert text in line


def test_doctor_of_a_reporter(
    served: Served,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token that may only report is all that a job needs: nothing is wrong, and what could not
    be looked at is said; with another job's name it is.
    """
    report = written(tmp_path / "report", served.tokens.texts["report"])
    asked = ["doctor", "--url", served.balancer.url, "--ca-file", str(served.authority.cert)]
    monkeypatch.setenv("LIBRA_JOB", "mine")
    assert command.main([*asked, "--token-file", report]) == 0
    assert "skipped events       this user may not follow events" in capsys.readouterr().out

    monkeypatch.setenv("LIBRA_JOB", "other")
    assert command.main([*asked, "--token-file", report]) == 1
    assert "fail    access" in capsys.readouterr().out
    assert command.main(asked) == 1
    assert "the token is missing" in capsys.readouterr().out


def test_a_renewed_certificate_needs_no_restart(served: Served, tmp_path: Path) -> None:
    """New connections are shown it, open ones go on, and files that do not belong together change
    nothing but the log, until they do.
    """
    second = make_certificate(tmp_path, "balancer", by=served.authority)
    third = make_certificate(tmp_path, "balancer", by=served.authority)
    context = ssl.create_default_context(cafile=str(served.authority.cert))
    with httpx.Client(base_url=served.balancer.url, verify=context, timeout=20) as client:
        with client.stream("GET", "/livez") as first:
            before = first.extensions["network_stream"].get_extra_info("socket").fileno()
        served.replace(second)
        wait_for(lambda: served.serial() == serial_of(second))
        with client.stream("GET", "/livez") as again:
            after = again.extensions["network_stream"].get_extra_info("socket").fileno()
        assert (first.status_code, again.status_code, before) == (200, 200, after)

        served.key.write_bytes(third.key.read_bytes())
        wait_for(lambda: "stays as it was" in served.balancer.log.read_text())
        assert served.serial() == serial_of(second)
        served.replace(third)
        wait_for(lambda: served.serial() == serial_of(third))
        assert httpx.get(f"{served.balancer.url}/livez", verify=context).status_code == 200

    told = [json.loads(line) for line in served.balancer.log.read_text().splitlines()]
    assert sum("Took up the certificate" in line["event"] for line in told) == 2
