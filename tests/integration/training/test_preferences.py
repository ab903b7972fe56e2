"""Stages `reward` and `dpo` as a user starts them: files of pairs, a run to start from."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from glmforge.backend.native import NativeBackend
from glmforge.checkpoint.initial_weights import load_initial_weights
from glmforge.checkpoint.pretrained import open_checkpoint
from glmforge.config.chat import ChatConfig
from glmforge.config.preferences import RewardConfig
from glmforge.config.schema import RunConfig
from glmforge.data.preferences.pairs import PairCounts, encode_records, pair_arrays
from glmforge.data.preferences.stream import PairStream
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import export_run
from glmforge.errors import CheckpointError, DataError
from glmforge.evaluate.preferences import answer_values
from glmforge.objectives.reward import RewardObjective
from glmforge.observe.record_files import read_jsonl
from glmforge.parallel.world import World
from glmforge.recipes import reference
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.distributed import run_ranks
from helpers.preferences import SCORE_ONLY, write_preferences
from helpers.stopping import StopAfter
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 8}]))
    return directory


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pairs")
    write_preferences(directory / "held.jsonl", 10, first=100)
    return write_preferences(directory / "pairs.jsonl", 40)


def config_of(tiny_data: TinyData, base: Path, pairs: Path, stage: str, output_dir: Path, **given: Any) -> RunConfig:
    data = {
        "tokenizer": str(tiny_data.tokenizer),
        "sources": [{"name": "pairs", "path": str(pairs)}],
        "held_out": [{"name": "held", "path": str(pairs.with_name("held.jsonl"))}],
    }
    sections = {
        "stage": stage,
        "init_from": str(base),
        "data": data,
        "phases": [{"name": "main", "steps": 8, "seq_len": 96, "batch_size": 4}],
        "observe": {"progress": False, "tensorboard": False, "evaluate_every": 4},
    }
    plain = tiny_data.run_config(output_dir)
    if stage == "reward":
        sections["model"] = plain.model.model_dump() | SCORE_ONLY
    return tiny_data.run_config(output_dir, **(sections | given))


def steps_of(config: RunConfig) -> list[dict[str, Any]]:
    return read_jsonl(config.output_dir / "metrics.jsonl")


def losses_of(config: RunConfig) -> list[float]:
    return [record["pair_loss"] for record in steps_of(config)]


def evaluations_of(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The last one, by source."""
    return {record["source"]: record for record in read_jsonl(config.output_dir / "evaluation.jsonl")}


