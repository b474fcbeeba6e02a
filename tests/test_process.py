"""What the balancer asks of Python at its start is asked, and undone by nobody."""

import gc

from libra.balancer.process import ease_collections, without_collections


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
