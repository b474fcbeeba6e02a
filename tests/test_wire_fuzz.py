"""Whatever bytes come, they are refused with a reason or taken as a checked report."""

import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.balancer.batch import Batch, batch_of_one, decode_batch
from libra.balancer.job import Job
from libra.balancer.taking import RESULTS
from libra.balancer.wire import ReportError, decode_report
from tests.jobs import NOW_S
from tests.running import ROOT

DATA = Path(__file__).parent / "data"
SEEDS = {name: (DATA / name).read_bytes() for name in ("report.msgpack", "batch.msgpack")}
WILD = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.binary(max_size=64),
    st.text(max_size=8),
    st.lists(st.integers(0, 3), max_size=4),
)


def decode(name: str, body: bytes, *, as_json: bool = False) -> Batch:
    if name.startswith("batch"):
        return decode_batch(body, as_json=as_json)
    return batch_of_one(decode_report(body, as_json=as_json))


def taken(read: Callable[[], Batch]) -> bool:
    """Read and take in a body; any other end than these two is a fault of the balancer."""
    try:
        batch = read()
        job = Job(batch.job)
        job.take(batch, NOW_S)
        job.take(batch, NOW_S)
        job.summary(NOW_S)
    except ReportError as error:
        refusal = error
    else:
        return True
    assert refusal.reason in RESULTS
    assert refusal.field.startswith("$")
    return False


@pytest.mark.parametrize("name", list(SEEDS))
@pytest.mark.parametrize("as_json", [False, True])
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_taken(name: str, as_json: bool, body: bytes) -> None:
    """Bytes that are nothing at all end in a reason."""
    taken(lambda: decode(name, body, as_json=as_json))


@pytest.mark.parametrize("name", list(SEEDS))
@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_body_with_other_bytes_in_it_is_refused_or_taken(name: str, data: st.DataObject) -> None:
    """A real body with bytes flipped, cut out or put in."""
    body = bytearray(SEEDS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        length = data.draw(st.integers(0, 4))
        body[at : at + length] = data.draw(st.binary(max_size=4))

    taken(lambda: decode(name, bytes(body)))


@pytest.mark.parametrize("name", list(SEEDS))
@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_body_with_other_values_in_it_is_refused_or_taken(name: str, data: st.DataObject) -> None:
    """A real body whose structure holds, with wild values in some of its places."""
    plain = msgspec.msgpack.decode(SEEDS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        _spoil(plain, data)

    taken(lambda: decode(name, msgspec.msgpack.encode(plain)))


def _spoil(value: Any, data: st.DataObject) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 9)) == 0:
            value[key] = data.draw(WILD)
            return
        value = inner


HUGE = {
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a table of 4 billion": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "lists in lists": b"\x91" * 100_000,
}


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE.keys())
@pytest.mark.parametrize("field", ["agents", "moments", "unknown", None])
def test_a_declared_size_is_no_memory(field: str | None, value: bytes) -> None:
    """A body that says that gigabytes follow is refused without a byte of them."""
    body = value if field is None else b"\x81" + msgspec.msgpack.encode(field) + value
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert not taken(lambda: decode_batch(body))
    assert not taken(lambda: decode("report", body))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10


def write_corpus(folder: Path) -> None:
    """Write one seed of each kind for the fuzzer: the first byte says what a body is."""
    folder.mkdir()
    for kind, name in enumerate(("report.msgpack", "report.json", "batch.msgpack", "batch.json")):
        body = (DATA / name).read_bytes()
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        packed = packer.compress(body) + packer.flush()
        (folder / name).write_bytes(bytes([kind]) + body)
        (folder / f"{name}.gz").write_bytes(bytes([kind | 4]) + packed)


def fuzz(folder: Path, seconds: int) -> str:
    """Run the fuzzer for so long; return what it says."""
    pytest.importorskip("atheris")
    write_corpus(folder / "corpus")
    limits = ["-max_len=65536", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=20"]
    # By a shell: a process counts the most memory that what it was forked from ever had as its own.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    command = [*shell, sys.executable, "-m", "tests.fuzz_wire", str(folder / "corpus"), *limits]
    ended = subprocess.run(
        [*command, f"-max_total_time={seconds}", f"-artifact_prefix={folder}/"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stderr


def test_the_fuzzer_runs(tmp_path: Path) -> None:
    """It starts, knows what the seeds cover, and finds nothing in a few seconds."""
    assert "Done" in fuzz(tmp_path, 5)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_minutes_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    """No crash, no hang, no exception but a refusal, and no allocation beyond the limits."""
    assert "Done" in fuzz(tmp_path, 600)
