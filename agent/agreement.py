"""Agree inside the job, through its own c10d store: on a step's policy, on what an epoch draws.

Ranks that use different policies for one step train on different data, so the first to reach a
step decides it for all by one compare-and-set. The balancer is not on this path. How decisions
are kept, and old ones removed, is ``decisions.py``'s.

Assumed, and where it does not hold a rank fails rather than decide alone:

- All ranks of an attempt share the store, and give the same attempt, which grows by restarts;
  ``launch.py`` finds one where the environment gives each rank its own.
- No rank is more than ``kept_steps`` steps behind another of its attempt.
- Two samplers of one job have different names.

A decision needs one rank only and stands once made: one that dies after it, before it trained,
leaves it to the others, body and all, and one that dies before leaves nothing that binds them. A
new attempt, of any size and from any step, decides all its steps anew; a rank of an earlier one
that still runs gets that one's decisions, or none.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from torch.distributed import DistError

from libra.agent.decisions import Decisions
from libra.attention.store import Store, default_store
from libra.balancer.policy import Policy

# A loader may run tens of steps ahead of its peers. A step's key takes under a hundred bytes.
KEPT_STEPS = 1024

T = TypeVar("T")


def agree(
    store: Store | None,
    *,
    attempt: int,
    step: int,
    propose: Callable[[], Policy],
    timeout_s: float,
    sampler: str = "train",
    kept_steps: int = KEPT_STEPS,
) -> Policy:
    """Return the policy of the step: the same on all ranks of the attempt, once and for good.

    Args:
        store: the job's own; the default process group's when ``None``.
        attempt: the job's restart count; each attempt decides anew.
        step: optimizer step.
        propose: gives this rank's policy, used if no other rank has decided the step.
        timeout_s: the longest to wait for the store.
        sampler: whose steps these are.
        kept_steps: the most that ranks may be apart; the same on all.

    Raises:
        TimeoutError: the store gave no answer in time. The job must stop: the others may
            have decided on a policy that this rank cannot know.
        RuntimeError: this rank's attempt or step was replaced by a newer one.
    """
    store = default_store() if store is None else store
    decisions = Decisions(store, sampler=sampler, attempt=attempt, kept_steps=kept_steps)
    proposal = propose()
    what = f"the policy of step {step}, attempt {attempt}, in {store_name(store)}"
    return in_time(lambda: decisions.policy(step, proposal, timeout_s), what, timeout_s)


def confirm(
    store: Store | None,
    *,
    attempt: int,
    name: str,
    value: str,
    timeout_s: float,
    sampler: str = "train",
) -> None:
    """Make sure that all ranks of the attempt have one value under a name.

    Nobody waits for the others: a rank's value is compared with the first's, and an error shows
    the parts, with commas between them, that differ. Of an attempt's names the newest
    ``decisions.KEPT_NAMES`` are known.

    Raises:
        RuntimeError: the first rank had another value, or this rank's attempt was replaced.
        TimeoutError: the store gave no answer in time.
    """
    store = default_store() if store is None else store
    decisions = Decisions(store, sampler=sampler, attempt=attempt, kept_steps=KEPT_STEPS)
    what = f"{name}, attempt {attempt}, in {store_name(store)}"
    first = in_time(lambda: decisions.value(name, value), what, timeout_s)
    if first != value:
        own, other = (", ".join(sorted(parts)) for parts in _differing(value, first))
        raise RuntimeError(
            f"{name}: this rank has {own}, and the first one {other}. All ranks must have the "
            "same, and a second sampler needs a name of its own."
        )


def _differing(one: str, other: str) -> tuple[set[str], set[str]]:
    """Return what two lists, of parts with commas between them, do not have in common."""
    parts = set(one.split(", ")), set(other.split(", "))
    return parts[0] - parts[1], parts[1] - parts[0]


def store_name(store: Store) -> str:
    """Name the store for an error; a TCPStore's ``repr`` may ask a name server, for seconds."""
    port = getattr(store, "port", None)
    where = "" if port is None else f" at {getattr(store, 'host', '')}:{port}"
    return f"{type(store).__name__}{where}"


def in_time(call: Callable[[], T], what: str, timeout_s: float) -> T:
    """Return what the call does; raise ``TimeoutError`` after ``timeout_s``.

    Most store calls take no timeout and wait for ever on a host that froze, so they are made on
    a thread that can be left behind.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            error.add_note(f"This happened while agreeing on {what}.")
            outcome.set_exception(error)

    threading.Thread(target=run, name="libra-agree", daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except (TimeoutError, DistError) as error:
        raise TimeoutError(f"No answer within {timeout_s} s for {what}.") from error
