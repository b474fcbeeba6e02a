"""All ranks of a launch find the same names in their environment, and two jobs never do."""

from pathlib import Path

import pytest

from libra.agent.identity import attempt_from_env, job_from_env, run_from_env
from libra.agent.settings import AgentSettings
from libra.balancer.wire import decode_report, encode_report
from tests.running import make_report

TORCHRUN = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "GROUP_RANK": "0",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
STANDALONE = TORCHRUN | {"TORCHELASTIC_RUN_ID": "9a3ff20e-5b0b-4d5c-a9a6-0f3a1f8e2d11"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "pretrain",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_ID": "0",
    "SLURM_TASKS_PER_NODE": "4(x2)",
}
ARRAY = SLURM | {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "11"}
# A second component of a heterogeneous job.
HETEROGENEOUS = SLURM | {"SLURM_JOB_ID": "4712", "SLURM_HET_JOB_ID": "4711"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
INDEXED_JOB = POD | {"HOSTNAME": "pretrain-3", "JOB_COMPLETION_INDEX": "3"}
JOB_SET = POD | {"HOSTNAME": "pretrain-workers-2-3", "JOB_COMPLETION_INDEX": "3"}
PYTORCH_JOB = POD | {
    "HOSTNAME": "pretrain-worker-2",
    "MASTER_ADDR": "pretrain-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "4",
    "RANK": "3",
}
PYTORCH_MASTER = PYTORCH_JOB | {
    "HOSTNAME": "pretrain-master-0",
    "MASTER_ADDR": "localhost",
    "RANK": "0",
}
TRAIN_JOB = POD | {
    "HOSTNAME": "pretrain-node-0-1",
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_MASTER_ADDR": "pretrain-node-0-0.pretrain",
}
DEPLOYMENT = POD | {"HOSTNAME": "notebook-7d9f4b6c5-x2x8k"}


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    """The file that the kubelet mounts into every pod."""
    path = tmp_path / "namespace"
    path.write_text("team-a")
    return path


@pytest.mark.parametrize(
    ("environ", "job", "run"),
    [
        (STANDALONE, STANDALONE["TORCHELASTIC_RUN_ID"], STANDALONE["TORCHELASTIC_RUN_ID"]),
        (SLURM, "4711", "slurm-4711.0"),
        (SLURM | {"SLURM_RESTART_COUNT": "2"}, "4711", "slurm-4711.2"),
        (SLURM | TORCHRUN, "4711", "slurm-4711.0"),
        (SLURM | {"SLURM_STEP_ID": "1"}, "4711", "slurm-4711.0"),
        (ARRAY, "4700_11", "slurm-4711.0"),
        (HETEROGENEOUS, "4711", "slurm-4711.0"),
        (INDEXED_JOB, "team-a.pretrain", ""),
        (PYTORCH_JOB, "team-a.pretrain", ""),
        (PYTORCH_MASTER, "team-a.pretrain", ""),
        (TRAIN_JOB, "team-a.pretrain", ""),
        (TRAIN_JOB | STANDALONE, "team-a.pretrain", STANDALONE["TORCHELASTIC_RUN_ID"]),
        (SLURM | {"LIBRA_JOB": "llama", "LIBRA_RUN": "monday"}, "llama", "monday"),
        ({"LIBRA_JOB": "llama", **JOB_SET, "LIBRA_RUN": "0af3-uid"}, "llama", "0af3-uid"),
        ({"LIBRA_JOB": "llama", **TORCHRUN}, "llama", ""),
    ],
)
def test_schedulers_name_the_job_and_its_launch(
    environ: dict[str, str], job: str, run: str, namespace: Path
) -> None:
    """What real launchers set is enough for a name, and for the launch where they give one."""
    assert job_from_env(environ, namespace) == job
    assert run_from_env(environ) == run


@pytest.mark.parametrize("name", ["LIBRA_RUN", "TORCHELASTIC_RUN_ID"])
def test_a_launch_of_any_name_can_be_reported(name: str) -> None:
    """What no report may carry becomes what it may, and different launches stay apart."""
    texts = ["my run/3", "my run 3", "a" * 200, "a" * 201, "läuft", "x'; --"]
    runs = [run_from_env({name: text}) for text in texts]
    assert len(set(runs)) == len(texts)
    for run in runs:
        AgentSettings(balancer="http://127.0.0.1:1", job="j", run=run)
        decode_report(encode_report(make_report("j", run=run)))
    assert run_from_env({name: "as_it-is:@1.0"}) == "as_it-is:@1.0"


@pytest.mark.parametrize(
    "environ",
    [{}, TORCHRUN, JOB_SET, DEPLOYMENT, POD | {"HOSTNAME": "pretrain-3"}, {"LIBRA_JOB": " "}],
    ids=["nothing", "torchrun-none", "job-set", "deployment", "bare-pod", "blank"],
)
def test_nothing_is_guessed(environ: dict[str, str], namespace: Path) -> None:
    """Where a name could be another job's, or differ between ranks, the user must give one."""
    with pytest.raises(ValueError, match="LIBRA_JOB is not set"):
        job_from_env(environ, namespace)


def test_without_its_namespace_a_pod_names_no_job(tmp_path: Path) -> None:
    """Jobs of two namespaces may have one name, so the pod's alone is not enough."""
    with pytest.raises(ValueError, match="LIBRA_JOB is not set"):
        job_from_env(INDEXED_JOB, tmp_path / "absent")


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "RANK", "SLURM_PROCID", "SLURM_LOCALID"])
def test_a_rank_is_no_part_of_a_name(variable: str, namespace: Path) -> None:
    """Ranks of one launch agree, whatever is their own in the environment."""
    environ = SLURM | STANDALONE
    other = environ | {variable: "7"}
    assert job_from_env(environ, namespace) == job_from_env(other, namespace)
    assert run_from_env(environ) == run_from_env(other)


def test_attempts_grow_through_requeues_and_restarts() -> None:
    """A job that torchrun restarts and Slurm requeues, in any order, counts on."""
    lives = [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (2, 0), (2, 3)]
    attempts = [
        attempt_from_env(
            {"SLURM_RESTART_COUNT": str(requeues), "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        )
        for requeues, restarts in lives
    ]
    assert attempts == sorted(set(attempts))
    assert attempts[:3] == [0, 1, 3]


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        ({"SLURM_RESTART_COUNT": "2"}, 2),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, 2),
        ({"LIBRA_ATTEMPT": "5", "SLURM_RESTART_COUNT": "2"}, 5),
    ],
)
def test_one_count_is_the_attempt(environ: dict[str, str], attempt: int) -> None:
    """A single launcher's count is taken as it is, and LIBRA_ATTEMPT before all."""
    assert attempt_from_env(environ) == attempt
