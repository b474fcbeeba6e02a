"""What the balancer asks of its system is asked, and works."""

import gc
import platform
import subprocess
import sys

import pytest

from libra.balancer.process import ease_collections, without_collections
from tests.running import ROOT

# Arrays of a size that was freed before, with something small and lasting behind each.
FREES = """
import sys
import numpy as np
from libra.balancer.process import give_back_large_blocks

def resident():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

if sys.argv[1] == "asked":
    assert give_back_large_blocks()
large = np.ones(1 << 20)
del large
before, arrays, small = resident(), [], []
for number in range(200):
    arrays.append(np.ones((1 << 20) // 8 + number))
    small.append(np.ones(2000))
del arrays
print((resident() - before) >> 20)
"""


def kept_mib(how: str) -> int:
    """Return what stays resident of 200 MiB of arrays after they are freed."""
    command = [sys.executable, "-c", FREES, how]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_large_blocks_go_back_to_the_system() -> None:
    """What arrays took is given back when they are freed; without asking it would be kept."""
    assert kept_mib("asked") < 20
    assert kept_mib("not asked") > 100


def test_collections_are_off_while_it_starts_and_eased_after() -> None:
    """The start is not held up; what is there at its end is not looked at again."""
    before = gc.get_threshold()
    try:
        with without_collections():
            assert not gc.isenabled()
            ease_collections()
            assert gc.isenabled()
            assert gc.get_freeze_count() > 0
            assert gc.get_threshold() > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        gc.enable()
