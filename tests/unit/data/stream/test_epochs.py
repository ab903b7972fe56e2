"""The length of a phase that is said in epochs."""

from typing import Any

import pytest

from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.epochs import with_counted_epochs
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import ConfigError
from helpers.stream_runs import stream_config

Shards = dict[str, TokenShard]


@pytest.mark.parametrize(
    ("names", "weights", "epochs", "samples"),
    [
        (["web"], {}, 1, 25),
        (["web"], {}, 2.5, 63),  # of 62.5 rows
        (["web", "code"], {"web": 5, "code": 2}, 2, 70),  # by their sizes: both twice
        (["web", "code"], {"web": 1, "code": 1}, 1, 20),  # code is through first
        (["web", "code"], {"web": 0.9, "code": 0.1}, 1, 28),  # web is: 25 of 27.8 rows
    ],
)
def test_an_epoch_ends_with_the_source_that_is_through_first(
    shards: Shards, names: list[str], weights: dict[str, float], epochs: float, samples: int
) -> None:
    chosen = {name: shards[name] for name in names}
    options: dict[str, Any] = {name: {"weight": weight} for name, weight in weights.items()}
    phases = [{"epochs": epochs}, {"steps": 3}]
    config = with_counted_epochs(stream_config(chosen, phases, **options), chosen)
    assert config.phases[0].tokens == samples * 8
    assert config.phases[0].num_samples == -(-samples // 4) * 4  # whole batches
    assert config.phases[1].steps == 3
    most = max(draw.epochs for draw in Curriculum(config, chosen).planned_draws() if draw.phase == "phase0")
    assert epochs <= most + 1e-9
    assert most < epochs + 4 / 10  # a batch more than the epochs, of the smallest source


def test_before_its_data_are_read_a_phase_of_epochs_has_no_length(shards: Shards) -> None:
    phase = stream_config(shards, [{"epochs": 2}]).phases[0]
    with pytest.raises(ConfigError, match=r"'phase0': is 2 epochs long, .* steps=1000\)"):
        print(phase.num_samples)