@pytest.mark.parametrize("stage", ["reward", "dpo"])
def test_held_out_pairs_are_told_apart_and_a_resumed_run_equals_one_that_never_stopped(
    stage: str, tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path
) -> None:
    whole = config_of(tiny_data, base, pairs, stage, tmp_path / "whole")
    train(whole)
    held = evaluations_of(whole)
    assert set(held) == {"held", "held/even", "held/odd"}
    assert (held["held"]["num_pairs"], held["held/odd"]["num_pairs"]) == (10, 5)
    assert held["held"]["held_out_pair_accuracy"] == 1.0
    assert held["held"]["held_out_pair_accuracy_low"] < 0.8 < held["held"]["held_out_pair_accuracy_high"]
    assert losses_of(whole)[-1] < losses_of(whole)[0] - 0.1
    assert steps_of(whole)[-1]["pair_accuracy"] == {"pairs": 1.0}
    page = write_report(whole.output_dir).read_text("utf-8")
    assert all(title in page for title in ("Loss over pairs", "Accuracy on held-out pairs", "Scores", "Held-out held"))

    stopped = config_of(tiny_data, base, pairs, stage, tmp_path / "stopped")
    train(stopped, [StopAfter(3)])
    train(stopped)
    assert losses_of(stopped) == losses_of(whole)
    ours, theirs = (open_checkpoint(config.output_dir).weights for config in (stopped, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_at_the_first_step_policy_and_reference_are_the_same_to_the_last_bit(
    lora: dict[str, Any] | None, tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path
) -> None:
    config = config_of(tiny_data, base, pairs, "dpo", tmp_path / "run", **({"lora": lora} if lora else {}))
    train(config)
    first, *_, last = steps_of(config)
    assert first["pair_loss"] == torch.tensor(2.0).log().item()
    assert (first["score_chosen"], first["score_rejected"]) == (0.0, 0.0)
    assert ("loss_mtp" in first) == (lora is None)
    assert last["score_chosen"] > last["score_rejected"]
    kept = np.load(config.output_dir / "reference.npz")
    assert kept["train"].shape == (40, 2)
    assert (kept["held_out"] < -10).all()


def test_a_lost_reference_is_computed_again_only_with_adapters(
    tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lora in (("whole", None), ("adapters", {"rank": 4})):
        config = config_of(tiny_data, base, pairs, "dpo", tmp_path / name, **({"lora": lora} if lora else {}))
        train(config, [StopAfter(3)])
        before = np.load(config.output_dir / "reference.npz")["train"]
        file = config.output_dir / "reference.npz"
        file.write_bytes(file.read_bytes()[:-40])
        if lora is None:
            with pytest.raises(CheckpointError, match=r"reference.npz: missing, or of other pairs, weights or preci"):
                train(config)
        else:
            train(config)
            assert np.array_equal(np.load(file)["train"], before)


def test_a_reference_of_other_weights_is_not_taken(
    tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_data, base, pairs, "dpo", tmp_path / "run")
    train(config, [StopAfter(3)])
    passes = []
    real = reference.answer_values
    monkeypatch.setattr(reference, "answer_values", lambda *args, **kw: passes.append(1) or real(*args, **kw))
    train(config)
    assert not passes
    other = config.model_copy(update={"output_dir": tmp_path / "other", "seed": 1})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/reference.npz").write_bytes((config.output_dir / "reference.npz").read_bytes())
    train(other)
    assert len(passes) == 2
    assert steps_of(other)[0]["pair_loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize("stage", ["reward", "dpo"])
def test_another_number_of_ranks_goes_on(
    stage: str, tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path
) -> None:
    whole = config_of(tiny_data, base, pairs, stage, tmp_path / "whole")
    train(whole)
    stopped = config_of(tiny_data, base, pairs, stage, tmp_path / "stopped")
    train(stopped, [StopAfter(3)])
    parallel = config_of(tiny_data, base, pairs, stage, tmp_path / "stopped", parallel={"dp_shard": 2, "ep": 2})
    run_ranks(train, 2, parallel, init_group=False)
    # Sums of gradients over ranks in another order; AdamW and Muon enlarge what is small.
    assert losses_of(stopped) == pytest.approx(losses_of(whole), abs=1e-4)
    held = [evaluations_of(config)["held"]["held_out_pair_loss"] for config in (stopped, whole)]
    assert held[0] == pytest.approx(held[1], abs=1e-4)


def test_other_pairs_do_not_go_on(tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path) -> None:
    config = config_of(tiny_data, base, pairs, "reward", tmp_path / "run")
    train(config, [StopAfter(3)])
    others = write_preferences(tmp_path / "others.jsonl", 40, first=1)
    write_preferences(tmp_path / "held.jsonl", 10, first=100)
    with pytest.raises(CheckpointError, match=r"preferences.pairs changed from .*consumed data must not"):
        train(config_of(tiny_data, base, others, "reward", tmp_path / "run"))


def test_pairs_that_are_all_too_long_are_refused(tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path) -> None:
    phase = {"name": "main", "steps": 1, "seq_len": 8, "batch_size": 4}
    with pytest.raises(DataError, match=r"no pair to train on \(40 records, 40 too long and dropped, .*raise seq_len"):
        train(config_of(tiny_data, base, pairs, "dpo", tmp_path / "run", phases=[phase]))


def test_wrong_records_are_counted_and_refused(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    write_preferences(tmp_path / "held.jsonl", 4)
    file = write_preferences(tmp_path / "pairs.jsonl", 8)
    with file.open("a") as opened:
        opened.write(json.dumps({"prompt": "a", "chosen": "b"}) + "\n")
    with pytest.raises(DataError, match=r"pairs.jsonl:9: not a preference pair.*\(invalid records: 1, allowed: 0"):
        train(config_of(tiny_data, base, file, "reward", tmp_path / "run"))


def test_an_exported_reward_model_scores_in_transformers_as_here(
    tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoePreTrainedModel

    class Glm4MoeForSequenceClassification(GenericForSequenceClassification, Glm4MoePreTrainedModel):
        pass

    config = config_of(tiny_data, base, pairs, "reward", tmp_path / "run")
    train(config)
    export_run(config.output_dir, tmp_path / "hf", dtype="fp32")
    theirs = Glm4MoeForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer, counts = Tokenizer.load(config.data.tokenizer), PairCounts()
    encoded = [pair for _, pair in encode_records([pairs], tokenizer, ChatConfig(), counts)]
    with torch.no_grad():
        expected = [
            [theirs(torch.from_numpy(side.ids.astype(np.int64))[None]).logits.item() for side in (p.chosen, p.rejected)]
            for p in encoded
        ]

    world = World.single("cpu")
    stream = PairStream([pair_arrays(encoded)], 96, seed=0)
    backend = NativeBackend.build(config, world)
    load_initial_weights(config.output_dir, backend.weights(), config.model, "")
    objective = RewardObjective(config.phases[0], ["pairs"], RewardConfig())
    with backend.evaluating() as model:
        scores = answer_values(model, stream, objective, 8)
    # The same fp32 arithmetic in packed rows and in single ones; the scores spread over several units.
    assert torch.tensor(expected).std() > 0.2
    torch.testing.assert_close(scores.float(), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_adapters_and_the_score_head_are_trained_and_nothing_else(
    tiny_data: TinyData, base: Path, pairs: Path, tmp_path: Path
) -> None:
    config = config_of(tiny_data, base, pairs, "reward", tmp_path / "run", lora={"rank": 4}, optim={"lr": 1e-2})
    train(config, [StopAfter(3)])
    train(config)
    assert losses_of(config)[-1] < losses_of(config)[0] - 0.1
    assert evaluations_of(config)["held"]["held_out_pair_accuracy"] == 1.0
    trained = json.loads((config.output_dir / "adapters.json").read_text())["trained"]
    assert [row["name"] for row in trained if "lora" not in row["name"]] == ["score.weight"]
    export_run(config.output_dir, tmp_path / "hf", dtype="fp32")
    exported = load_file(next((tmp_path / "hf").glob("*.safetensors")))
    first = open_checkpoint(base).weights["model.layers.0.self_attn.q_proj.weight"]
    assert exported["score.weight"].shape[0] == 1
    assert not torch.equal(exported["model.layers.0.self_attn.q_proj.weight"], first)  # merged
