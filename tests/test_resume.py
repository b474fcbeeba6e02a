"""A resumed sampler gives exactly what was left, whatever became of the job's ranks."""

import json
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore
from torch.utils.data import WeightedRandomSampler

from libra.agent.ahead import Ahead
from libra.agent.cell import Cell
from libra.agent.sampler import PoolSampler
from libra.balancer.policy import HOME_POLICY, Policy
from tests.coordinates import COST, POLICY, documents, samplers
from tests.running import wait_for

State = dict[str, Any]


def tell(cells: Sequence[Cell] | PoolSampler) -> list[tuple[Any, ...]]:
    """Return all that makes two cells the same."""
    return [
        (cell.step, cell.micro_batch, cell.policy_checksum, *sorted(documents([cell])))
        for cell in cells
    ]


def through_json(state: State) -> State:
    loaded: State = json.loads(json.dumps(state))
    return loaded


class Trace:
    """Policies that change with every step that is decided, as a busy balancer's would."""

    def __init__(self) -> None:
        self.version = 0

    def __call__(self) -> Policy:
        self.version += 1
        costs, bits = COST.coefficients, COST.scale_bits
        pooling = self.version % 3 > 0
        return Policy(version=self.version, pooling=pooling, cost=costs, cost_scale_bits=bits)


SETTINGS = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["best_fit", "stream"]),
        "last": st.sampled_from(["drop", "pad"]),
        "seed": st.integers(0, 3),
    }
)


@given(SETTINGS, st.integers(0, 2), st.lists(st.integers(0, 30), max_size=4))
def test_what_is_left_is_exactly_what_would_have_come(
    drawn: dict[str, Any], epoch: int, stops: list[int]
) -> None:
    """Stopped after any micro-batches, any number of times, a job yields the cells of one run."""
    (whole, *_) = samplers(4, 2, global_batch=12, **drawn)
    whole.policy_source = Trace()
    whole.set_epoch(epoch)
    expected = tell(whole)

    got: list[tuple[Any, ...]] = []
    state: State | None = None
    policy = Trace()
    for stop in [*stops, None]:
        (sampler, *_) = samplers(4, 2, global_batch=12, **drawn)
        sampler.policy_source = policy
        if state is None:
            sampler.set_epoch(epoch)
        else:
            sampler.load_state_dict(state)
            assert through_json(sampler.state_dict()) == state
            sampler.set_epoch(epoch)
        got += tell(list(islice(sampler, stop)))
        state = through_json(sampler.state_dict())

    assert got == expected


@settings(max_examples=40)
@given(
    st.sampled_from([(2, 1), (2, 2), (3, 2), (4, 4), (6, 3), (12, 8)]),
    st.sampled_from([(2, 2), (4, 2), (6, 4), (12, 3)]),
    st.integers(0, 4),
    st.integers(0, 5),
)
def test_another_dp_size_draws_the_same_steps(
    before: tuple[int, int], after: tuple[int, int], step: int, micro_batches: int
) -> None:
    """Whatever mesh saved the state, every step that is left has its documents, none twice."""
    (home, *_) = samplers(1, 1, global_batch=12)
    (saving, *_) = samplers(*before, global_batch=12)
    per_step = 12 // before[0]
    yielded = step * per_step + micro_batches % per_step
    iterator = iter(saving)
    for _ in range(yielded):
        next(iterator)
    state = through_json(saving.state_dict())

    ranks = samplers(*after, global_batch=12)
    for sampler in ranks:
        sampler.load_state_dict(state)
    given = [list(cells) for cells in zip(*ranks, strict=True)]
    begun = step + (before == after and yielded % per_step > 0)

    for later in range(begun, home.steps_per_epoch):
        cells = [cell for row in given for cell in row if cell.step == later]
        assert documents(cells) == documents(home.cells(later, HOME_POLICY))


def test_the_next_step_is_a_state_too() -> None:
    """For loaders that read ahead: the state of a step, not of what they have drawn, is resumed."""
    (whole, *_) = samplers(2, 2)
    expected = tell(whole)
    (sampler, *_) = samplers(2, 2)
    ahead = iter(Ahead(sampler, depth=5))
    for _ in range(3 * 4):
        next(ahead)
    # The thread draws some cells more, among them the next step's.
    wait_for(lambda: "3" in sampler.state_dict(step=3)["policies"])
    state = through_json(sampler.state_dict(step=3))
    ahead.close()  # type: ignore[attr-defined]

    assert state["step"] == 3
    sampler.load_state_dict(state)
    assert tell(sampler) == expected[12:]
    (other, *_) = samplers(2, 2)
    other.load_state_dict(state)
    assert tell(other) == expected[12:]


