"""Agree on one policy per step inside the job, through its own c10d store.

Ranks that use different policies for one step train on different data, so the first to reach a
step decides it for all by one compare-and-set. The balancer is not on this path. Assumes that
all ranks of an attempt share the store, and that none falls ``KEPT_STEPS`` steps behind.
"""

import datetime
import threading
from collections.abc import Callable
from concurrent.futures import Future

from torch.distributed import DistStoreError

from libra.attention.store import Store, default_store
from libra.balancer.policy import Policy, decode_policy, encode_policy

# A loader may run tens of steps ahead of its peers; a key that it still needs must not be gone,
# or it would decide the step anew and alone. A step's key takes under a hundred bytes.
KEPT_STEPS = 1024


def agree(
    store: Store | None,
    *,
    attempt: int,
    step: int,
    propose: Callable[[], Policy],
    timeout_s: float,
) -> Policy:
    """Return the policy of the step: the same on all ranks of the attempt, once and for good.

    Args:
        store: the job's own; the default process group's when ``None``.
        attempt: the job's restart count; each attempt decides anew.
        step: optimizer step.
        propose: gives this rank's policy, used if no other rank has decided the step.
        timeout_s: the longest to wait for the store.

    Raises:
        TimeoutError: the store gave no answer in time. The job must stop: the others may
            have decided on a policy that this rank cannot know.
    """
    store = default_store() if store is None else store
    proposal = propose()
    where = f"the policy of step {step}, attempt {attempt}, in {store!r}"
    outcome: Future[Policy] = Future()

    def decide() -> None:
        try:
            outcome.set_result(_decide(store, attempt, step, proposal, timeout_s))
        except Exception as error:
            error.add_note(f"This happened while agreeing on {where}.")
            outcome.set_exception(error)

    # Most store calls take no timeout and wait for ever on a host that froze, so they are made
    # on a thread that can be left behind.
    threading.Thread(target=decide, name="libra-agree", daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except (TimeoutError, DistStoreError) as error:
        raise TimeoutError(f"No answer within {timeout_s} s for {where}.") from error


def _decide(store: Store, attempt: int, step: int, proposal: Policy, timeout_s: float) -> Policy:
    key = _step_key(attempt, step)
    checksum = proposal.checksum
    if store.check([key]):
        chosen = store.get(key).decode()
    else:
        # The body first: a checksum that can be read always has a body to go with it.
        store.set(_body_key(attempt, checksum), encode_policy(proposal).decode())
        chosen = store.compare_set(key, "", checksum).decode()
        if chosen == checksum and step >= KEPT_STEPS:
            store.delete_key(_step_key(attempt, step - KEPT_STEPS))
    if chosen == checksum:
        return proposal
    body_key = _body_key(attempt, chosen)
    store.wait([body_key], datetime.timedelta(seconds=timeout_s))
    policy = decode_policy(store.get(body_key))
    if policy.checksum != chosen:
        raise RuntimeError(f"The body under {body_key} has checksum {policy.checksum}.")
    return policy


def _step_key(attempt: int, step: int) -> str:
    return f"libra/{attempt}/{step}"


def _body_key(attempt: int, checksum: str) -> str:
    # Bodies are never deleted: there is one a published policy, and steps long past may name it.
    return f"libra/{attempt}/policy/{checksum}"
