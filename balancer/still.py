"""A job's state as it stands at one moment, for a thread to look at while the job goes on."""

from msgspec.structs import replace

from libra.balancer.state import JobState
from libra.balancer.steps import RECENT_STEPS


def still(state: JobState) -> JobState:
    """Return what diagnoses and advice are made from: the newest steps, and nothing pending.

    Arrays are shared: those of steps and models are put anew, not changed, as the job goes on.
    """
    fits = replace(state.fits, fits=[replace(fit) for fit in state.fits.fits])
    exchange = replace(state.exchange, fits=[replace(fit) for fit in state.exchange.fits])
    records = [replace(record) for record in state.log.records[-RECENT_STEPS:]]
    log = replace(state.log, records=records, pending={})
    policies = [replace(entry) for entry in state.policies]
    return replace(
        state,
        fits=fits,
        log=log,
        exchange=exchange,
        policies=policies,
        ranks=dict(state.ranks),
        doubts=dict(state.doubts),
        agents={},
    )
