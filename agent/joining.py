"""Find out beside training which launch of the job a reporter's rank belongs to."""

import logging
import threading

from torch import distributed

from libra.agent.agreement import in_time
from libra.agent.launch import join_launch
from libra.agent.reporter import Reporter
from libra.attention.store import Store, apart, default_store

logger = logging.getLogger(__name__)

# A store that does not answer for so long is that of a job about to end.
TIMEOUT_S = 60.0


def join_beside(reporter: Reporter, store: Store | None, timeout_s: float = TIMEOUT_S) -> None:
    """Hold the reporter's reports until the launch is known, for ``timeout_s`` at most.

    Returns at once. Where the store gives no answer the environment's names stand.

    Args:
        store: the job's own; the default group's when ``None``.
    """
    rank, (run, attempt) = distributed.get_rank(), reporter.launch
    own = default_store() if store is None else store

    def join() -> None:
        try:
            # By a connection of its own: training may be waiting on the other.
            launch = in_time(
                lambda: join_launch(apart(own), rank=rank, run=run, attempt=attempt),
                "the launch of the job",
                timeout_s,
            )
            reporter.launch = launch.run, launch.attempt
        except Exception as error:
            logger.warning(
                "The job's store does not tell which launch this is, reporting as run %r, "
                "attempt %d: %s",
                run,
                attempt,
                error,
            )
        finally:
            reporter.held = False

    reporter.held = True
    try:
        threading.Thread(target=join, name="libra-join", daemon=True).start()
    except RuntimeError:
        reporter.held = False
        raise
