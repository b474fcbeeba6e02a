"""What a burst took goes back to the system, though some of it is still in use."""

import platform
import subprocess
import sys

import pytest

from tests.running import ROOT

BURST = """
import psutil
from libra.balancer.memory import give_back

def resident():
    return psutil.Process().memory_info().rss >> 20

# Small enough for the heap, and every 50th lives on: the heap's end never moves back.
blocks = [bytes(64 << 10) for _ in range(4000)]
blocks = blocks[::50]
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives pages back")
def test_free_pages_go_back() -> None:
    """Of 250 MiB of which 5 are in use most are returned at once."""
    done = subprocess.run(
        [sys.executable, "-c", BURST], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150
