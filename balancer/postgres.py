"""The way from ``--store postgresql://...`` to a backend, without a need for the driver."""

from typing import TYPE_CHECKING

from libra.balancer.storage import StoreError
from libra.balancer.store_settings import StoreSettings

if TYPE_CHECKING:
    from libra.balancer.postgres_store import PostgresBackend


def is_postgres(store: str) -> bool:
    """Tell whether ``--store`` names a PostgreSQL database rather than a file."""
    return store.startswith(("postgresql://", "postgres://"))


def open_postgres(settings: StoreSettings) -> "PostgresBackend":
    """Connect to the database and make the tables; raise ``StoreError``."""
    try:
        from libra.balancer.postgres_store import PostgresBackend
    except ImportError as error:
        # The driver without the C library that it needs is an ImportError, too.
        if (error.name or "psycopg").partition(".")[0] != "psycopg":
            raise
        raise StoreError(
            "a store in PostgreSQL needs psycopg: pip install 'libra-balancer[postgres]'"
        ) from error
    return PostgresBackend(
        settings.store, schema=settings.store_schema, lead_timeout_s=settings.lead_timeout_s
    )
