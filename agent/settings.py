"""What the agent is told: where the balancer is, which job and rank this is, and its pace."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from libra.agent.identity import (
    NAME,
    attempt_from_env,
    first,
    integer,
    job_from_env,
    run_from_env,
)

MAX_RING_STEPS = 1024
UNIX_SCHEME = "unix://"


def _node() -> str:
    return re.sub(r"[^A-Za-z0-9._:@-]", "-", socket.gethostname())[:128] or "node"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """Settings of one rank's agent.

    Attributes:
        balancer: the balancer's address, ``http://host:port`` or ``https://host:port`` with an
            optional path, or ``unix:///path/of.sock``.
        job: the job's name, the same on all its ranks.
        run: id of this launch of the job, the same on all its ranks; empty if unknown.
        attempt: how often the job was restarted.
        rank: this process's rank, below ``world_size``.
        world_size: ranks of the job.
        pp_rank: its index along pipeline parallelism, below ``world_size``.
        node: this machine's name.
        local_rank: its index among the ranks that one launcher started here; -1 if unknown.
        local_world_size: how many these are; 0 if unknown.
        group_rank: the launcher's own index.
        relay: ranks of a node report through its first one, where they share one.
        token_file: file of the access token; empty for none.
        ca_file: certificates that the balancer's is checked against; empty for the system's.
        cert_file, key_file: this client's own certificate; empty for none.
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
    run: str = ""
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    pp_rank: int = 0
    node: str = field(default_factory=_node)
    local_rank: int = -1
    local_world_size: int = 0
    group_rank: int = 0
    relay: bool = True
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
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
            if not NAME.fullmatch(value):
                raise ValueError(
                    f"{name}={value!r}: must be 1 to 128 letters, digits or any of . _ : @ -"
                )
        if self.run and not NAME.fullmatch(self.run):
            raise ValueError(
                f"run={self.run!r}: must be at most 128 letters, digits or any of . _ : @ -"
            )
        if self.attempt < 0:
            raise ValueError(f"attempt={self.attempt}: must be at least 0")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank}: must be in 0..{self.world_size - 1}")
        if not 0 <= self.pp_rank < self.world_size:
            raise ValueError(f"pp_rank={self.pp_rank}: must be in 0..{self.world_size - 1}")
        if self.key_file and not self.cert_file:
            raise ValueError(f"key_file={self.key_file!r}: needs the cert_file that it belongs to")
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

    Reads LIBRA_BALANCER (absent or empty is off), LIBRA_AGENT (``off`` is off), LIBRA_RELAY
    (``off``: every rank reports by itself), LIBRA_TOKEN_FILE, LIBRA_CA_FILE, LIBRA_CERT_FILE,
    LIBRA_KEY_FILE, LIBRA_JOB, LIBRA_RUN, LIBRA_ATTEMPT and LIBRA_PP_RANK (0 without a pipeline);
    for what is missing of job, run and attempt the variables of Slurm, Kubernetes and torchrun.

    Raises:
        ValueError: a variable is malformed, or the job has no name.
    """
    balancer = first(environ, "LIBRA_BALANCER")
    if not balancer or _is_off(environ, "LIBRA_AGENT"):
        return None
    if rank is None:
        rank = integer(environ, ("RANK", "SLURM_PROCID"), 0)
    if world_size is None:
        world_size = integer(environ, ("WORLD_SIZE", "SLURM_NTASKS"), 1)
    return AgentSettings(
        balancer=balancer,
        job=job_from_env(environ),
        run=run_from_env(environ),
        attempt=attempt_from_env(environ),
        rank=rank,
        world_size=world_size,
        pp_rank=integer(environ, ("LIBRA_PP_RANK",), 0),
        local_rank=integer(environ, ("LOCAL_RANK", "SLURM_LOCALID"), -1),
        local_world_size=integer(environ, ("LOCAL_WORLD_SIZE",), 0),
        group_rank=integer(environ, ("GROUP_RANK", "SLURM_NODEID"), 0),
        relay=not _is_off(environ, "LIBRA_RELAY"),
        token_file=first(environ, "LIBRA_TOKEN_FILE"),
        ca_file=first(environ, "LIBRA_CA_FILE"),
        cert_file=first(environ, "LIBRA_CERT_FILE"),
        key_file=first(environ, "LIBRA_KEY_FILE"),
    )


def _is_off(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() == "off"


def _check_url(value: str) -> None:
    if value.startswith(UNIX_SCHEME + "/"):
        return
    try:
        url = httpx.URL(value)
        usable = url.scheme in ("http", "https") and bool(url.host)
    except (httpx.InvalidURL, ValueError):
        usable = False
    if not usable:
        raise ValueError(
            f"balancer={value!r}: must be like http://host:8765, https:// or unix:///path.sock"
        )
