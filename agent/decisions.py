"""What the ranks of a job have decided, in its store: first come decides, and old keys go.

Every key but a policy's body holds an entry ``[attempt, number, facts]``, changed by
compare-and-set only and never deleted, and a newer (attempt, number) takes an older one's place.
So a job's keys are few, whatever steps it skips and however often it restarts, and a rank that
comes too late finds a newer entry and fails, where it would else decide anew and alone.

    libra/{sampler}/step/{step % 2 K}          the policy's checksum; number is the step
    libra/{sampler}/bodies/{page % 2}          checksums of a page's; number is page = step // K
    libra/{sampler}/body/{attempt}/{page}/...  a policy's body, under its checksum
    libra/{sampler}/confirmed                  names and their values; number is 0

A body is listed before it is set and set before a step names it. A page's bodies go when the
page after the next lists its first: every rank is past them, if none is more than K steps behind.
"""

import datetime
from collections.abc import Callable

import msgspec

from libra.attention.store import Store
from libra.balancer.policy import Policy, decode_policy, encode_policy

Facts = dict[str, str]

# Loaders may be this many names, epochs as a rule, apart; beyond, a name is not compared.
KEPT_NAMES = 64
_POLICY = "policy"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What one key holds; entries are ordered by attempt, then by number."""

    attempt: int
    number: int
    facts: Facts

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.number


_NOTHING = Entry(attempt=-1, number=-1, facts={})


class Decisions:
    """One attempt's view of the store; all calls may block, for as long as the store does."""

    def __init__(self, store: Store, *, sampler: str, attempt: int, kept_steps: int) -> None:
        for name, value, least in (("attempt", attempt, 0), ("kept_steps", kept_steps, 1)):
            if value < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        self._store, self._attempt, self._kept_steps = store, attempt, kept_steps
        self._root = f"libra/{sampler}"

    def policy(self, step: int, proposal: Policy, timeout_s: float) -> Policy:
        """Return the step's policy: the proposal, unless another rank's was first.

        Raises:
            RuntimeError: a newer step or attempt has taken the step's place, or a body is false.
        """
        page, checksum = step // self._kept_steps, proposal.checksum

        def decide(facts: Facts) -> Facts:
            if not facts:
                self._publish(page, checksum, proposal)
            return facts or {_POLICY: checksum}

        key = f"{self._root}/step/{step % (2 * self._kept_steps)}"
        chosen = self._update(key, step, decide)[_POLICY]
        return proposal if chosen == checksum else self._fetch(page, chosen, timeout_s)

    def value(self, name: str, value: str) -> str:
        """Return what the first rank wrote under a name; raise as ``policy`` does."""

        def add(facts: Facts) -> Facts:
            if name in facts:
                return facts
            return dict([*facts.items(), (name, value)][-KEPT_NAMES:])

        return self._update(f"{self._root}/confirmed", 0, add)[name]

    def _publish(self, page: int, checksum: str, policy: Policy) -> None:
        """Make sure that the body is in the store and will be deleted with its page."""
        body = self._body_key(self._attempt, page, checksum)
        if self._store.check([body]):
            return

        def add(facts: Facts) -> Facts:
            return facts if checksum in facts else {**facts, checksum: str(policy.version)}

        key = f"{self._root}/bodies/{page % 2}"
        self._update(key, page, add, self._delete_bodies)
        self._store.set(body, encode_policy(policy).decode())
        # Whoever replaced the list before the body was set could not delete it.
        if _decode(self._read(key)).order != (self._attempt, page):
            self._store.delete_key(body)

    def _fetch(self, page: int, checksum: str, timeout_s: float) -> Policy:
        body = self._body_key(self._attempt, page, checksum)
        self._store.wait([body], datetime.timedelta(seconds=timeout_s))
        policy = decode_policy(self._store.get(body))
        if policy.checksum != checksum:
            raise RuntimeError(f"The body under {body} has checksum {policy.checksum}.")
        return policy

    def _delete_bodies(self, page: Entry) -> None:
        for checksum in page.facts:
            self._store.delete_key(self._body_key(page.attempt, page.number, checksum))

    def _update(
        self,
        key: str,
        number: int,
        change: Callable[[Facts], Facts],
        replacing: Callable[[Entry], None] | None = None,
    ) -> Facts:
        """Change the facts under a key until there is nothing to change; return them.

        ``change`` gets no facts where the entry is an older one. That is handed to ``replacing``
        before it is overwritten, as this rank may die next, and after, as until then ranks that
        are late may add to what it lists.
        """
        found = self._read(key)
        while True:
            entry = _decode(found)
            self._check_not_newer(key, entry, number)
            own = entry.order == (self._attempt, number)
            facts = entry.facts if own else {}
            changed = change(facts)
            if own and changed == facts:
                return facts
            if replacing and not own:
                replacing(entry)
            wanted = _encode(Entry(self._attempt, number, changed))
            seen = self._store.compare_set(key, found, wanted).decode()
            if replacing and not own and seen == wanted:
                replacing(entry)
            found = seen

    def _check_not_newer(self, key: str, entry: Entry, number: int) -> None:
        if entry.order > (self._attempt, number):
            raise RuntimeError(
                f"{key} belongs to attempt {entry.attempt}, number {entry.number}, by now: this "
                f"rank, at attempt {self._attempt}, number {number}, is of an attempt that was "
                f"replaced or more than {self._kept_steps} steps behind. A job that goes back to "
                "earlier steps needs a higher attempt, another pass over the data set_epoch with "
                "the next epoch, and a second sampler a name of its own."
            )

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _body_key(self, attempt: int, page: int, checksum: str) -> str:
        return f"{self._root}/body/{attempt}/{page}/{checksum}"


def _decode(found: str) -> Entry:
    return msgspec.json.decode(found, type=Entry) if found else _NOTHING


def _encode(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode()
