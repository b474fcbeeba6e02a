"""The demo's training job, run by torchrun: ``torchrun ... -m libra.examples.train``.

Every step runs twice from the same weights and on the same documents, under plain Ulysses and
under Libra's policy, in alternating order; loss and gradients are compared, and the optimizer
takes Libra's. A user's own job has only the Libra run: agree, cells, attend, step.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from libra.agent.agent import Agent
from libra.agent.meter import StepMeter
from libra.agent.sampler import PoolSampler
from libra.attention.plan import PlanSettings
from libra.attention.pooled import PooledAttention
from libra.attention.pools import SequencePools
from libra.balancer.policy import HOME_POLICY
from libra.examples.corpus import Corpus
from libra.examples.model import ModelSettings, Transformer
from libra.examples.pairs import Clock, Pair, Side, append_pair
from libra.examples.step import StepResult, StepRunner, largest_difference

_LEARNING_RATE = 3e-4
# Query blocks of torch's CPU kernel for short tiles; longer blocks leave pools less even.
_BLOCK_ROWS = 32
_TIMEOUT_S = 300.0


class PairTrainer:
    """One rank of the job: model, sampler, agent, and the two ways to run a step."""

    def __init__(self, args: argparse.Namespace) -> None:
        clock: Clock = args.clock
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks // args.cp, args.cp), mesh_dim_names=("dp", "cp"))
        pools = SequencePools(mesh, sequences_per_pool=args.pool)
        self.corpus = Corpus.open(args.corpus)
        settings = ModelSettings(vocabulary_size=self.corpus.tokenizer.vocabulary_size)
        self.sampler = PoolSampler(
            self.corpus.lengths,
            pools,
            tokens=args.tokens,
            global_batch=pools.shape.dp,
            seed=args.seed,
            query_heads=settings.heads,
            kv_heads=settings.kv_heads,
            planning=PlanSettings(block_rows=_BLOCK_ROWS),
            timeout_s=_TIMEOUT_S,
        )
        self.attention = PooledAttention(pools)
        torch.manual_seed(args.seed)  # equal weights on all ranks
        self.model = Transformer(settings, self.attention)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=_LEARNING_RATE)
        self.runner = StepRunner(self.model, self.attention, self.corpus.tokens, clock)
        self.agent = Agent.from_env(clock=clock)
        self.agent.attach(self.attention, self.sampler)
        # Plain Ulysses has a meter of its own: the balancer is told of Libra's runs only.
        self.home_meter = StepMeter(clock)

    def train_pair(self, step: int) -> Pair:
        """Run a step both ways, compare, and let the optimizer take Libra's gradients."""
        policy = self.sampler.agree(step)
        label_tokens = self.sampler.label_tokens(step)
        results: dict[Side, StepResult] = {}
        order: tuple[Side, Side] = ("baseline", "libra")
        if step % 2:
            order = ("libra", "baseline")
        for name in order:
            home = name == "baseline"
            cells = self.sampler.cells(step, HOME_POLICY if home else policy)
            self.attention.use_home_plan = home
            meter = self.home_meter if home else self.agent.meter
            results[name] = self.runner.run(cells, label_tokens, meter)
        baseline, libra = results["baseline"], results["libra"]
        if baseline.documents != libra.documents:
            raise RuntimeError(f"step {step}: the two runs trained on different documents")
        loss_difference = abs(libra.loss - baseline.loss) / abs(baseline.loss)
        gradient_difference = largest_difference(libra.gradients, baseline.gradients)
        if not math.isfinite(loss_difference + gradient_difference):
            raise RuntimeError(f"step {step}: loss or gradients are not finite")
        self._apply(libra)
        return Pair(
            step=step,
            warmup=policy.version == HOME_POLICY.version,
            policy_version=policy.version,
            first=order[0],
            loss=libra.loss,
            loss_difference=loss_difference,
            gradient_difference=gradient_difference,
            baseline=baseline.run,
            libra=libra.run,
        )

    def _apply(self, result: StepResult) -> None:
        for parameter, gradient in zip(self.model.parameters(), result.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()


def train(args: argparse.Namespace) -> None:
    """Train until enough pairs count, or time is up; collective."""
    trainer = PairTrainer(args)
    deadline = time.monotonic() + 60 * args.max_minutes
    step = counted = 0
    try:
        while counted < args.pairs and not _any_rank(time.monotonic() > deadline):
            pair = trainer.train_pair(step)
            counted += not pair.warmup and pair.steady(args.clock)
            step += 1
            if dist.get_rank() == 0:
                append_pair(args.results, pair)
    finally:
        trainer.agent.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the options, join the other ranks and train."""
    parser = argparse.ArgumentParser(prog="libra.examples.train", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of build_corpus")
    parser.add_argument("--results", type=Path, required=True, help="file to append pairs to")
    parser.add_argument("--cp", type=int, default=1, help="ranks of a sequence")
    parser.add_argument("--pool", type=int, default=2, help="sequences of a pool")
    parser.add_argument("--tokens", type=int, default=8192, help="of a packed sequence")
    parser.add_argument("--pairs", type=int, default=20, help="steady ones under a policy")
    parser.add_argument("--max-minutes", type=float, default=20.0)
    parser.add_argument(
        "--clock", choices=get_args(Clock), default="wall", help="cpu where ranks share cores"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()


def _any_rank(flag: bool) -> bool:
    """Return whether the flag is set on any rank: clocks differ, the decision must not."""
    flags = torch.tensor([int(flag)])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


if __name__ == "__main__":
    main()
