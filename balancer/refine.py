"""Even out cells by exchanging sequences between them, one for one or two for two.

Every round pairs the heaviest cells with the lightest and makes the best exchange of each pair,
all pairs at once; the heaviest cell of all, where its partner does not help, is tried with every
other cell. Rounds are counted, never timed, and all numbers are integers: every rank ends with
the same cells.

Shapes: N sequences; M cells of up to P slots; k pairs of cells; s exchangeable sets of a cell.
"""

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

MAX_ROUNDS = 96

# Partners that the heaviest cell of all is tried with, the lightest of all cells.
_MOST_PARTNERS = 64
# Exchanges of two for two are P**4 / 4 a pair: only so many pairs, and cells of so many slots.
_MOST_PAIRS_OF_TWOS = 32
_MOST_SLOTS_OF_TWOS = 16
# Cells of many more slots are even before any exchange; some of their slots are enough then.
_MOST_SLOTS = 256
# Outcomes weighed at once: a few megabytes.
_MOST_OUTCOMES = 1 << 19


class Cells:
    """Cells under exchange.

    Attributes:
        members: [M, P] sequences; N where a cell lacks the slot.
        loads: [M] cost of each cell.
    """

    def __init__(self, members: Int64, costs: Int64, weights: Int64) -> None:
        """``costs`` is [N], ``weights`` [M]; loads compare by load times weight."""
        self.members = members
        self._costs = np.append(costs, 0)[members]
        self.loads: Int64 = self._costs.sum(axis=1)
        self._weights = weights
        self._even = bool((weights == weights[0]).all())
        missing = members == len(costs)
        self._missing = missing if missing.any() else None
        slots = members.shape[1]
        self._sets = [np.arange(0, slots, -(-slots // _MOST_SLOTS))[:, None]]
        if 2 <= slots <= _MOST_SLOTS_OF_TWOS:
            self._sets.append(np.stack(np.triu_indices(slots, 1), axis=1))

    @property
    def times(self) -> Int64:
        """[M] load times weight."""
        return np.asarray(self.loads * self._weights)

    def refine(self, limit: int, max_rounds: int) -> None:
        """Exchange until no cell's time is above the limit, or nothing lowers the longest."""
        for _ in range(max_rounds):
            times = self.times
            falling = np.argsort(-times, kind="stable")
            top = int(times[falling[0]])
            above = int((times > limit).sum())
            if not above:
                return
            most = _MOST_OUTCOMES // len(self._sets[0]) ** 2
            count = min(above, len(falling) // 2, most)
            self._exchange(falling[:count], falling[::-1][:count], limit)
            if int(self.times[falling[0]]) < top:
                continue
            partners = falling[:0:-1][: min(_MOST_PARTNERS, most)]
            if not self._exchange_one(int(falling[0]), partners, limit):
                return

    def _exchange(self, heavy: Int64, light: Int64, limit: int) -> None:
        """Make the best exchange of each pair of [k] cells that lowers its heavier one."""
        for sets in self._sets:
            if sets.shape[1] > 1:
                # The heaviest pairs that one for one has left above the limit.
                left = np.flatnonzero(np.maximum(self.times[heavy], self.times[light]) > limit)
                left = left[:_MOST_PAIRS_OF_TWOS]
                heavy, light = heavy[left], light[left]
            if not len(heavy):
                return
            worst = self._outcomes(heavy, light, sets).reshape(len(heavy), -1)
            best = worst.argmin(axis=1)
            before = np.maximum(self.times[heavy], self.times[light])
            ok = worst[np.arange(len(heavy)), best] < before
            out, back = np.divmod(best[ok], len(sets))
            self._apply(heavy[ok], light[ok], sets[out], sets[back])

    def _exchange_one(self, heavy: int, partners: Int64, limit: int) -> bool:
        """Make the best exchange of one cell with any of the partners; say whether it helped."""
        pairs = np.full(len(partners), heavy)
        outcomes: list[tuple[int, int, Int64]] = []
        for sets in self._sets:
            worst = self._outcomes(pairs, partners, sets).reshape(-1)
            best = int(worst.argmin())
            outcomes.append((int(worst[best]), best, sets))
            if worst[best] <= limit:
                break
        time, best, sets = min(outcomes, key=lambda outcome: outcome[0])
        if time >= int(self.times[heavy]):
            return False
        pair, exchange = divmod(best, len(sets) ** 2)
        out, back = divmod(exchange, len(sets))
        self._apply(pairs[:1], partners[pair : pair + 1], sets[out][None], sets[back][None])
        return True

    def _outcomes(self, heavy: Int64, light: Int64, sets: Int64) -> Int64:
        """Return [k, s, s]: the slower cell's time after each exchange of each pair of cells."""
        gone, came = self._costs[heavy][:, sets[:, 0]], self._costs[light][:, sets[:, 0]]
        for slots in sets.T[1:]:
            gone, came = gone + self._costs[heavy][:, slots], came + self._costs[light][:, slots]
        gain = gone[:, :, None] - came[:, None, :]
        left = self.loads[heavy][:, None, None] - gain
        grown = self.loads[light][:, None, None] + gain
        if not self._even:
            left *= self._weights[heavy][:, None, None]
            grown *= self._weights[light][:, None, None]
        worst = np.maximum(left, grown, out=left)
        if self._missing is not None:
            never = np.iinfo(np.int64).max
            worst[self._missing[heavy][:, sets].any(axis=2)] = never
            worst.transpose(0, 2, 1)[self._missing[light][:, sets].any(axis=2)] = never
        return np.asarray(worst)

    def _apply(self, heavy: Int64, light: Int64, out: Int64, back: Int64) -> None:
        """Exchange slots [k, n] of [k] distinct heavy cells and [k, n] of as many light ones."""
        first, second = heavy[:, None], light[:, None]
        for values in (self.members, self._costs):
            values[first, out], values[second, back] = values[second, back], values[first, out]
        for cells in (heavy, light):
            self.loads[cells] = self._costs[cells].sum(axis=1)
