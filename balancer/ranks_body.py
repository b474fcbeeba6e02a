"""The view of a job's ranks in JSON: millions of numbers in one answer, so row by row.

Whoever encodes holds up all other threads meanwhile; between rows they have their turns.
"""

from collections.abc import Sequence

import msgspec

from libra.balancer import views
from libra.balancer.state import JobSettings, JobState
from libra.balancer.step_record import StepRecord


def ranks_body(records: Sequence[StepRecord], state: JobState, settings: JobSettings) -> bytes:
    """Return what ``views.ranks_view`` shows of these steps; callable from any thread."""
    rows = views.rank_rows(state, settings)
    head = msgspec.json.encode({"steps": [record.step for record in records]})
    ranks = b",".join([msgspec.json.encode(row) for row in rows])
    slowdown = b",".join([msgspec.json.encode(views.slowdown_row(r)) for r in records])
    return b'%b,"ranks":[%b],"slowdown":[%b]}' % (head[:-1], ranks, slowdown)
