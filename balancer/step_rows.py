"""Which of a job's steps are not in the store as they are in memory.

A step is written when it is complete, and again as less and less of it is kept. However long the
disk fails, no more wait than the job keeps itself, and a write takes a part of them.
"""

from collections import deque

from libra.balancer.job import Job
from libra.balancer.snapshot import encode_step
from libra.balancer.step_record import StepRecord
from libra.balancer.steps import EXACT_STEPS
from libra.balancer.storage import PutStep

# Encoded in one go, on the event loop: a few milliseconds.
_WRITE_BYTES = 4 << 20


class StepRows:
    """The steps of one job that wait for the store; one write at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._waiting: deque[StepRecord] = deque()
        # Those in the store, with the detail that they have there, until they have the least.
        self._stored: list[tuple[StepRecord, int]] = []
        self._writing: list[tuple[StepRecord, int]] = []

    def __len__(self) -> int:
        """Return how many have never been written."""
        return len(self._waiting)

    @property
    def held(self) -> list[StepRecord]:
        """All records that are held here."""
        return [*self._waiting, *(record for record, _ in (*self._stored, *self._writing))]

    def collect(self) -> None:
        """Take over the steps that have completed."""
        self._waiting += self._job.new_steps()
        if len(self._waiting) > EXACT_STEPS:
            kept = self._kept()
            self._waiting = deque(record for record in self._waiting if id(record) in kept)

    def take(self, now_s: float) -> list[PutStep]:
        """Return rows to write, oldest steps first; ``written`` or ``put_back`` must follow."""
        self.collect()
        room = _WRITE_BYTES
        taken: list[StepRecord] = []
        while self._waiting and (room >= self._waiting[0].num_bytes or not taken):
            taken.append(self._waiting.popleft())
            room -= taken[-1].num_bytes
        if not self._waiting:
            taken += [record for record, detail in self._stored if record.detail < detail]
        self._writing = [(record, record.detail) for record in taken]
        return [self._row(record, now_s) for record in taken]

    def put_back(self) -> None:
        """The write failed: what was new in it waits for the next one."""
        stored = {id(record) for record, _ in self._stored}
        self._waiting.extendleft(
            record for record, _ in reversed(self._writing) if id(record) not in stored
        )
        self._writing = []

    def written(self) -> None:
        """The write succeeded."""
        known = {id(record): (record, detail) for record, detail in self._stored}
        known |= {id(record): (record, detail) for record, detail in self._writing}
        # One that the job keeps no more will not change any more either.
        kept = self._kept()
        self._stored = [own for key, own in known.items() if own[1] and key in kept]
        self._writing = []

    def _kept(self) -> set[int]:
        return set(map(id, self._job.state.log.records))

    def _row(self, record: StepRecord, now_s: float) -> PutStep:
        return PutStep(
            job=self._job.name,
            attempt=record.attempt,
            step=record.step,
            at_s=now_s,
            body=encode_step(record),
        )
