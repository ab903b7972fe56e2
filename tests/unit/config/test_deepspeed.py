"""DeepSpeed's JSON beside a run's file: what is filled in, what is handed on, and what is refused."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from glmforge.config import RunConfig, dump_config, load_config
from glmforge.config.deepspeed import check_deepspeed, flags_markdown, resolve
from glmforge.config.deepspeed_keys import COMPUTED, INSTEAD, OURS, REFUSED
from glmforge.config.layout import resolve_layout
from glmforge.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLE: dict[str, Any] = json.loads((ROOT / "examples/deepspeed/zero3.json").read_text())
RUN = """
name: run
backend: deepspeed
deepspeed: {file: FILE}
model: tiny
data: {tokenizer: data/tokenizer, sources: [{name: train, path: data/train}]}
phases: [{name: pretrain, steps: 400, seq_len: 256, batch_size: 16}]
"""
HELD_OUT = "data.held_out=[{name: held_out, path: data/held_out}]"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., RunConfig]:
    """A run with the example's JSON, changed at dotted paths (None: removed), and overrides of the run's own keys."""

    def load(changes: dict[str, Any] | None = None, *overrides: str) -> RunConfig:
        content = copy.deepcopy(EXAMPLE)
        for path, value in (changes or {}).items():
            *sections, key = path.split(".")
            inner = content
            for name in sections:
                inner = inner.setdefault(name, {})
            inner[key] = value
        file = tmp_path / "ds.json"
        file.write_text(json.dumps(content))
        return load_config(RUN.replace("FILE", str(file)), overrides)

    return load


def test_the_example_fills_in_what_the_run_leaves_out(load: Callable[..., RunConfig]) -> None:
    config = load()
    optim = config.optim
    assert (optim.matrix_optimizer, optim.lr, optim.min_lr, optim.weight_decay) == ("adamw", 3e-4, 3e-5, 0.1)
    assert (optim.schedule, optim.schedule_unit, optim.warmup_steps) == ("cosine", "steps", 10)
    assert load_config(dump_config(config)) == config  # what is stored needs no file
    assert config.deepspeed is not None
    stored = config.deepspeed.settings.model_dump(mode="json")
    assert stored["scheduler"] == EXAMPLE["scheduler"]
    assert load({"gradient_clipping": 0}).optim.grad_clip is None


def test_the_engine_is_given_no_auto_and_nothing_that_the_trainer_does(load: Callable[..., RunConfig]) -> None:
    config = load()
    assert config.deepspeed is not None
    engine = resolve(config.deepspeed.settings, config, 2).engine
    assert '"auto"' not in json.dumps(engine)
    assert not {"scheduler", "train_batch_size", "fp16", "tensorboard"} & engine.keys()
    assert engine["gradient_clipping"] == 0
    assert engine["optimizer"]["params"] == {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    width = config.model.hidden_size
    zero = engine["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["sub_group_size"]) == (width**2, 10**9)
    assert zero["offload_optimizer"] == EXAMPLE["zero_optimization"]["offload_optimizer"]
    assert engine["aio"] == EXAMPLE["aio"]


def test_gradients_are_summed_in_fp32(load: Callable[..., RunConfig]) -> None:
    for stage, accumulated in ((1, None), (2, {"grad_accum_dtype": "fp32"})):
        config = load({"zero_optimization": {"stage": stage}, "communication_data_type": None})
        assert config.deepspeed is not None
        engine = resolve(config.deepspeed.settings, config, 2).engine
        assert engine["communication_data_type"] == "fp32"
        assert engine.get("data_types") == accumulated  # in stage 1 it would select an optimizer that is not ZeRO's


def test_every_key_that_is_not_handed_on_is_noted(load: Callable[..., RunConfig]) -> None:
    config = load(None, "parallel.micro_batch_size=4")
    assert config.deepspeed is not None
    resolved = resolve(config.deepspeed.settings, config, 2)
    kept = {*resolved.engine, "prescale_gradients"}  # which is off
    for key in EXAMPLE.keys() - kept:
        assert any(line.startswith(key) for line in resolved.notes), key
    assert "gradient_accumulation_steps: 2 by phases.*.batch_size / ranks / parallel.micro_batch_size" in resolved.notes
    whole = resolve(config.deepspeed.settings, load(), 2)
    assert "train_micro_batch_size_per_gpu: 8 by parallel.micro_batch_size" in whole.notes
    assert f"zero_optimization.stage3_prefetch_bucket_size: auto is {int(0.9 * 64 * 64)}" in resolved.notes


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": "auto"}}, ("constant", 2.5e-5)),
        ({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 400}}, ("linear", 0.0)),
        ({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5}}, ("cosine", 3e-8)),
    ],
)
def test_schedulers(load: Callable[..., RunConfig], scheduler: Any, expected: tuple[str, float]) -> None:
    optim = load({"scheduler": scheduler}).optim
    assert (optim.schedule, optim.min_lr) == expected


def test_settings_lie_over_the_file(load: Callable[..., RunConfig]) -> None:
    config = load(None, "deepspeed.settings.zero_optimization.offload_param=null")
    assert config.deepspeed is not None
    zero = config.deepspeed.settings.model_dump()["zero_optimization"]
    assert "offload_param" not in zero
    assert zero["offload_optimizer"]["device"] == "cpu"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"gradient_clip": 1.0}, "gradient_clip: unknown key; did you mean 'gradient_clipping'?"),
    "unknown key of ZeRO": (
        {"zero_optimization.stag": 3},
        "zero_optimization.stag: unknown key; did you mean 'stage'?",
    ),
    "unknown key of aio": ({"aio.queue_dept": 8}, "aio.queue_dept: unknown key; did you mean 'queue_depth'?"),
    "no stage": ({"zero_optimization": {"overlap_comm": True}}, "zero_optimization.stage: 0, the default, shards"),
    "stage 4": ({"zero_optimization.stage": 4}, "zero_optimization.stage: should be 0, 1, 2 or 3, not 4"),
    "parameters in stage 2": ({"zero_optimization.stage": 2}, "stage: 2, but offload_param needs stage 3"),
    "NVMe without a path": (
        {"zero_optimization.offload_optimizer.device": "nvme"},
        "offload_optimizer.nvme_path: missing, but device is 'nvme'",
    ),
    "another device": ({"zero_optimization.offload_param.device": "disk"}, "should be 'none', 'cpu' or 'nvme'"),
    "negative": ({"zero_optimization.sub_group_size": -1}, "should be greater than or equal to 0"),
    "a word for a number": ({"steps_per_print": "often"}, "steps_per_print: should be a valid integer, not 'often'"),
    "fp16": ({"fp16.enabled": True}, "fp16.enabled: fp16 needs loss scaling"),
    "bf16 against the run": ({"bf16.enabled": False}, "precision.compute: bf16, but deepspeed.settings.bf16.enabled"),
    "bf16 masters": ({"bf16.bf16_master_weights_and_grads": True}, "master weights are always fp32"),
    "learning rate": ({"optimizer.params.lr": 1e-3}, "optim.lr: 0.0003, but deepspeed.settings.optimizer.params.lr"),
    "Muon": ({"optimizer.type": "Muon"}, "optimizer.type: 'Muon' is not supported with ZeRO; DeepSpeed's Muon has"),
    "L2": ({"optimizer.params.adam_w_mode": False}, "optimizer.params.adam_w_mode: should be True, not False"),
    "scheduler": ({"scheduler.type": "OneCycle"}, "should be 'WarmupLR', 'WarmupDecayLR' or 'WarmupCosineLR'"),
    "warm-up": ({"scheduler.params.warmup_type": "log"}, "warmup_type: should be 'linear', not 'log'"),
    "steps": ({"scheduler.params.total_num_steps": 300}, "phases: 400 steps, but deepspeed's scheduler has"),
    "batch": ({"train_batch_size": 32}, "train_batch_size: 32, but phases.0.batch_size = 16"),
    "clipping": ({"gradient_clipping": 0.5}, "optim.grad_clip: 1.0, but deepspeed.settings.gradient_clipping"),
    "sums of gradients": ({"gradient_allreduce_op": "sum"}, "gradient_allreduce_op: should be 'mean'"),
    "ZenFlow": (
        {"zero_optimization.zenflow": {"topk_ratio": 0.1}},
        "zero_optimization.zenflow: ZenFlow itself decides",
    ),
    "Domino": ({"domino": {"enabled": True}}, "domino: not a setting of DeepSpeed"),
    "tensor parallelism": ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel: use backend: native with"),
    "old offload": ({"zero_optimization.cpu_offload": True}, "outdated; use offload_optimizer and"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_variants_are_refused_in_one_line(
    load: Callable[..., RunConfig], changes: dict[str, Any], message: str
) -> None:
    own = ("optim.lr=3e-4", "optim.grad_clip=1.0", "precision.compute=bf16")  # as the example has it
    load(None, *own)
    with pytest.raises(ConfigError) as caught:
        resolve_layout(load(changes, *own), 1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "ds.json" in str(caught.value) or "make them equal" in str(caught.value) or "phases" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parallel.tp=2", "parallel.tp: 2 needs backend: native; ZeRO shards over data ranks alone"),
        ("parallel.cpu_offload=true", "see zero_optimization.offload_optimizer"),
        ("optim.matrix_optimizer=muon", "optim.matrix_optimizer: 'muon' needs backend: native"),
        ("optim.rules=[{match: lm_head.weight, optimizer: muon}]", "optim.rules.0.optimizer: 'muon' needs"),
        ("backend=native", "deepspeed: needs backend: deepspeed"),
        ("deepspeed=null", "deepspeed: missing; give file"),
        ("observe.samples={prompts: [a]}", "reads whole weights, which stage 3 cuts; with deepspeed set it to null"),
        ("deepspeed.file=3", "deepspeed.file: must be a path, not 3"),
        ("deepspeed.file=absent.json", "absent.json: cannot be read"),
    ],
)
def test_what_does_not_go_with_it(load: Callable[..., RunConfig], override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"optimizer": None}, "optim.matrix_optimizer=adamw", "observe.evaluate_every=100", HELD_OUT, override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rollouts(load: Callable[..., RunConfig]) -> None:
    with pytest.raises(PydanticCustomError, match="'rl' needs backend: native"):
        check_deepspeed(load().model_copy(update={"stage": "rl"}))


def test_mtp_layers_of_some_phases_only(load: Callable[..., RunConfig]) -> None:
    phases = "{name: NAME, steps: 200, seq_len: 256, batch_size: 16, mtp_loss_weight: WEIGHT}"
    both = ", ".join(phases.replace("NAME", n).replace("WEIGHT", w) for n, w in (("a", "0.3"), ("b", "0")))
    with pytest.raises(ConfigError, match="phases: ZeRO trains MTP layers in all phases or none"):
        load(None, f"phases=[{both}]")


def test_accumulation_must_fit_the_layout(load: Callable[..., RunConfig]) -> None:
    config = load({"gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 4})
    assert config.parallel.micro_batch_size == 4
    assert resolve_layout(config, 2).data_ranks == 2
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps: 2, but phases.0.batch_size = 16 on 4 ranks"):
        resolve_layout(config, 4)


def test_it_is_all_known_before_torch_is_imported(load: Callable[..., RunConfig], tmp_path: Path) -> None:
    load()
    (tmp_path / "run.yaml").write_text(RUN.replace("FILE", str(tmp_path / "ds.json")))
    code = "import sys; from glmforge.config import load_config; load_config(sys.argv[1])"
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run.yaml")], check=True)


def test_the_guide_has_the_table() -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs/guides").glob("*.md")]
    assert any(flags_markdown() in page for page in pages), "run scripts/doc_tables.py"
    tables = [OURS, COMPUTED, INSTEAD, REFUSED]
    assert len({key for table in tables for key in table}) == sum(map(len, tables))
