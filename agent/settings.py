"""What the agent is told: where the balancer is, which job and rank this is, and its pace."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
MAX_RING_STEPS = 1024


def _node() -> str:
    return re.sub(r"[^A-Za-z0-9._:@-]", "-", socket.gethostname())[:128] or "node"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """Settings of one rank's agent.

    Attributes:
        balancer: the balancer's address, ``http://host:port`` with an optional path.
        job: the job's name, the same on all its ranks.
        attempt: how often the job was restarted.
        rank: this process's rank, below ``world_size``.
        world_size: ranks of the job.
        pp_rank: its index along pipeline parallelism, below ``world_size``.
        node: this machine's name.
        interval_s: seconds between reports.
        connect_timeout_s: the longest to wait for a connection.
        timeout_s: the longest that one report may take.
        poll_wait_s: how long the balancer may hold a request for a newer policy.
        first_retry_s: delay after a first failure; each further one doubles it.
        max_retry_s: the longest delay between tries.
        close_timeout_s: the longest that the last report may hold up the end of the job.
        ring_steps: steps kept while the balancer is away; the oldest are dropped first.
    """

    balancer: str
    job: str
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    pp_rank: int = 0
    node: str = field(default_factory=_node)
    interval_s: float = 1.0
    connect_timeout_s: float = 1.0
    timeout_s: float = 5.0
    poll_wait_s: float = 25.0
    first_retry_s: float = 1.0
    max_retry_s: float = 30.0
    close_timeout_s: float = 1.0
    ring_steps: int = MAX_RING_STEPS

    def __post_init__(self) -> None:
        _check_url(self.balancer)
        for name in ("job", "node"):
            value = getattr(self, name)
            if not _NAME.fullmatch(value):
                raise ValueError(
                    f"{name}={value!r}: must be 1 to 128 letters, digits or any of . _ : @ -"
                )
        if self.attempt < 0:
            raise ValueError(f"attempt={self.attempt}: must be at least 0")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank}: must be in 0..{self.world_size - 1}")
        if not 0 <= self.pp_rank < self.world_size:
            raise ValueError(f"pp_rank={self.pp_rank}: must be in 0..{self.world_size - 1}")
        for name in self.__slots__:
            if name.endswith("_s") and not 0 < getattr(self, name) <= 3600:
                raise ValueError(f"{name}={getattr(self, name)}: must be in (0, 3600] seconds")
        if not 1 <= self.ring_steps <= MAX_RING_STEPS:
            raise ValueError(f"ring_steps={self.ring_steps}: must be in 1..{MAX_RING_STEPS}")


def settings_from_env(
    environ: Mapping[str, str] = os.environ,
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> AgentSettings | None:
    """Return the settings that the environment asks for, None where it wants no agent.

    Reads LIBRA_BALANCER (absent or empty is off), LIBRA_AGENT (``off`` is off), LIBRA_JOB,
    LIBRA_ATTEMPT and LIBRA_PP_RANK (0 without a pipeline); for job and attempt, where missing,
    the variables of torchrun and of Slurm.

    Raises:
        ValueError: a variable is malformed, or the job has no name.
    """
    balancer = environ.get("LIBRA_BALANCER", "").strip()
    if not balancer or environ.get("LIBRA_AGENT", "").strip().lower() == "off":
        return None
    if rank is None:
        rank = _integer(environ, ("RANK", "SLURM_PROCID"), 0)
    if world_size is None:
        world_size = _integer(environ, ("WORLD_SIZE", "SLURM_NTASKS"), 1)
    return AgentSettings(
        balancer=balancer,
        job=_job(environ),
        attempt=attempt_from_env(environ),
        rank=rank,
        world_size=world_size,
        pp_rank=_integer(environ, ("LIBRA_PP_RANK",), 0),
    )


def attempt_from_env(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often the job was restarted: LIBRA_ATTEMPT, else torchrun's or Slurm's count.

    Raises:
        ValueError: the variable is no integer.
    """
    attempts = ("LIBRA_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return _integer(environ, attempts, 0)


def _job(environ: Mapping[str, str]) -> str:
    for name in ("LIBRA_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        value = environ.get(name, "").strip()
        # torchrun without --rdzv-id calls every job "none": two would be taken for one.
        if value and not (name == "TORCHELASTIC_RUN_ID" and value == "none"):
            return value
    raise ValueError("LIBRA_JOB is not set: must name the job, the same on all its ranks")


def _integer(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = environ.get(name, "").strip()
        if value:
            try:
                return int(value)
            except ValueError:
                raise ValueError(f"{name}={value!r}: must be an integer") from None
    return default


def _check_url(value: str) -> None:
    try:
        url = httpx.URL(value)
        usable = url.scheme in ("http", "https") and bool(url.host)
    except (httpx.InvalidURL, ValueError):
        usable = False
    if not usable:
        raise ValueError(f"balancer={value!r}: must be like http://host:8765")
