"""The source of pairs of rows: epochs, resuming at any sample, samples left out."""

import pytest

from glmforge.config.preferences import RewardConfig
from glmforge.config.schema import RunConfig
from glmforge.data.preferences.stream import PairCurriculum
from glmforge.errors import ConfigError
from glmforge.objectives.pairs import pairs_of
from glmforge.objectives.reward import RewardObjective
from glmforge.parallel.world import World
from glmforge.recipes.preferences import PreferenceSource, _check_shares, _with_counted_epochs
from glmforge.training.source import Position
from helpers.preferences import preference_config, random_stream

STREAM = random_stream(sizes=(40, 21))


def config_of(**phase: object) -> RunConfig:
    given = {"name": "main", "seq_len": 32, "batch_size": 4, "epochs": 1} | phase
    config = preference_config("reward")
    return RunConfig.model_validate(config.model_dump() | {"phases": [given]})


def source_of(config: RunConfig) -> PreferenceSource:
    curriculum = PairCurriculum(STREAM, "main", ["first", "second"], ["1", "2"])
    settings = RewardConfig()
    return PreferenceSource(
        config, curriculum, World.single("cpu"), lambda phase: RewardObjective(phase, ["first", "second"], settings)
    )


def numbers_of(source: PreferenceSource) -> list[list[int]]:
    """Pairs of the batches that are left, batch after batch."""
    found = []
    while (given := source.next()) is not None:
        pairs = pairs_of(given.batch)
        found.append(sorted(pairs.number_P[pairs.weight_P > 0].tolist()))
    return found


def test_an_epoch_has_every_pair_and_half_an_epoch_half_of_the_rows() -> None:
    config = _with_counted_epochs(config_of(), STREAM.num_samples)
    batches = numbers_of(source_of(config))
    assert config.num_steps == len(batches) == -(-STREAM.num_samples // 4)
    assert set(range(STREAM.num_pairs)) == {number for batch in batches for number in batch}
    half = _with_counted_epochs(config_of(epochs=0.5), STREAM.num_samples)
    assert half.num_steps == -(-STREAM.num_samples // 2 // 4)


def test_a_source_goes_on_where_it_was() -> None:
    config = _with_counted_epochs(config_of(epochs=2), STREAM.num_samples)
    whole = source_of(config)
    first = [whole.next() for _ in range(3)]
    position, state = whole.position, whole.state_dict()
    rest = numbers_of(whole)
    again = source_of(config)
    again.load_state_dict(state, position)
    assert numbers_of(again) == rest
    assert first[-1] is not None
    assert first[-1].position == position
    assert again.metrics()["source_epochs"].keys() == {"first", "second"}


def test_samples_that_are_left_out_are_not_given() -> None:
    config = _with_counted_epochs(config_of(), STREAM.num_samples)
    batches = numbers_of(source_of(config))
    source = source_of(config)
    source.load_state_dict({}, Position())
    source.leave_out({"main": [(4, 8)]})
    assert numbers_of(source) == [batches[0], *batches[2:]]
    assert source.describe("main", 5)["side"] == "rejected"


def test_a_batch_that_ranks_cannot_share_in_pairs_is_refused() -> None:
    _check_shares(config_of(), World.single("cpu"))
    with pytest.raises(ConfigError, match="batch_size: 6 rows are pairs, so each of 2 data ranks needs an even number"):
        _check_shares(config_of(batch_size=6).model_copy(update={"parallel": _two_ranks()}), _World(2))  # type: ignore[arg-type]


def _two_ranks() -> object:
    return preference_config("reward", parallel={"dp_shard": 2}).parallel


class _World:
    def __init__(self, size: int) -> None:
        self.size = size
