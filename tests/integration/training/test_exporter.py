"""A run whose metrics are scraped while it trains, is killed, resumes and ends."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.command import Commands, write_config
from helpers.tiny_data import TinyData

SECTIONS: dict[str, Any] = {
    "phases": [{"name": "main", "steps": 6, "seq_len": 16, "batch_size": 2}],
    "checkpoint": {"every_steps": 2, "background": False},
}


class Scrapes(Hook):
    """After each step, as Prometheus does; dies before a step as if it had been killed."""

    name = "scrapes"

    def __init__(self, run: Path, dies_at: int | None = None) -> None:
        self.run, self.dies_at = run, dies_at
        self.texts: list[str] = []

    def on_step_start(self, trainer: Trainer) -> None:
        if trainer.state.step + 1 == self.dies_at:
            raise KeyboardInterrupt

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        target = json.loads((self.run / "exporter" / "rank-00000.json").read_text())
        with urllib.request.urlopen(f"http://{target['host']}:{target['port']}/metrics", timeout=30) as answer:
            self.texts.append(answer.read().decode())


def steps(scrapes: Scrapes) -> list[str]:
    return [line for text in scrapes.texts for line in text.splitlines() if line.startswith("glmforge_step ")]


def test_a_run_is_scraped_across_its_death_and_resume(tiny_data: TinyData, tmp_path: Path) -> None:
    config = tiny_data.run_config(tmp_path / "run", observe={"prometheus": {}}, **SECTIONS)
    first, second = Scrapes(config.output_dir, dies_at=4), Scrapes(config.output_dir)
    with pytest.raises(KeyboardInterrupt):
        train(config, [first])
    assert (config.output_dir / "exporter" / "rank-00000.json").exists()  # a target that is down
    train(config, [second])
    assert not list((config.output_dir / "exporter").iterdir())
    assert steps(first) == [f"glmforge_step {n}.0" for n in (1, 2, 3)]
    assert steps(second) == [f"glmforge_step {n}.0" for n in (3, 4, 5, 6)]
    last = second.texts[-1]
    assert "glmforge_total_steps 6.0" in last
    assert 'glmforge_events_total{event="saved"} 1.0' in last  # of step 4; the last one is saved later


def test_every_rank_announces_itself_and_goes(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    long = SECTIONS | {"phases": [{"name": "main", "steps": 100_000, "seq_len": 16, "batch_size": 2}]}
    config = tiny_data.run_config(
        tmp_path / "run", parallel={"dp_shard": 2}, observe={"prometheus": {"ranks": "all"}}, **long
    )
    path = write_config(config)
    started = commands.start("train", path, ranks=2)
    targets = [tmp_path / "run" / "exporter" / f"rank-0000{rank}.json" for rank in (0, 1)]
    started.wait_until(lambda: all(target.exists() for target in targets))
    started.wait_for_steps(tmp_path / "run", 2)
    found = [json.loads(target.read_text()) for target in targets]
    texts = []
    for target in found:
        with urllib.request.urlopen(f"http://127.0.0.1:{target['port']}/metrics", timeout=30) as answer:
            texts.append(answer.read().decode())
    assert "glmforge_loss " in texts[0]
    assert "glmforge_step_seconds " in texts[1]
    assert "glmforge_loss " not in texts[1]
    started.interrupt()
    started.wait()
    assert not [target for target in targets if target.exists()]
