"""Twenty blows to a run over three phases on 4, then 2, then 4 ranks: it finishes by itself as if nothing had been."""

import random
from pathlib import Path

import pytest

from helpers.chaos import (
    Chaos,
    Strike,
    reference_losses,
    report,
    small_disk,
    survivor_losses,
)
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

KINDS = ["one", "all", "term", "term_one", "usr1", "saving", "copying", "disk_full", "damaged"]
KINDS += ["one", "all", "all", "term", "usr1", "saving", "saving", "copying", "copying", "one", "damaged"]


def strikes(seed: int, kinds: list[str]) -> list[Strike]:
    """In random order, after one to five steps each; the middle third on two ranks."""
    generator = random.Random(seed)
    generator.shuffle(kinds)
    third = len(kinds) // 3
    return [
        Strike(kind, generator.randint(1, 5), 2 if third <= number < 2 * third else 4)
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("seed", [1])
def test_a_run_survives_twenty_blows(tiny_data: TinyData, tmp_path: Path, seed: int) -> None:
    random.seed(seed)
    with small_disk(tmp_path / "disk", 96) as disk:
        kinds = [kind for kind in KINDS if disk is not None or kind != "disk_full"]
        chaos = Chaos(tiny_data, tmp_path, num_steps=120, small_disk=disk)
        chaos.run(strikes(seed, kinds))
    print(report(chaos))
    assert len(kinds) >= 19
    assert chaos.summary()["blows"] == len(kinds)
    chaos.check()
    losses = survivor_losses(chaos)
    assert losses == reference_losses(chaos, tmp_path / "reference")
    whole = Chaos(tiny_data, tmp_path / "whole", num_steps=120, local=False)
    whole.directory.mkdir()
    assert whole.strike(Strike("none", 0, 4)) == 0
    # fp32 sums in another order while there were two ranks, fed back through all updates since.
    assert losses[-1] == pytest.approx(survivor_losses(whole)[-1], rel=1e-4)
