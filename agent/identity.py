"""Which job, launch and attempt this process belongs to, as its environment tells.

What a name is made of must be the same on all ranks of a launch and differ between jobs; where
nothing in the environment is known to be so, the user must say it.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

# A Slurm requeue outweighs any number of restarts by torchrun within it.
RESTARTS_OF_LAUNCHER = 1_000_000
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

# What a report carries as a name, of whatever.
NAME = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_LIKE_CHARACTERS = 100
# Pods of Kubeflow's PyTorchJob, and of a TrainJob, whose nodes are one replicated job "node".
_PYTORCH_JOB = re.compile(r"(?P<job>.+)-(?:master|worker)-\d+")
_TRAIN_JOB = re.compile(r"(?P<job>.+)-node-0-\d+")


def job_from_env(environ: Mapping[str, str], namespace_file: Path = NAMESPACE_FILE) -> str:
    """Return the job's name: LIBRA_JOB, else the scheduler's own.

    Raises:
        ValueError: nothing names the job.
    """
    job = (
        first(environ, "LIBRA_JOB")
        or _slurm_job(environ)
        or _kubernetes_job(environ, namespace_file)
        or _torchrun_id(environ)
    )
    if not job:
        raise ValueError("LIBRA_JOB is not set: must name the job, the same on all its ranks")
    return job


def run_from_env(environ: Mapping[str, str]) -> str:
    """Return what all ranks of this launch share and no other launch has; empty if unknown.

    LIBRA_RUN, else Slurm's job id with its count of requeues, else torchrun's run id. The steps
    of one Slurm job are one launch: scripts that start a step per node would be torn apart.
    """
    run = first(environ, "LIBRA_RUN")
    job = _slurm_id(environ)
    if job and not run:
        return f"slurm-{job}.{integer(environ, ('SLURM_RESTART_COUNT',), 0)}"
    return _as_name(run or _torchrun_id(environ))


def attempt_from_env(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often the job was restarted: LIBRA_ATTEMPT, else Slurm's and torchrun's counts.

    Together they grow: a requeue counts ``RESTARTS_OF_LAUNCHER``, for torchrun begins at 0 then.

    Raises:
        ValueError: a variable is no integer.
    """
    requeues = integer(environ, ("SLURM_RESTART_COUNT",), 0)
    restarts = integer(environ, ("TORCHELASTIC_RESTART_COUNT",), 0)
    if "TORCHELASTIC_RESTART_COUNT" in environ:
        requeues *= RESTARTS_OF_LAUNCHER
    return integer(environ, ("LIBRA_ATTEMPT",), requeues + restarts)


def first(environ: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that is not empty, else an empty string."""
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def integer(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """Return the first of these variables that is set; raise ``ValueError`` if it is no integer."""
    for name in names:
        value = environ.get(name, "").strip()
        if value:
            try:
                return int(value)
            except ValueError:
                raise ValueError(f"{name}={value!r}: must be an integer") from None
    return default


def _as_name(text: str) -> str:
    """Return a text, or where a report cannot carry it, one like it that no other text becomes."""
    if not text or NAME.fullmatch(text):
        return text
    like = re.sub(r"[^A-Za-z0-9._:@-]+", "-", text)[:_LIKE_CHARACTERS]
    return f"{like}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"


def _slurm_id(environ: Mapping[str, str]) -> str:
    # The components of a heterogeneous job have ids of their own, and share that of the first.
    return first(environ, "SLURM_HET_JOB_ID", "SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID")


def _slurm_job(environ: Mapping[str, str]) -> str:
    array, task = first(environ, "SLURM_ARRAY_JOB_ID"), first(environ, "SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else _slurm_id(environ)


def _kubernetes_job(environ: Mapping[str, str], namespace_file: Path) -> str:
    """Return namespace and name of the job whose pod this is; empty where the pod cannot tell."""
    host = first(environ, "HOSTNAME")
    if not host or not first(environ, "KUBERNETES_SERVICE_HOST"):
        return ""
    try:
        namespace = namespace_file.read_text().strip()
    except OSError:
        return ""
    name = _pod_job(environ, host)
    return f"{namespace}.{name}" if namespace and name else ""


def _pod_job(environ: Mapping[str, str], host: str) -> str:
    index = first(environ, "JOB_COMPLETION_INDEX")
    if index:
        train_job = _TRAIN_JOB.fullmatch(host)
        if train_job and first(environ, "PET_NNODES"):
            return train_job["job"]
        name = host.removesuffix(f"-{index}")
        # With a number at its end it may be one of several jobs of a JobSet, which share ranks.
        return "" if name == host or re.search(r"-\d+$", name) else name
    pytorch_job = _PYTORCH_JOB.fullmatch(host)
    return pytorch_job["job"] if pytorch_job and first(environ, "MASTER_PORT") else ""


def _torchrun_id(environ: Mapping[str, str]) -> str:
    # torchrun without --rdzv-id calls every job "none": two would be taken for one.
    value = first(environ, "TORCHELASTIC_RUN_ID")
    return "" if value == "none" else value