def read_ahead(ranks: list[PoolSampler], micro_batches: int) -> tuple[list[Cell], list[Any]]:
    """Return what ranks trained on, and readers that are ahead of it, each by another number."""
    readers = [iter(Ahead(sampler, depth=1 + 3 * at)) for at, sampler in enumerate(ranks)]
    return [next(own) for _ in range(micro_batches) for own in readers], readers


@pytest.mark.parametrize("packing", ["best_fit", "stream"])
@pytest.mark.parametrize(
    ("before", "after"), [((4, 2), (4, 2)), ((4, 2), (6, 3)), ((2, 1), (3, 2)), ((3, 3), (1, 1))]
)
def test_ranks_that_read_ahead_unequally_resume_at_one_step(
    packing: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Each rank from the state of another, on any mesh: same steps, same policies, nothing lost."""
    settings: dict[str, Any] = {"global_batch": 12, "packing": packing, "last": "pad"}
    steps = samplers(1, 1, **settings)[0].steps_per_epoch
    for trained in (0, 2, steps - 1):
        old = samplers(*before, **settings)
        for sampler in old:
            sampler.policy_source = Trace()
        given, readers = read_ahead(old, trained * 12 // before[0])
        states = [through_json(sampler.state_dict(step=trained)) for sampler in old]
        for reader in readers:
            reader.close()
        ranks = samplers(*after, attempt=1, **settings)
        for at, sampler in enumerate(ranks):
            sampler.policy_source = Trace()
            sampler.load_state_dict(states[-1 - at % len(states)])
        rest = list(zip(*ranks, strict=True))

        expected = [step for step in range(trained, steps) for _ in range(12 // after[0])]
        assert [{cell.step for cell in row} for row in rest] == [{step} for step in expected]
        assert all(len({cell.policy_checksum for cell in row}) == 1 for row in rest)
        seen = documents([*given, *(cell for row in rest for cell in row)])
        (home,) = samplers(1, 1, **settings)
        assert seen == documents(home)


def test_the_first_step_of_an_epoch_belongs_to_it() -> None:
    """After the last step of an epoch comes the next epoch, set or not."""
    (whole, *_) = samplers(2, 2)
    steps = whole.steps_per_epoch
    whole.set_epoch(1)
    second = tell(whole)
    for setting in (True, False):
        (sampler, *_) = samplers(2, 2)
        sampler.load_state_dict(through_json(whole.state_dict(step=steps)))
        if setting:
            sampler.set_epoch(1)
        assert tell(sampler) == second


@pytest.mark.parametrize("epoch", [0, None, 1])
def test_at_the_end_of_an_epoch_nothing_of_it_is_left(epoch: int | None) -> None:
    """A loop that sets the old epoch again gets nothing of it; one that goes on gets the next."""
    (whole, *_) = samplers(2, 2)
    expected = {0: [], None: 1, 1: 1}[epoch]
    list(whole)
    state = through_json(whole.state_dict())
    whole.set_epoch(1)
    second = tell(whole)

    (sampler, *_) = samplers(2, 2)
    sampler.load_state_dict(state)
    if epoch is not None:
        sampler.set_epoch(epoch)

    assert tell(sampler) == (second if expected else [])
    sampler.set_epoch(1)
    assert tell(sampler) == second


def test_a_loaded_state_counts_for_one_iteration() -> None:
    """The iteration after it is the whole epoch again, as after any other; another epoch is too."""
    (sampler, *_) = samplers(2, 2)
    whole = tell(sampler)
    state = sampler.state_dict(step=2)
    sampler.load_state_dict(state)

    assert [tell(sampler), tell(sampler)] == [whole[8:], whole]
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert sampler.state_dict()["step"] == sampler.steps_per_epoch
    sampler.set_epoch(0)
    assert tell(sampler) == whole


def test_an_iterator_has_a_state_of_its_own() -> None:
    """Stateful loaders save and load iterators, one of them in the middle of a step."""
    (sampler, *_) = samplers(2, 2)
    whole = tell(sampler)
    iterator = iter(sampler)
    list(islice(iterator, 5))
    state = through_json(iterator.state_dict())
    list(islice(iterator, 4))
    iterator.load_state_dict(state)

    assert tell(list(iterator)) == whole[5:]


def begin(dp: int = 4, pool: int = 2, yielded: int = 1) -> State:
    """The state of a rank that has micro-batches of the first step."""
    (sampler, *_) = samplers(dp, pool, global_batch=12)
    iterator = iter(sampler)
    for _ in range(yielded):
        next(iterator)
    return through_json(sampler.state_dict())


def test_a_step_that_was_begun_goes_on_under_its_policy() -> None:
    """A newer policy waits for the next step: half a step under it would double documents."""
    state = begin()
    ranks = samplers(4, 2, global_batch=12, policy=HOME_POLICY, attempt=1)
    for sampler in ranks:
        sampler.load_state_dict(state)
    cells = list(islice(ranks[0], 4))

    assert [(cell.step, cell.micro_batch) for cell in cells] == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert [cell.policy_version for cell in cells] == [1, 1, 0, 0]


def test_a_job_that_decides_otherwise_in_the_middle_of_a_step_stops() -> None:
    """A rank that resumed without the state has decided the step anew; nobody trains on that."""
    state = begin()
    store = HashStore()
    one, two, *_ = samplers(4, 2, global_batch=12, policy=HOME_POLICY, store=store)
    next(iter(one))
    two.load_state_dict(state)

    with pytest.raises(RuntimeError, match=r"Step 0 was begun under policy \w{16}"):
        next(iter(two))


@pytest.mark.parametrize("mesh", [(2, 2), (4, 4), (4, 1)])
def test_in_the_middle_of_a_step_other_ranks_begin_it_anew(
    mesh: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """With another DP or pool size the sequences that are left are nobody's; the log says so."""
    ranks = samplers(*mesh, global_batch=12)
    for sampler in ranks:
        sampler.load_state_dict(begin(yielded=2))
    expected = documents(samplers(1, 1, global_batch=12)[0].cells(0, HOME_POLICY))
    given = documents(cell for own in ranks for cell in islice(own, 12 // mesh[0]))

    assert given == expected
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * len(ranks)
    assert "Step 0 is begun anew: 2 of its micro-batches" in caplog.text


def test_a_resumed_epoch_needs_none_before_it() -> None:
    """Where epochs begin is in the state: a job in its hundredth packs that one alone."""
    (saving, *_) = samplers(2, 2, lengths=np.full(40, 1000))
    saving.set_epoch(100)
    iterator = iter(saving)
    next(iterator)
    state = saving.state_dict()

    class Untold:
        """A sampler of documents that must not be asked for old epochs."""

        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            assert epoch >= 100

        def __iter__(self) -> Any:
            return iter(range(40))

    (one, *_) = samplers(2, 2, lengths=np.full(40, 1000), documents=Untold())
    one.load_state_dict(
        {
            **state,
            "settings": {**state["settings"], "documents": "by an own sampler"},
            "drawn": None,
        }
    )

    assert next(iter(one)).step == 500


def mixture(seed: int) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * 600, 500, generator=torch.Generator().manual_seed(seed))


def test_a_mixture_goes_on_where_it_was() -> None:
    """A seeded sampler of documents is brought to where it was; one seeded otherwise is refused."""
    whole, _ = samplers(2, 2, documents=mixture(1))
    next(iter(whole))
    whole.set_epoch(1)
    expected = tell(whole)
    saving, _ = samplers(2, 2, documents=mixture(1))
    saving.set_epoch(1)
    list(islice(saving, 5))
    state = through_json(saving.state_dict())

    resumed, _ = samplers(2, 2, documents=mixture(1))
    resumed.load_state_dict(state)
    assert tell(resumed) == expected[5:]
    other, _ = samplers(2, 2, documents=mixture(2))
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"documents: epoch 1 draws .* seeded as it was"):
        next(iter(other))


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 8},
        {"tokens": 2048},
        {"packing": "stream"},
        {"last": "pad"},
        {"global_batch": 8},
        {"lengths": np.arange(1, 601)},
        {"documents": range(600)},
    ],
)
def test_another_setting_of_what_steps_draw_is_refused(changed: dict[str, Any]) -> None:
    """The error names the setting, both values and the remedy, before a document is lost."""
    (name,) = changed
    (sampler, *_) = samplers(4, 2, **{"global_batch": 12, **changed})
    with pytest.raises(ValueError, match=rf"{name}=.* saved with {name}=.*; resume with that"):
        sampler.load_state_dict(begin())


