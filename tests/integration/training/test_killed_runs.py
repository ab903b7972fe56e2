"""The short form of `make test-chaos`: three blows, two nodes with disks of their own, 4 -> 2 -> 4 ranks."""

import random
from pathlib import Path

from helpers.chaos import Chaos, Strike, check_lineage, reference_losses, survivor_losses
from helpers.tiny_data import TinyData


def test_a_run_survives_kills_signals_and_a_damaged_checkpoint(tiny_data: TinyData, tmp_path: Path) -> None:
    random.seed(0)
    chaos = Chaos(tiny_data, tmp_path, num_steps=30)
    chaos.run([Strike("one", 3), Strike("copying", 2, world_size=2), Strike("damaged", 4)])
    assert [launch.kind for launch in chaos.launches] == ["one", "copying", "damaged", "none"]
    check_lineage(chaos)
    assert survivor_losses(chaos) == reference_losses(chaos, tmp_path / "reference")
