"""Checkpoints that DeepSpeed writes are read, and those that we write it loads: compared with what its engine says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from glmforge.checkpoint import StoredTensors, read_meta, verify_checkpoint
from glmforge.checkpoint.convert.deepspeed import deepspeed_to_hf, export_deepspeed, import_deepspeed
from glmforge.checkpoint.convert.deepspeed_read import DeepSpeedCheckpoint
from glmforge.config import RunConfig
from glmforge.errors import CheckpointError
from helpers.distributed import free_port
from helpers.models import tiny_config, transformers_model
from helpers.tiny_data import TinyData

MODEL = tiny_config(vocab_size=512, num_nextn_predict_layers=0)
LR = 1e-3
OURS = {"fp32": "model", "buffer": "model", "exp_avg": "optim.exp_avg", "exp_avg_sq": "optim.exp_avg_sq"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="DeepSpeed's CPU operators")
pytest.importorskip("deepspeed")


class Engine(NamedTuple):
    """What the engine said, and what it saved."""

    saved: Path
    state: Mapping[str, Tensor]
    position: dict[str, int]
    losses_after: list[float]


def engine_json(
    stage: int, *, load: bool = False, optimizer: Mapping[str, object] = {}, **zero: object
) -> dict[str, Any]:
    params = {"lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero},
        "optimizer": {"type": "AdamW", "params": params | optimizer},
        "checkpoint": {"load_universal": load},
    }


def run(directory: Path, num_ranks: int = 3, **job: object) -> Engine:
    """Train with DeepSpeed in processes of its own; three of them, so that parameters and groups are padded."""
    directory.mkdir(parents=True, exist_ok=True)
    job = {"groups": 2, "steps": 0, "steps_after": 2, "dump": str(directory / "dump.safetensors")} | job
    (directory / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    command += ["--master-port", str(free_port()), str(Path(__file__).with_name("zero_training.py"))]
    ended = subprocess.run(
        [*command, str(directory / "job.json")],
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
    with safe_open(directory / "dump.safetensors", "pt") as file:
        said = {key: json.loads(value) for key, value in file.metadata().items()}
    return Engine(
        directory / "saved", load_file(directory / "dump.safetensors"), said["position"], said["losses_after"]
    )


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("glm")
    transformers_model(MODEL).config.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def trained(glm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Engine]:
    """Three steps under a ZeRO stage on three ranks, saved, and two more."""
    root, made = tmp_path_factory.mktemp("trained"), dict[int, Engine]()

    def train(stage: int) -> Engine:
        if stage not in made:
            directory = root / f"stage-{stage}"
            job = {"config": str(glm), "engine": engine_json(stage), "steps": 3, "save": str(directory / "saved")}
            made[stage] = run(directory, **job)
        return made[stage]

    return train


def run_config(tiny_data: TinyData, directory: Path) -> RunConfig:
    optim = {"matrix_optimizer": "adamw", "lr": LR, "schedule": "constant", "warmup_steps": 0}
    return tiny_data.run_config(directory, model=MODEL.model_dump(), optim=optim)


def assert_reads(source: Path, engine: Engine) -> None:
    found = DeepSpeedCheckpoint(source)
    assert (found.steps, found.samples) == (engine.position["steps"], engine.position["samples"]) == (3, 9)
    assert {f"fp32.{name}" for name in found.shapes} == {name for name in engine.state if name.startswith("fp32.")}
    for key, expected in engine.state.items():
        state, _, name = key.partition(".")
        read = found.buffers[name].read().float() if state == "buffer" else found.read(state, name)
        assert torch.equal(read, expected), key


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shards_of_every_stage_are_what_the_engine_says(stage: int, trained: Callable[[int], Engine]) -> None:
    assert_reads(trained(stage).saved, trained(stage))


@pytest.mark.parametrize("stage", [2, 3])
def test_universal_checkpoints_are_what_the_engine_says(
    stage: int, trained: Callable[[int], Engine], tmp_path: Path
) -> None:
    source, out = trained(stage).saved / "global_step3", tmp_path / "universal"
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    subprocess.run(
        [*command, "--input_folder", str(source), "--output_folder", str(out)], check=True, capture_output=True
    )
    assert_reads(out, trained(stage))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_training_goes_there_and_back_and_on(
    stage: int, trained: Callable[[int], Engine], glm: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    """DeepSpeed's to ours, bit by bit, and from there to an engine which makes the same two steps."""
    engine = trained(stage)
    path = import_deepspeed(engine.saved, run_config(tiny_data, tmp_path / "run"), tmp_path / "run", lambda a, b: None)
    assert verify_checkpoint(path) == []
    assert (read_meta(path).step, read_meta(path).samples_consumed) == (3, {"main": 9})
    stored = StoredTensors(path)
    for key, expected in engine.state.items():
        state, _, name = key.partition(".")
        assert torch.equal(stored[f"{OURS[state]}.{name}"], expected), key
    assert all(stored[name] == 3 for name in stored if name.startswith("optim.step."))

    export_deepspeed(tmp_path / "run", tmp_path / "universal", lambda a, b: None)
    job = {"config": str(glm), "engine": engine_json(stage, load=True), "load": str(tmp_path / "universal")}
    again = run(tmp_path / "again", **job)
    assert again.position == engine.position
    assert all(torch.equal(again.state[name], expected) for name, expected in engine.state.items())
    # The same arithmetic, so not to rounding. Another stage adds up bf16 gradients otherwise: 2e-4 in the second step.
    assert again.losses_after == engine.losses_after


