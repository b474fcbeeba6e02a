"""The policies of the steps that this rank has drawn, agreed on with the others and remembered."""

import os
import threading
from collections.abc import Callable

from torch import distributed

from libra.agent.agreement import KEPT_STEPS, agree, confirm, in_time, store_name
from libra.agent.identity import attempt_from_env, run_from_env
from libra.agent.launch import join_launch
from libra.agent.numbers import integer, seconds
from libra.attention.store import Store, default_store
from libra.balancer.policy import Policy, encode_policy


class AgreedPolicies:
    """Agree on each step's policy, and keep those of steps that may not be finished.

    A loader reads ahead, so a checkpoint holds policies of steps that nobody has trained yet; a
    job resumed from it proposes the same ones again.
    """

    def __init__(
        self, store: Store | None, *, name: str, attempt: int | None, timeout_s: float
    ) -> None:
        """Take the job's store, whose decisions these are, and the longest wait for an answer.

        Without an attempt the ranks find one together when they first agree.

        Raises:
            ValueError: no name, a negative count of restarts, or no time to wait.
        """
        if not name:
            raise ValueError("name='': must name this sampler's decisions")
        self._store, self._name = store, name
        self._own_attempt = None if attempt is None else integer("attempt", attempt)
        # What the environment says wrongly is said now, not in the middle of an epoch.
        self._from_env = attempt_from_env() if attempt is None else 0
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._lock = threading.Lock()
        self._known: dict[int, Policy] = {}
        self._begun: tuple[int, str] | None = None

    def policy(self, step: int, propose: Callable[[], Policy]) -> Policy:
        """Return the policy of a step, the same on all ranks; blocks until one has decided.

        Raises:
            TimeoutError: no answer in time.
            RuntimeError: the step was begun under another policy before the job was resumed.
        """
        with self._lock:
            saved, begun = self._known.get(step), self._begun
        policy = agree(
            self._store,
            sampler=self._name,
            attempt=self._attempt,
            step=step,
            propose=propose if saved is None else lambda: saved,
            timeout_s=self._timeout_s,
        )
        if begun is not None and begun[0] == step and begun[1] != policy.checksum:
            raise RuntimeError(
                f"Step {step} was begun under policy {begun[1]} and the job decided on "
                f"{policy.checksum}: some ranks resumed without the state, or from another step. "
                "Resume all of them from one checkpoint."
            )
        with self._lock:
            self._known[step] = policy
            if len(self._known) > KEPT_STEPS:
                del self._known[min(self._known)]
        return policy

    @property
    def _attempt(self) -> int:
        if self._own_attempt is None:
            self._own_attempt = self._joined() if distributed.is_initialized() else self._from_env
        return self._own_attempt

    def _joined(self) -> int:
        """Return the attempt that all ranks of this launch take."""
        store = default_store() if self._store is None else self._store
        rank, run = distributed.get_rank(), run_from_env(os.environ)
        what = f"the launch of the job, in {store_name(store)}"
        return in_time(
            lambda: join_launch(store, rank=rank, run=run, attempt=self._from_env),
            what,
            self._timeout_s,
        ).attempt

    def confirm(self, name: str, value: str) -> None:
        """Raise ``RuntimeError`` unless all ranks have one value under a name."""
        confirm(
            self._store,
            sampler=self._name,
            attempt=self._attempt,
            name=name,
            value=value,
            timeout_s=self._timeout_s,
        )

    def unfinished(self, step: int) -> dict[str, str]:
        """Return, by step, the encoded policies of a step and those after it."""
        with self._lock:
            known = {s: policy for s, policy in self._known.items() if s >= step}
        return {str(s): encode_policy(known[s]).decode() for s in sorted(known)}

    def resume(self, policies: dict[int, Policy], begun: int | None) -> None:
        """Propose these from now on; hold the job to that of a step that was begun."""
        with self._lock:
            self._known = dict(policies)
            self._begun = None if begun is None else (begun, policies[begun].checksum)
