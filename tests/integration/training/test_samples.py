"""A run that writes texts at its evaluations trains to the same bits as one that does not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.errors import ConfigError
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.distributed import run_ranks
from helpers.tiny_data import TinyData

OBSERVE = {"progress": False, "tensorboard": False, "evaluate_every": 4, "evaluate_tokens": 600}
SAMPLES = {"prompts": ["def ", "import ", "class A"], "num_samples": 2, "max_new_tokens": 6}


def sections(samples: dict[str, Any] | None, parallel: dict[str, Any]) -> dict[str, Any]:
    return {
        "phases": [{"name": "main", "seq_len": 32, "batch_size": 8, "steps": 8}],
        "observe": OBSERVE | {"samples": samples},
        "parallel": parallel,
        "checkpoint": {"every_steps": 8},
    }


def rank_train(tiny_data: TinyData, output_dir: Path, sections: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    train(tiny_data.run_config(output_dir, **sections))


def test_losses_are_the_same_with_samples(tiny_data: TinyData, tmp_path: Path) -> None:
    parallel = {"dp_shard": 2, "ep": 2}
    for name, samples in (("with", SAMPLES), ("without", None)):
        run_ranks(rank_train, 2, tiny_data, tmp_path / name, sections(samples, parallel), init_group=False)
    for file in ("metrics.jsonl", "evaluation.jsonl"):
        ours, theirs = (read_jsonl(tmp_path / run / file) for run in ("with", "without"))
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            for name in one.keys() & {"loss", "loss_mtp", "loss_aux", "grad_norm", "nll", "bias_spread_mean", "step"}:
                assert one[name] == other[name], (one["step"], name)
    assert not (tmp_path / "without" / "samples.jsonl").exists()
    records = read_jsonl(tmp_path / "with" / "samples.jsonl")
    texts = [(step, prompt, sample) for step in (4, 8) for prompt in SAMPLES["prompts"] for sample in (0, 1)]
    assert [(one["step"], one["prompt"], one["sample"]) for one in records] == texts
    for one in records:
        assert 1 <= one["new_tokens"] <= 6
        assert (one["finished"] == "length") == (one["new_tokens"] == 6)
        assert one["sampling_weight_bytes"] > one["sampling_regathered_bytes"] == 0
        assert one["sampling_cache_bytes"] > 0
    assert len({one["completion"] for one in records}) > 4
    page = write_report(tmp_path / "with").read_text(encoding="utf-8")
    assert page.count("<pre><b>def </b>") == 2, "the two texts of the last evaluation"


def test_texts_of_one_process(tiny_data: TinyData, tmp_path: Path) -> None:
    """Going on from a checkpoint writes the texts of later evaluations only; those before stay."""
    for steps in (4, 8):
        given = sections(SAMPLES, {}) | {"checkpoint": {"every_steps": 4}}
        given["phases"][0]["steps"] = steps
        train(tiny_data.run_config(tmp_path, **given))
    assert [one["step"] for one in read_jsonl(tmp_path / "samples.jsonl")] == [4] * 6 + [8] * 6


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ({"max_new_tokens": 256}, "need 261 positions, the model has 256"),
        ({"cache_bytes": 1000}, "observe.samples.cache_bytes: the longest prompt and its answer need"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_at_the_start(
    tiny_data: TinyData, tmp_path: Path, samples: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(tiny_data.run_config(tmp_path, **sections(SAMPLES | samples, {})))
    assert not (tmp_path / "checkpoints").exists()