def test_a_universal_checkpoint_loads_on_another_number_of_ranks_and_into_other_optimizers(
    trained: Callable[[int], Engine], glm: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    """torch's AdamW counts its steps in tensors and DeepSpeed's CPUAdam, for offloading, in numbers."""
    engine = trained(2)
    import_deepspeed(engine.saved, run_config(tiny_data, tmp_path / "run"), tmp_path / "run", lambda a, b: None)
    export_deepspeed(tmp_path / "run", tmp_path / "universal", lambda a, b: None)
    job = {"config": str(glm), "load": str(tmp_path / "universal")}
    torch_adam = run(tmp_path / "torch", engine=engine_json(2, load=True, optimizer={"torch_adam": True}), **job)
    offload = engine_json(3, load=True, offload_optimizer={"device": "cpu"})
    cpu_adam = run(tmp_path / "cpu", 1, engine=offload, **job)
    for again in (torch_adam, cpu_adam):
        assert all(torch.equal(again.state[name], expected) for name, expected in engine.state.items())
    # Another implementation of the same optimizer: rounding in fp32, weights then rounded to bf16 (2 ** -8).
    assert torch_adam.losses_after == pytest.approx(engine.losses_after, rel=1e-3)


def test_hugging_face_loads_what_was_trained(trained: Callable[[int], Engine], glm: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    llama = tmp_path / "llama"
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaConfig(vocab_size=512, num_key_value_heads=2, tie_word_embeddings=True, **sizes).save_pretrained(llama)
    config = json.loads((llama / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (llama / "config.json").write_text(json.dumps(config))
    job = {"config": str(llama), "engine": engine_json(3), "steps": 1, "steps_after": 0}
    of_llama = run(tmp_path / "trained", save=str(tmp_path / "trained/saved"), **job)
    for engine, model in ((trained(3), glm), (of_llama, llama)):
        out = tmp_path / f"{model.name}-hf"
        deepspeed_to_hf(engine.saved, model, out, torch.float32)
        loaded, said = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, trust_remote_code=False)
        assert not any(said.values()), said
        for key, expected in engine.state.items():
            state, _, name = key.partition(".")
            if state in ("fp32", "buffer"):
                assert torch.equal(loaded.state_dict()[name], expected), key


def remove_shard(directory: Path) -> None:
    next(directory.glob("*zero_pp_rank_2_*optim_states.pt")).unlink()


def add_shard(directory: Path) -> None:
    first = next(directory.glob("*zero_pp_rank_0_*optim_states.pt"))
    shutil.copy(first, first.with_name(first.name.replace("pp_rank_0", "pp_rank_5")))


def repeat_shard(directory: Path) -> None:
    first = next(directory.glob("*zero_pp_rank_0_*optim_states.pt"))
    shutil.copy(first, first.with_name(first.name.replace("pp_rank_0", "pp_rank_1")))


def truncate_shard(directory: Path) -> None:
    first = next(directory.glob("*zero_pp_rank_0_*optim_states.pt"))
    os.truncate(first, first.stat().st_size - 100)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_shard, "it is of .*3.* ranks, but there are files of 2"),
        (add_shard, "optim_states.pt of rank 3, 4 is missing"),
        (repeat_shard, "elements of fp32 of .*not of one save"),
        (truncate_shard, "not a tensor archive"),
    ],
)
def test_shards_that_are_not_one_save_are_refused(
    damage: Callable[[Path], None],
    words: str,
    trained: Callable[[int], Engine],
    tiny_data: TinyData,
    tmp_path: Path,
) -> None:
    source = shutil.copytree(trained(2).saved / "global_step3", tmp_path / "copy")
    damage(source)
    with pytest.raises(CheckpointError, match=words) as caught:
        import_deepspeed(source, run_config(tiny_data, tmp_path / "run"), tmp_path / "run", lambda a, b: None)
    assert len(str(caught.value).splitlines()) == 1