def without(key: str) -> Callable[[State], object]:
    return lambda state: state.pop(key)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda s: s.clear(), "version=None: must be 1"),
        (lambda s: s.update(version=2), "version=2: must be 1"),
        (without("epoch"), "epoch"),
        (without("policies"), "policies"),
        (lambda s: s.update(step="0"), "step"),
        (lambda s: s.update(step=-1), "step"),
        (lambda s: s.update(step=1.5), "step"),
        (lambda s: s.update(first_step=3), "step=0"),
        (lambda s: s.update(step=10_000), "step=10000"),
        (lambda s: s.update(micro_batch=3), "micro_batch=3"),
        (lambda s: s.update(more=3), "more"),
        (lambda s: s.update(world=4), "world"),
        (lambda s: s["world"].pop("cp"), "cp"),
        (lambda s: s["world"].update(dp=0), "dp"),
        (lambda s: s["settings"].pop("seed"), "seed=7"),
        (lambda s: s["policies"].clear(), "policies"),
        (lambda s: s["policies"].update({"0": "{}"}), "version"),
        (lambda s: s["policies"].update({"x": "{}"}), "policies"),
    ],
)
def test_what_is_no_state_is_refused(spoil: Callable[[State], object], match: str) -> None:
    """A state of another version, torn, or with wrong types is an error that names the part."""
    state = begin()
    spoil(state)
    (sampler, *_) = samplers(4, 2, global_batch=12)
    with pytest.raises(ValueError, match=match):
        sampler.load_state_dict(state)


