"""The name on a client's certificate, which the server does not pass on by itself."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class CertificateProtocol(HttpToolsProtocol):
    """A connection whose requests carry the common name of the client's checked certificate."""

    _common_name = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._common_name = common_name(transport.get_extra_info("peercert"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.setdefault("state", {})["certificate"] = self._common_name


def common_name(certificate: Any) -> str:
    """Return the common name of a checked certificate, ``""`` if there is none or several."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
