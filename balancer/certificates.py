"""The server's certificate, taken up anew when its files change: no restart for a renewal."""

import asyncio
import logging
import os
import ssl

logger = logging.getLogger(__name__)

Mark = tuple[int, ...]


class Certificate:
    """A certificate chain and its private key in PEM files, as a server's context has them.

    Connections that are open keep the certificate that they began with.
    """

    def __init__(self, context: ssl.SSLContext, cert: str, key: str) -> None:
        self._context = context
        self._cert = cert
        self._key = key
        self._seen = self._mark()

    async def watch(self, every_s: float) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Take up the files if they are others than before, and belong together."""
        # Not in the event loop's way: the files may be far away.
        mark = await asyncio.to_thread(self._mark)
        if mark == self._seen:
            return
        fault = await asyncio.to_thread(self._fault)
        if fault is None:
            try:
                self._context.load_cert_chain(self._cert, self._key, password=no_password)
            except (OSError, ValueError) as error:
                # Changed since they were found good: the next look finds them whole.
                logger.error("The certificate cannot be taken up: %s.", error)
                return
            logger.info("Took up the certificate in %s.", self._cert)
        else:
            logger.error("The certificate stays as it was: %s.", fault)
        self._seen = mark

    def _fault(self) -> str | None:
        """Say what is wrong with the files; a context that loads wrong ones would be spoilt."""
        try:
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trial.load_cert_chain(self._cert, self._key, password=no_password)
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _mark(self) -> Mark:
        mark: Mark = ()
        for path in (self._cert, self._key):
            try:
                found = os.stat(path)
            except OSError:
                continue
            mark += (found.st_ino, found.st_size, found.st_mtime_ns)
        return mark


def no_password() -> str:
    """Refuse a key under a password, which would be asked for at a terminal."""
    raise ValueError("the key must not be encrypted")
