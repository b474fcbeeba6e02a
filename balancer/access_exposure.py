"""Whether the balancer may listen where it is told to, and with which certificates."""

import ssl
from pathlib import Path
from typing import Any

from libra.balancer.access_identity import Identity
from libra.balancer.access_settings import AccessSettings
from libra.balancer.certificates import no_password
from libra.balancer.listen_settings import ListenSettings, is_loopback


def listens_locally(listen: ListenSettings) -> bool:
    """Tell whether only this machine can reach the balancer."""
    return bool(getattr(listen, "uds", "")) or is_loopback(listen.host)


def check_exposure(listen: ListenSettings, access: AccessSettings) -> None:
    """Raise ``ValueError`` where others could change what ranks train on without being asked."""
    if listens_locally(listen) or access.guarded or access.insecure_no_auth:
        return
    raise ValueError(
        f"host={listen.host!r}: must be a loopback address, such as 127.0.0.1, or come with "
        "tokens (libra token new makes them), tls_client_ca or oidc_issuer; insecure_no_auth "
        "lets anyone who reaches it change what ranks train on"
    )


def exposure_warnings(listen: ListenSettings, access: AccessSettings) -> list[str]:
    """Return what an operator should know of a setting that is allowed and not safe."""
    if listens_locally(listen):
        return []
    if access.insecure_no_auth:
        return ["Anyone who reaches this balancer may change what ranks train on."]
    if not access.tls_cert:
        return ["Tokens travel unencrypted, unless a proxy in front of the balancer has TLS."]
    return []


def tls_options(access: AccessSettings) -> dict[str, Any]:
    """Return uvicorn's settings for HTTPS; none without a certificate.

    A client without a certificate gets as far as the probes and the login page, since a kubelet
    or a browser has none; one with a certificate that no authority signed gets nowhere.
    """
    if not access.tls_cert:
        return {}
    options: dict[str, Any] = {"ssl_certfile": access.tls_cert, "ssl_keyfile": access.tls_key}
    if access.tls_client_ca:
        options["ssl_ca_certs"] = access.tls_client_ca
        options["ssl_cert_reqs"] = ssl.CERT_OPTIONAL
        # Here, since it needs the server's own parser, which is not on every system.
        from libra.balancer.peer_certificate import CertificateProtocol

        options["http"] = CertificateProtocol
    return options


def check_files(access: AccessSettings) -> None:
    """Raise ``ValueError`` for a file of tokens or certificates that cannot be used."""
    Identity(access)
    if not access.tls_cert:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        path = getattr(access, name)
        try:
            Path(path or access.tls_cert).read_bytes()
        except OSError as error:
            raise ValueError(f"{name}={path!r}: cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(access.tls_cert, access.tls_key, password=no_password)
        if access.tls_client_ca:
            context.load_verify_locations(access.tls_client_ca)
    except (ssl.SSLError, ValueError) as error:
        where = f"tls_cert={access.tls_cert!r}, tls_key={access.tls_key!r}"
        raise ValueError(f"{where}: must be PEM files that belong together: {error}") from error
