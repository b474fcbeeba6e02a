"""``libra demo``: balancer, CPU ranks on real text, dashboard, and a fair before and after.

The demo only starts, watches and stops processes; what is measured is in ``train``, and what it
means in ``summary``.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from libra.examples.corpus import Corpus, build_corpus
from libra.examples.demo_settings import HOST, DemoSettings
from libra.examples.pairs import Clock, Pair, read_pairs
from libra.examples.processes import Child
from libra.examples.report import print_report
from libra.examples.summary import disagreement, summarise

_JOB = "demo"
_POLL_S = 0.5
_START_TIMEOUT_S = 60.0
_MAX_RESTARTS = 5
_INTERRUPTED = 130


class DemoError(Exception):
    """The demo cannot go on; the message is for the user."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``libra demo``."""
    add = parser.add_argument
    add("--ranks", type=int, help="training processes (one a core, at most 8)")
    add("--cp", type=int, default=1, help="ranks that share a sequence (%(default)s)")
    add("--pool", type=int, help="sequences of a pool (2)")
    add("--tokens", type=int, default=8192, help="of a packed sequence (%(default)s)")
    add("--pairs", type=int, default=20, help="pairs of steps to measure (%(default)s)")
    add("--max-minutes", type=float, default=20.0, help="of training (%(default)g)")
    add("--port", type=int, default=8765, help="of the dashboard; 0 is any (%(default)s)")
    add("--clock", choices=get_args(Clock), help="(wall, cpu with more ranks than cores)")
    add("--json", type=Path, metavar="FILE", help="figures (demo.json in DIR)")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help=".png, .svg or .pdf (demo.png in DIR)",
    )
    add("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="(%(default)s)")
    add("--keep", action="store_true", help="leave the dashboard up until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    try:
        settings, folder = _prepare(args)
        with ExitStack() as stack:
            return Demo(settings, folder, console, stack).run()
    except KeyboardInterrupt:
        console.print("Stopped.")
        return _INTERRUPTED
    except DemoError as error:
        sys.stderr.write(f"libra demo: {error}\n")
        return 1


def _prepare(args: argparse.Namespace) -> tuple[DemoSettings, Path]:
    """Return the checked settings and a new folder for this run."""
    try:
        settings = DemoSettings.from_arguments(args)
    except (ValueError, OSError) as error:
        raise DemoError(str(error)) from error
    folder = settings.out / time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = error.strerror or error
        raise DemoError(f"cannot make {folder}: {why}; --out takes another folder") from error
    return settings, folder.resolve()


class Demo:
    """The running demo: its processes, and the way from start to verdict."""

    def __init__(
        self, settings: DemoSettings, folder: Path, console: Console, stack: ExitStack
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.console = console
        self.url = f"http://{HOST}:{settings.port}"
        self._restarts = 0
        self._stack = stack
        # It is made anew in seconds, and no one reads it afterwards.
        stack.callback(shutil.rmtree, self._corpus, ignore_errors=True)
        self._balancer = self._start_balancer()

    def run(self) -> int:
        """Train, report, and return the exit status."""
        corpus = self._build_corpus()
        self._wait_for_balancer()
        self.console.print(
            f"Dashboard  {self.url}/?job={_JOB}\n"
            f"Documents  {len(corpus.lengths):,} with {int(corpus.lengths.sum()):,} tokens\n"
            f"Ranks      {self.settings.ranks}, judged by {self.settings.clock} time",
            highlight=False,
        )
        self._train()
        status = self._report(read_pairs(self._results))
        if self.settings.keep:
            self._keep()
        return status

    @property
    def _results(self) -> Path:
        return self.folder / "pairs.jsonl"

    @property
    def _corpus(self) -> Path:
        return self.folder / "corpus"

    def _build_corpus(self) -> Corpus:
        with self.console.status("Reading the standard library: the demo's documents"):
            try:
                return build_corpus(self._corpus, longest_tokens=self.settings.tokens)
            except FileNotFoundError as error:
                raise DemoError(str(error)) from error

    def _start(self, module: str, arguments: list[str], log: str, **environ: str) -> Child:
        child = Child(module, arguments, self.folder / log, environ)
        self._stack.callback(_stop, child)
        return child

    def _start_balancer(self) -> Child:
        store = self.folder / "balancer.sqlite"
        options = ["--mode", "adapt", "--port", str(self.settings.port), "--store", str(store)]
        return self._start("libra.balancer", ["serve", *options], "balancer.log")

    def _wait_for_balancer(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._view("/livez") is None:
            if self._balancer.status is not None or time.monotonic() > deadline:
                raise DemoError(f"the balancer did not start:\n{self._balancer.last_lines()}")
            time.sleep(_POLL_S)

    def _train(self) -> None:
        """Run the training job to its end, with a progress bar."""
        training = self._start_training()
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            refresh_per_second=2,
        ) as progress:
            task = progress.add_task("Starting the ranks", total=self.settings.pairs)
            while training.status is None:
                time.sleep(_POLL_S)
                self._revive_balancer()
                pairs = read_pairs(self._results)
                if pairs:
                    clock = self.settings.clock
                    counted = sum(not pair.warmup and pair.steady(clock) for pair in pairs)
                    progress.update(task, completed=counted, description=_describe(pairs))
        if training.status:
            raise DemoError(
                f"training failed with status {training.status}; the end of {training.log}:\n"
                f"{training.last_lines()}"
            )

    def _start_training(self) -> Child:
        s = self.settings
        torchrun = ["--standalone", "--local-addr", HOST, "--nproc-per-node", str(s.ranks)]
        job = ["--corpus", str(self._corpus), "--results", str(self._results)]
        for name in ("cp", "pool", "tokens", "pairs", "clock"):
            job += [f"--{name}", str(getattr(s, name))]
        job += ["--max-minutes", str(s.max_minutes)]
        return self._start(
            "torch.distributed.run",
            [*torchrun, "-m", "libra.examples.launch", "libra.examples.train", *job],
            "training.log",
            LIBRA_BALANCER=self.url,
            LIBRA_JOB=_JOB,
            LIBRA_AGENT="",
            OMP_NUM_THREADS="1",
            # Freed memory is kept: glibc would return big tensors to the system, and touching
            # fresh pages takes longer than many a kernel. Both runs of a pair gain.
            MALLOC_MMAP_MAX_="0",
            MALLOC_TRIM_THRESHOLD_="17179869184",
            # The ranks of one machine need not be heard outside it.
            GLOO_SOCKET_IFNAME="lo0" if sys.platform == "darwin" else "lo",
        )

    def _revive_balancer(self) -> None:
        status = self._balancer.status
        if status is None or self._restarts == _MAX_RESTARTS:
            return
        self._restarts += 1
        self.console.print(
            f"The balancer ended with status {status}; training goes on. Starting it again."
        )
        self._balancer = self._start_balancer()

    def _report(self, pairs: list[Pair]) -> int:
        """Write and print what was measured; a difference in numerics is the one failure."""
        published = self._view(f"/api/v1/jobs/{_JOB}/policies") or {"policies": []}
        model = self._view(f"/api/v1/jobs/{_JOB}/model")
        summary = summarise(
            pairs,
            clock=self.settings.clock,
            wanted=self.settings.pairs,
            policies=published["policies"],
        )
        print_report(self.console, summary, model)
        if not summary["policies"]:
            job = self._view(f"/api/v1/jobs/{_JOB}")
            said = job["diagnosis"] if job else "The balancer did not answer."
            self.console.print(said, markup=False)
        wrong = disagreement(summary)
        if wrong:
            self.console.print(f"[bold red]Not the same training: {wrong}.")
        self._write(summary, pairs)
        return 1 if wrong else 0

    def _write(self, summary: dict[str, Any], pairs: list[Pair]) -> None:
        try:
            figures = self.settings.json or self.folder / "demo.json"
            figures.write_text(json.dumps(summary, indent=2) + "\n")
            from libra.examples.plot import plot_pairs  # slow to import

            plot = self.settings.plot or self.folder / "demo.png"
            plot_pairs(pairs, plot)
        except OSError as error:
            raise DemoError(f"cannot write the results: {error}") from error
        self.console.print(f"Figures    {figures}\nPlot       {plot}", highlight=False)

    def _keep(self) -> None:
        self.console.print(f"The dashboard stays at {self.url}/?job={_JOB}; Ctrl-C ends it.")
        try:
            while self._balancer.status is None:
                time.sleep(_POLL_S)
                self._revive_balancer()
        except KeyboardInterrupt:
            return

    def _view(self, path: str) -> Any:
        """Return a JSON view of the balancer, None if it does not answer."""
        try:
            # A proxy from the environment has no business on the loopback.
            answer = httpx.get(self.url + path, timeout=5, trust_env=False)
            return answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return None


def _describe(pairs: list[Pair]) -> str:
    last = pairs[-1]
    if last.warmup:
        return f"Measuring for a first policy, skew {last.baseline.skew:.2f}"
    return f"Skew {last.baseline.skew:.2f} -> {last.libra.skew:.2f}"


def _stop(child: Child) -> None:
    # A second Ctrl-C must not leave processes behind; stopping is bounded.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    child.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
