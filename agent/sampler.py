"""Draw optimizer steps: pack, agree on a policy, place, and yield each rank its own cells.

What a step trains on depends on seed and step alone. The policy decides only which CP group
holds which of the step's sequences, and where tiles are computed.

Shapes: N sequences of a step; dp CP groups, so N / dp micro-batches of each rank.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from libra.agent.agreed import AgreedPolicies
from libra.agent.audit import Audit
from libra.agent.cell import Cell
from libra.agent.drawing import Drawing, Last
from libra.agent.iteration import CellIterator
from libra.agent.numbers import integer
from libra.agent.placing import Placing, Pools
from libra.agent.progress import Progress
from libra.agent.resume import Position, World
from libra.attention.heads import HeadSplit
from libra.attention.plan import PlanSettings
from libra.attention.store import Store
from libra.balancer.packing import Method, PackingReport
from libra.balancer.policy import HOME_POLICY, Policy
from libra.balancer.step_placement import Meeting, StepPlacement


class PoolSampler(Sampler[Cell]):
    """Yield this rank's cells of an epoch, micro-batch by micro-batch.

    For ``Ahead``, torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, both with
    ``CellDataset`` and ``batch_size=None``. One iteration at a time.

    Args:
        lengths: tokens of every document.
        pools: this rank's place in the mesh.
        tokens: tokens of a packed sequence, at most 1 Mi.
        global_batch: packed sequences of an optimizer step, N; a multiple of the DP size.
        query_heads, kv_heads: of the model; plans are made for them.
        seed: with the epoch, decides packing and order.
        packing: "best_fit" or "stream".
        documents: a finite sampler of document indices to draw in its order, a weighted mixture
            for example, the same on all ranks; by default every document once.
        last: "drop" leaves out sequences that do not fill an epoch's last step, "pad" fills it
            with empty ones.
        meeting: whether ranks of different pools wait for each other every "micro_batch", or only
            every "step", as when gradients accumulate without synchronising.
        planning: blocks, memory and waves of plans; the rest is the policy's.
        name: of this sampler's decisions in the store; a second one, for validation, has another.
        store: the job's c10d store; the default group's when ``None``.
        attempt: restarts of the job so far, the same on all ranks; decisions of another attempt
            never count. When ``None`` the ranks of the default group find it together, and without
            a group the environment gives it, as ``attempt_from_env`` reads it.
        timeout_s: longest wait for the other ranks' agreement on a step.

    Attributes:
        policy_source: gives the newest policy that this rank knows; the agent sets it.
        pools: this rank's place in the mesh.
        store: as it was given.
        recorder: the audit, when there is one.
        era: how often a state was loaded.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        pools: Pools,
        *,
        tokens: int,
        global_batch: int,
        query_heads: int,
        kv_heads: int,
        seed: int = 0,
        packing: Method = "best_fit",
        documents: Iterable[int] | None = None,
        last: Last = "drop",
        meeting: Meeting = "micro_batch",
        planning: PlanSettings | None = None,
        name: str = "train",
        store: Store | None = None,
        attempt: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Set up; nothing is packed before the first step is drawn.

        Raises:
            ValueError: a setting does not fit the mesh, or a length is not a positive integer.
        """
        shape = pools.shape
        global_batch = integer("global_batch", global_batch, 1)
        if global_batch % shape.dp:
            raise ValueError(f"global_batch={global_batch}: must be a multiple of dp={shape.dp}")
        self.policy_source: Callable[[], Policy] = lambda: HOME_POLICY
        self.pools = pools
        self.store = store
        self.recorder: Audit | None = None
        self.era = 0
        self._micro_batches = global_batch // shape.dp
        tokens = integer("tokens", tokens, 1)
        self._drawing = Drawing(
            lengths,
            tokens=tokens,
            global_batch=global_batch,
            seed=seed,
            packing=packing,
            last=last,
            documents=documents,
        )
        self._placing = Placing(
            self._drawing,
            pools,
            tokens=tokens,
            heads=HeadSplit(query_heads=query_heads, kv_heads=kv_heads, cp=shape.cp),
            meeting=meeting,
            planning=planning or PlanSettings(),
        )
        agreed = AgreedPolicies(store, name=name, attempt=attempt, timeout_s=timeout_s)
        self._progress = Progress(self._drawing, agreed, World.of(shape, meeting))
        self._epoch = 0
        self._resumed: Position | None = None
        self._newest: CellIterator | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of the epoch that is drawn next, or now; others may have more or less."""
        return self._drawing.steps(self._epoch)

    @property
    def packing_report(self) -> PackingReport:
        """What packing the epoch came to."""
        return self._drawing.packed(self._epoch).report

    @property
    def dropped_sequences(self) -> int:
        """Sequences of the epoch that fill no step and are left out, under ``last="drop"``."""
        return self._drawing.dropped(self._epoch)

    @property
    def padded_sequences(self) -> int:
        """Empty sequences that fill the epoch's last step, under ``last="pad"``."""
        return self._drawing.padded(self._epoch)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of an optimizer step, counted over all epochs."""
        return self._drawing.epoch_of(step)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration draw this epoch, from where a loaded state left it."""
        epoch = integer("epoch", epoch)
        self._epoch, self._newest = epoch, None
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None

    def __len__(self) -> int:
        """Return the micro-batches of this rank in the whole epoch."""
        return self.steps_per_epoch * self._micro_batches

    def __iter__(self) -> CellIterator:
        """Return an iterator over the epoch, or over what a loaded state left of it."""
        return CellIterator(self, self._start())

    def agree(self, step: int) -> Policy:
        """Return the policy of a step, the same on all ranks; blocks until one has decided.

        The first step of an epoch that a rank comes to also confirms that all draw the same.

        Raises:
            TimeoutError: no answer in time; going on could train ranks on different data.
            RuntimeError: another rank draws other documents, or the job decided on another policy
                than the one that the step was begun under.
        """
        return self._progress.agree(step, self.policy_source)

    def label_tokens(self, step: int) -> int:
        """Return the tokens of a step, over all ranks, that have a next token to predict."""
        segments, _ = self._drawing.draw(step)
        return int(segments.lengths.sum()) - len(segments)

    def placement(self, step: int, policy: Policy) -> StepPlacement:
        """Return which CP group holds which sequence of a step, how even it is, and its bound."""
        return self._placing.placement(step, policy)

    def cells(self, step: int, policy: Policy) -> list[Cell]:
        """Return this rank's micro-batches of a step, counted over epochs, under a policy; pure.

        Without pooling the sequences come in order and every tile stays home.
        """
        return self._placing.cells(step, policy)

    def audit(self) -> Audit:
        """Record from now on what iterations yield, to be held against what steps should draw."""
        if self.recorder is None:
            self.recorder = Audit(
                self._drawing,
                dp_rank=self.pools.dp_rank,
                cp_rank=self.pools.cp_rank,
                micro_batches=self._micro_batches,
            )
        return self.recorder

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the state to resume from, plain values that JSON can hold.

        Any rank can go on from any rank's state.

        Args:
            step: the next optimizer step to train, counted over epochs: for loaders that read
                ahead. By default the state is that after the last cell yielded.
        """
        if step is not None:
            step = integer("step", step)
            return self.state_at(Position(epoch=self.epoch_of(step), step=step))
        if self._newest is not None:
            return self.state_at(self._newest.position)
        return self.state_at(self._resumed or self._start())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken, maybe with other DP or pool sizes.

        In the middle of a step only the same ranks and pools can go on; others begin it anew.

        Raises:
            ValueError: the state is none, or was saved under other settings of what steps draw.
        """
        position, at_end = self._progress.resume(state)
        self._resumed, self._newest = position, None
        self._epoch = position.epoch + at_end
        self.era += 1
        self._forget(position)

    def state_at(self, position: Position) -> dict[str, Any]:
        """Return the state of a position."""
        return self._progress.state(position)

    def resume(self, state: Mapping[str, Any]) -> Position:
        """Return the position of a state; for the sampler's iterators."""
        position, _ = self._progress.resume(state)
        self._forget(position)
        return position

    def begin(self, iterator: CellIterator) -> None:
        """Know the iterator whose position counts, now that it yields."""
        self._newest, self._resumed = iterator, None

    def end_of(self, epoch: int) -> int:
        """Return one past the last step of an epoch."""
        return self._drawing.first_step(epoch + 1)

    def _start(self) -> Position:
        if self._resumed is not None and self._resumed.epoch == self._epoch:
            return self._resumed
        return Position(epoch=self._epoch, step=self._drawing.first_step(self._epoch))

    def _forget(self, position: Position) -> None:
        """Take back from the audit what was yielded, not trained, and will be yielded again."""
        if self.recorder is not None:
            self.recorder.forget(position)
