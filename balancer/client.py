"""Ask a balancer from the command line: one answer within a deadline, or one line of why not."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from libra.balancer.certificates import no_password
from libra.balancer.version import libra_version

DEFAULT_URL = "http://127.0.0.1:8765"
_MAX_ANSWER_BYTES = 64 << 20
_REMEDIES = {
    401: "; name a file with a token by --token-file or LIBRA_TOKEN_FILE",
    403: "; libra token new makes a token that may",
}


class ClientError(Exception):
    """No usable answer came; the message is one line for people.

    Attributes:
        status: of the answer that refused, 0 if there was none.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer of any status."""

    status: int
    headers: httpx.Headers
    body: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ClientError("the answer is no JSON: is this the balancer's address?") from None


class Client:
    """A balancer at ``http://host:port``, ``https://``, a path below one, or ``unix:///path``.

    Args:
        token_file: holds the token to show; empty for none.
        ca_file: authorities to trust in place of the system's, PEM.
        cert_file, key_file: the certificate to show, PEM; the key may be in the same file.

    Raises:
        ValueError: the address is none of these, or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: str = "",
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        timeout_s: float = 5.0,
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        headers = {"Libra-Version": libra_version(), "User-Agent": f"libra/{libra_version()}"}
        if token_file:
            headers["Authorization"] = f"Bearer {read_token(token_file)}"
        self._client = httpx.Client(
            base_url=_base(url),
            transport=_transport(url, ca_file, cert_file, key_file),
            headers=headers,
            timeout=timeout_s,
            # Proxies of the environment are for the world, not for a balancer next door.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def ask(self, path: str, **query: Any) -> Reply:
        """Return whatever is answered; raise ``ClientError`` if nothing is in time."""
        deadline = time.monotonic() + self.timeout_s
        body = bytearray()
        with self._told(), self._client.stream("GET", path, params=query) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer trickles")
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ClientError(f"{self.url}{path}: the answer is too long")
            return Reply(status=response.status_code, headers=response.headers, body=bytes(body))

    def view(self, path: str, **query: Any) -> Any:
        """Return the JSON of an answer; raise ``ClientError`` for one that refuses."""
        reply = self.ask(path, **query)
        if reply.status != 200:
            told = f"{self.url}{path}: {_why(reply)}{_REMEDIES.get(reply.status, '')}"
            raise ClientError(told, status=reply.status)
        return reply.json()

    @contextmanager
    def lines(self, path: str, *, silence_s: float) -> Iterator[Iterator[str]]:
        """Open an event stream and give its lines; ``ClientError`` after so long a silence."""
        timeout = httpx.Timeout(self.timeout_s, read=silence_s)
        with self._told(), self._client.stream("GET", path, timeout=timeout) as response:
            if response.status_code != 200:
                raise ClientError(
                    f"{self.url}{path}: status {response.status_code}", status=response.status_code
                )
            yield response.iter_lines()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Put what httpx raises into one line."""
        try:
            yield
        except httpx.TimeoutException:
            raise ClientError(f"{self.url}: no answer within {self.timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise ClientError(f"{self.url}: {str(error) or type(error).__name__}") from None


def read_token(path: str) -> str:
    """Return the token in a file; ``ValueError`` if there is none."""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"token_file={path!r}: cannot be read: {why}") from None
    if not token or not token.isascii() or any(c.isspace() for c in token):
        raise ValueError(f"token_file={path!r}: must hold one token and nothing else")
    return token


def _base(url: str) -> str:
    if url.startswith("unix:"):
        return "http://localhost"
    try:
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host:
            return url.rstrip("/")
    except (httpx.InvalidURL, ValueError):
        pass
    raise ValueError(f"url={url!r}: must be like http://host:8765 or unix:///path")


def _transport(url: str, ca_file: str, cert_file: str, key_file: str) -> httpx.HTTPTransport:
    if url.startswith("unix:"):
        return httpx.HTTPTransport(uds=url.removeprefix("unix:").removeprefix("//"))
    if not url.startswith("https:"):
        # Certificates take a while to load, and plain HTTP needs none.
        return httpx.HTTPTransport(verify=False)
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ValueError(f"ca_file={ca_file!r}: cannot be used: {error}") from None
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file or None, password=no_password)
        except (OSError, ValueError) as error:
            where = f"cert_file={cert_file!r}, key_file={key_file!r}"
            raise ValueError(f"{where}: cannot be used: {error}") from None
    return httpx.HTTPTransport(verify=context)


def _why(reply: Reply) -> str:
    try:
        problem = msgspec.json.decode(reply.body)
        return str(problem.get("detail") or problem["title"])
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError):
        return f"status {reply.status}"
