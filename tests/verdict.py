"""What the ranks of a drawn job told, judged over the job's whole life."""

from collections import Counter, defaultdict
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from libra.balancer.packing import PackedSequences, pack
from tests.schedule_rank import Event, State
from tests.schedules import GLOBAL_BATCH, LENGTHS, SEED, STEPS, TOKENS, Schedule

Segment = tuple[int, int, int]


@lru_cache(maxsize=STEPS)
def plain(step: int) -> Counter[Segment]:
    """Return what plain Ulysses trains on in a step: the next sequences of the epoch, in order."""
    epoch, place = divmod(step, len(_packed(0)) // GLOBAL_BATCH)
    seen: Counter[Segment] = Counter()
    for index in range(place * GLOBAL_BATCH, (place + 1) * GLOBAL_BATCH):
        own = _packed(epoch).sequence(index)
        seen.update(zip(own.document.tolist(), own.begin.tolist(), own.end.tolist(), strict=True))
    return seen


@lru_cache(maxsize=4)
def _packed(epoch: int) -> PackedSequences:
    return pack(LENGTHS, tokens=TOKENS, seed=SEED, epoch=epoch, method="stream")


def checkpoint(events: list[Event]) -> tuple[int, State]:
    """Return the step that the job would resume from now, and the state of it."""
    saved = [event for event in events if event.kind == "checkpoint"]
    latest = max(saved, key=lambda event: event.step, default=None)
    return (latest.step, latest.detail) if latest else (0, None)


def left_over(store: Any) -> list[Event]:
    """Tell of the bodies in a job's store that nothing will delete: no page lists them."""
    keys = set(store.list_keys())
    bodies = {key for key in keys if key.startswith("libra/train/body/")}
    for key in {"libra/train/bodies/0", "libra/train/bodies/1"} & keys:
        attempt, page, facts = msgspec.json.decode(store.get(key))
        bodies -= {f"libra/train/body/{attempt}/{page}/{checksum}" for checksum in facts}
    return [Event(kind="left", attempt=-1, rank=-1, detail=key) for key in sorted(bodies)]


class Life:
    """All that was told of one job, in order of telling within each rank."""

    def __init__(self, schedule: Schedule, events: list[Event]) -> None:
        self.schedule, self.events = schedule, events

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def problems(self) -> list[str]:
        """Return every broken promise; none in a good life."""
        return [
            *(f"a rank failed: {event}" for event in self.of("failed")),
            *(f"left in the store: {event.detail}" for event in self.of("left")),
            *self._policies(),
            *self._steps(),
        ]

    def faults(self) -> Counter[str]:
        """Count what went wrong as it was meant to."""
        counts = Counter(f"crash: {event.detail}" for event in self.of("crashed"))
        proposals = defaultdict(set)
        for event in self.of("proposed"):
            proposals[event.attempt, event.step].add(event.detail)
        counts["policies that differ"] = sum(len(found) > 1 for found in proposals.values())
        began = self.of("began")
        counts["restart"] = len(began) - 1
        sizes = [event.detail for event in began]
        counts["another size"] = sum(a != b for a, b in pairwise(sizes))
        counts["straggler served"] = len(self.of("straggled"))
        counts["straggler refused"] = len(self.of("refused"))
        done = Counter(step for steps in self._completed().values() for step in steps)
        counts["repeated step"] = sum(count - 1 for count in done.values())
        return counts

    def _policies(self) -> list[str]:
        agreed = defaultdict(set)
        wrong = []
        for event in self.of("agreed"):
            version, checksum = event.detail
            agreed[event.attempt, event.step].add(checksum)
            if version // 1000 != event.attempt:
                wrong.append(f"a policy of another attempt: {event}")
        return wrong + [
            f"two policies in attempt, step {where}"
            for where, found in agreed.items()
            if len(found) > 1
        ]

    def _completed(self) -> dict[int, dict[int, Counter[Segment]]]:
        """Return for each attempt what its completed steps trained on; all ranks did their part."""
        trained: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for event in self.of("trained"):
            trained[event.attempt, event.step].append(event)
        completed: dict[int, dict[int, Counter[Segment]]] = defaultdict(dict)
        for attempt in self.schedule.attempts:
            for step in range(STEPS):
                parts = trained[attempt.number, step]
                if len(parts) == GLOBAL_BATCH:
                    completed[attempt.number][step] = Counter(
                        tuple(segment) for part in parts for segment in part.detail[1]
                    )
        return completed

    def _steps(self) -> list[str]:
        wrong: list[str] = []
        completed = self._completed()
        life: dict[int, Counter[Segment]] = {}
        for began in self.of("began"):
            done = completed[began.attempt]
            if sorted(done) != list(range(began.step, began.step + len(done))):
                wrong.append(f"attempt {began.attempt} from {began.step} on did {sorted(done)}")
            for step, segments in done.items():
                if segments != plain(step):
                    wrong.append(f"step {step}: lost {plain(step) - segments}")
                    wrong.append(f"step {step}: doubled {segments - plain(step)}")
            # What came after the checkpoint is undone, and done anew.
            life = {step: done for step, done in life.items() if step < began.step} | done
        if sorted(life) != list(range(STEPS)):
            wrong.append(f"the job did steps {sorted(life)}")
        return wrong
