"""An issuer's public keys: read from a file or fetched, kept, and refreshed on a thread.

An issuer that is down, or answers nonsense, changes nothing: the keys that are known go on.
"""

import json
import logging
import ssl
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import jwt

from libra.balancer.access_settings import AccessSettings

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256")
# Strangers can name keys that nobody has: each such name may cost one fetch in this time.
MIN_REFRESH_S = 5.0
_TIMEOUT_S = 5.0
_DEADLINE_S = 15.0
_MAX_BYTES = 1 << 20
_MAX_KEYS = 64
_MIN_RSA_BITS = 2048

Keys = dict[str, jwt.PyJWK]


class IssuerKeys:
    """The keys of the settings' issuer by their ids; empty until they were read once."""

    def __init__(self, settings: AccessSettings, min_refresh_s: float = MIN_REFRESH_S) -> None:
        self.keys: Keys = {}
        self.fault: str | None = "the issuer's keys are not known yet"
        self.faults = 0
        self._settings = settings
        self._min_refresh_s = min_refresh_s
        self._asked = threading.Event()
        self._stop = False
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []
        self._refreshed_s = -float("inf")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the keys, and again from time to time; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="libra-oidc", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        self._stop = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def refresh_soon(self) -> Future[None] | None:
        """Return what is done once the keys were read anew; nothing if they just were."""
        with self._lock:
            if time.monotonic() - self._refreshed_s < self._min_refresh_s:
                return None
            done: Future[None] = Future()
            self._waiting.append(done)
        self._asked.set()
        return done

    def _run(self) -> None:
        while not self._stop:
            self._refresh()
            # While nothing is known, an issuer that comes up late is noticed early.
            every_s = self._settings.oidc_refresh_s if self.keys else self._min_refresh_s
            self._asked.wait(every_s)
            self._asked.clear()

    def _refresh(self) -> None:
        try:
            keys = parse_keys(self._read())
            if keys.keys() != self.keys.keys():
                logger.info("The token issuer has %d keys.", len(keys))
            self.keys, self.fault = keys, None
        except Exception as error:
            self.faults += 1
            self.fault = f"the issuer's keys cannot be read: {type(error).__name__}: {error}"
            logger.error("The token issuer's keys stay as they were: %s.", self.fault)
        with self._lock:
            self._refreshed_s = time.monotonic()
            waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.set_result(None)

    def _read(self) -> bytes:
        where = self._settings.oidc_jwks
        if where and "://" not in where:
            return Path(where).read_bytes()[: _MAX_BYTES + 1]
        context = ssl.create_default_context(cafile=self._settings.oidc_ca or None)
        with httpx.Client(verify=context, timeout=_TIMEOUT_S) as client:
            if not where:
                issuer = self._settings.oidc_issuer.rstrip("/")
                found = json.loads(
                    self._fetch(client, f"{issuer}/.well-known/openid-configuration")
                )
                if found["issuer"] != self._settings.oidc_issuer:
                    raise ValueError(f"the issuer calls itself {found['issuer']!r}")
                where = str(found["jwks_uri"])
            return self._fetch(client, where)

    def _fetch(self, client: httpx.Client, url: str) -> bytes:
        headers = {}
        if self._settings.oidc_token and url.startswith(self._origin()):
            token = Path(self._settings.oidc_token).read_text().strip()
            headers["Authorization"] = f"Bearer {token}"
        deadline = time.monotonic() + _DEADLINE_S
        body = bytearray()
        with client.stream("GET", url, headers=headers) as response:
            if response.status_code != 200:
                raise ValueError(f"{url} answered {response.status_code}")
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES or time.monotonic() > deadline:
                    raise ValueError(f"{url} sends too much, or too slowly")
        return bytes(body)

    def _origin(self) -> str:
        """Return the beginning of addresses that may see our token."""
        url = httpx.URL(self._settings.oidc_jwks or self._settings.oidc_issuer)
        return f"{url.scheme}://{url.netloc.decode()}/"


def parse_keys(body: bytes) -> Keys:
    """Return a key set's keys for signatures that count; raise ``ValueError`` if there is none."""
    keys: Keys = {}
    for entry in json.loads(body)["keys"][:_MAX_KEYS]:
        key = _usable(entry)
        if key is not None:
            keys[str(entry["kid"])] = key
    if not keys:
        raise ValueError(f"no key with an id for {' or '.join(ALGORITHMS)}")
    return keys


def _usable(entry: dict[str, Any]) -> jwt.PyJWK | None:
    """Return the key if it is a public one of a kind that counts: never a shared secret."""
    if entry.get("kty") not in ("RSA", "EC") or not entry.get("kid"):
        return None
    if entry.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK.from_dict(entry)
    except (jwt.PyJWTError, ValueError):
        return None
    short = entry["kty"] == "RSA" and key.key.key_size < _MIN_RSA_BITS
    return None if short or key.algorithm_name not in ALGORITHMS else key