def test_a_refused_state_changes_nothing() -> None:
    """After the error the sampler goes on as if it had not been asked."""
    (sampler, *_) = samplers(4, 2, global_batch=12)
    expected = tell(sampler)
    with pytest.raises(ValueError, match="policies"):
        sampler.load_state_dict({**begin(), "policies": {}})
    for nothing in (None, "x", [1]):
        with pytest.raises(ValueError, match="version=None"):
            sampler.load_state_dict(nothing)  # type: ignore[arg-type]

    assert tell(sampler) == expected
    assert POLICY.checksum == expected[0][2]


def test_a_state_of_an_epoch_of_another_length_is_found_out() -> None:
    """It is an error before any document is drawn, and the right state is taken after it."""
    (whole, *_) = samplers(4, 2, global_batch=12)
    expected = tell(whole)
    good = begin()
    (sampler, *_) = samplers(4, 2, global_batch=12)
    sampler.load_state_dict({**good, "epoch_steps": whole.steps_per_epoch + 3})
    with pytest.raises(ValueError, match=rf"epoch 0 has {whole.steps_per_epoch}"):
        next(iter(sampler))

    sampler.load_state_dict(good)
    assert tell(sampler) == expected[-len(tell_rest(good)) :]


def tell_rest(state: State) -> list[Any]:
    """What a fresh sampler yields from a state on."""
    (sampler, *_) = samplers(4, 2, global_batch=12)
    sampler.load_state_dict(state)
    return tell(sampler)


def test_numbers_of_numpy_are_numbers() -> None:
    """Settings, epochs and steps from numpy give the state of plain ones, as JSON holds it."""
    plain, *_ = samplers(2, 2, seed=7, tokens=1024, global_batch=8)
    (own, *_) = samplers(
        2,
        2,
        seed=np.int64(7),
        tokens=np.int32(1024),
        global_batch=np.int64(8),  # type: ignore[arg-type]
    )
    for sampler, epoch, step in ((plain, 1, 3), (own, np.int64(1), np.int64(3))):
        sampler.set_epoch(epoch)  # type: ignore[arg-type]
        next(iter(sampler))
        sampler.state_dict(step=step)  # type: ignore[arg-type]

    assert json.dumps(own.state_dict()) == json.dumps(plain.state_dict())


def test_another_pass_without_another_epoch_says_what_is_missing() -> None:
    """Steps long past cannot be decided again; passes after ``set_epoch`` can go on for ever."""
    settings: dict[str, Any] = {"lengths": [8] * 2100, "tokens": 8, "global_batch": 1}
    (again,) = samplers(1, 1, **settings)
    assert len(list(again)) == 2100
    with pytest.raises(RuntimeError, match="another pass over the data set_epoch"):
        next(iter(again))

    (onward,) = samplers(1, 1, **settings)
    for epoch in range(2):
        onward.set_epoch(epoch)
        assert len(list(onward)) == 2100
