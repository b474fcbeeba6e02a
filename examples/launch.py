"""Run a module in a process that ends with its parent: ``python -m libra.examples.launch``.

Linux then sends SIGTERM when the parent is gone, even after a kill -9; elsewhere nothing does.
It is a module of its own so that this is arranged before the slow import of torch, and within
the child, where forking a parent with threads is no danger.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends.

    Args:
        parent: process id that the parent must have; it may have ended before this call.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")


def main() -> None:
    """Run ``[--parent=PID] MODULE ARGUMENTS...`` as ``python -m`` would."""
    parent = None
    arguments = sys.argv[1:]
    if arguments[0].startswith("--parent="):
        parent = int(arguments.pop(0).partition("=")[2])
    die_with_parent(parent)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
