"""A run with adapters from start to end: what is trained, stored, resumed, merged and written for PEFT."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.checkpoint.adapter.from_peft import import_peft
from glmforge.checkpoint.adapter.merge import merge
from glmforge.checkpoint.adapter.to_peft import export_peft
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.config.adapters import adapted_maps, adapter_rows
from glmforge.config.layout import resolve_layout
from glmforge.deploy.export import export_run
from glmforge.dryrun.run import dry_run
from glmforge.errors import CheckpointError
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import stage_of
from glmforge.recipes import train as recipe
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.lora_runs import LORA, PHASE, lora_run, losses
from helpers.stopping import StopAfter
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory in bf16, as a base model comes."""
    directory = tmp_path_factory.mktemp("base")
    train(tiny_data.run_config(directory / "run", phases=[PHASE]))
    export_run(directory / "run", directory / "hf", dtype="bf16")
    return directory / "hf"


@pytest.fixture(scope="module")
def adapted(tiny_data: TinyData, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("adapted") / "run"
    train(lora_run(tiny_data, run, base))
    return run


def test_adapters_are_trained_and_nothing_else(tiny_data: TinyData, base: Path, adapted: Path) -> None:
    config = lora_run(tiny_data, adapted, base)
    assert config.lora is not None
    rows = {row.name: row for row in adapter_rows(config.model, config.lora)}
    stored = StoredTensors(find_checkpoint(adapted))
    assert {name for name in stored if name.startswith("model.")} == {f"model.{name}" for name in rows}
    for name in rows:
        assert stored[f"model.{name}"].dtype == torch.float32
        assert stored[f"model.{name}"].any(), name
    began, ended = (load_pretrained(source, dtype=torch.float32).state_dict() for source in (base, adapted))
    changed = {name for name, tensor in began.items() if not torch.equal(tensor, ended[name])}
    assert changed == {one.row.name for one in adapted_maps(config.model, config.lora)}
    states = {name.removeprefix("optim.") for name in stored if name.startswith("optim.")}
    assert {name.partition(".")[2] for name in states} == rows.keys()
    record = json.loads((adapted / "adapters.json").read_text())
    assert {row["name"]: row["count"] for row in record["trained"]} == {row.name: row.size for row in rows.values()}


@pytest.mark.parametrize("lora", [{}, {"targets": ["self_attn", "shared_experts"], "dora": True}], ids=["", "dora"])
def test_a_run_goes_on_to_the_bit(tiny_data: TinyData, base: Path, tmp_path: Path, lora: dict[str, Any]) -> None:
    whole, parts = (lora_run(tiny_data, tmp_path / name, base, lora=LORA | lora) for name in ("whole", "parts"))
    train(whole)
    train(parts, hooks=[StopAfter(4)])
    train(parts)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 6


def test_lite_loses_the_moments_and_nothing_else(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    whole, parts = (
        lora_run(tiny_data, tmp_path / mode, base, checkpoint={"every_steps": 3, "background": False, "mode": mode})
        for mode in ("full", "lite")
    )
    train(whole)
    train(parts, hooks=[StopAfter(3)])  # heard of in step 4
    stopped = StoredTensors(find_checkpoint(tmp_path / "lite"))
    assert all(name.startswith("model.") for name in stopped)
    train(parts)
    assert losses(tmp_path / "lite")[:5] == losses(tmp_path / "full")[:5]  # the fifth is of the weights of step 4
    assert losses(tmp_path / "lite")[5] != losses(tmp_path / "full")[5]
    assert len(losses(tmp_path / "lite")) == 6


def test_a_run_goes_on_from_the_nodes_disk(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    """And tells another base from the one that it was trained on."""
    settings = {"every_steps": 2, "keep_last": 2, "local_dir": str(tmp_path / "disk")}
    whole, parts = (
        lora_run(tiny_data, tmp_path / name, base, name=name, checkpoint=settings) for name in ("whole", "parts")
    )
    train(whole)
    train(parts, hooks=[StopAfter(4)])
    assert not list((tmp_path / "parts/checkpoints").glob("step-*"))
    train(parts)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    other = tmp_path / "other"
    shutil.copytree(base, other)
    (file,) = other.glob("*.safetensors")
    weights = load_file(file)
    weights["model.norm.weight"] += 0.5
    save_file(weights, file)
    with pytest.raises(
        CheckpointError, match=r"was trained on the weights of .*/hf .*/other holds other or changed"
    ) as error:
        train(lora_run(tiny_data, tmp_path / "parts", other, name="parts", checkpoint=settings))
    assert "\n" not in str(error.value)


def test_a_run_goes_on_on_another_layout(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    sections = {"precision": {"compute": "fp32"}}
    whole = lora_run(tiny_data, tmp_path / "whole", base, **sections)
    train(whole)
    parts = lora_run(tiny_data, tmp_path / "parts", base, **sections)
    train(parts, hooks=[StopAfter(3)])
    parallel = {"dp_shard": 2, "ep": 2}
    run_ranks(train, 2, lora_run(tiny_data, tmp_path / "parts", base, parallel=parallel, **sections), init_group=False)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_merged_and_apart_say_the_same(base: Path, adapted: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    export_peft(find_checkpoint(adapted), tmp_path / "adapter")
    assert (tmp_path / "adapter/tokenizer.json").is_file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    merged = load_pretrained(adapted)
    merge(find_checkpoint(adapted), tmp_path / "merged")
    in_files = load_pretrained(tmp_path / "merged", dtype=torch.bfloat16).state_dict()
    assert all(
        torch.equal(tensor.bfloat16(), in_files[name].bfloat16()) for name, tensor in merged.state_dict().items()
    )
    ids = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
    assert (load_pretrained(base, dtype=torch.float32).logits(ids) - expected).abs().max() > 1e-2
    torch.testing.assert_close(merged.logits(ids), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("source", ["PEFT", "converted", "run"])
def test_a_run_begins_with_an_adapter(
    source: str, tiny_data: TinyData, base: Path, adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapted
    if source != "run":
        adapter = tmp_path / "adapter"
        export_peft(find_checkpoint(adapted), adapter)
        config = json.loads((adapter / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(base)
    if source == "converted":
        adapter = import_peft(adapter, tmp_path / "converted", base=base)
    config = lora_run(tiny_data, tmp_path / "run", base, lora=LORA | {"init_from": str(adapter)})
    train(config.model_copy(update={"optim": config.optim.model_copy(update={"lr": 1e-30, "min_lr": 0.0})}))
    began = StoredTensors(find_checkpoint(tmp_path / "run"), "model.")
    ended = StoredTensors(find_checkpoint(adapted), "model.")
    assert set(began) == set(ended)
    assert all(torch.allclose(began[name], ended[name], rtol=0, atol=1e-20) for name in ended)
    monkeypatch.setattr(recipe, "load_initial_weights", _too_late)
    for settings, reason in (
        ({"rank": 2}, r"has rank 8( and alpha 16)?, the run 2"),
        ({"targets": ["q_proj"]}, r"trains other parameters: set lora.targets to|rank_pattern is|no such"),
        ({"init_from": str(tmp_path / "none")}, "no such directory"),
    ):
        other = lora_run(tiny_data, tmp_path / "other", base, lora=LORA | {"init_from": str(adapter)} | settings)
        with pytest.raises(CheckpointError, match=f"^lora.init_from: .*({reason})") as refused:
            train(other)
        assert "\n" not in str(refused.value)


def _too_late(*args: Any, **kwargs: Any) -> Path:
    raise AssertionError("the base is loaded before lora.init_from is refused")


def test_adapters_of_another_base_are_refused_before_this_one_is_loaded(
    tiny_data: TinyData, base: Path, adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(base, tmp_path / "other")
    shard = next(other.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x55")
    monkeypatch.setattr(recipe, "load_initial_weights", _too_late)
    with pytest.raises(
        CheckpointError, match=r"^lora.init_from: .*was trained on the weights of .*hf .*holds other or changed"
    ):
        train(lora_run(tiny_data, tmp_path / "run", other, lora=LORA | {"init_from": str(adapted)}))


def test_adapters_are_not_lost_on_the_way(tiny_data: TinyData, base: Path, adapted: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has adapters"):
        train(lora_run(tiny_data, tmp_path / "next", adapted))
    with pytest.raises(CheckpointError, match=r"lora\.rank was 8 and is 2 \(the adapters were made so\)"):
        train(lora_run(tiny_data, adapted, base, lora=LORA | {"rank": 2}))
    with pytest.raises(CheckpointError, match=r"was bf16 and is fp32 .*adapters were trained with its rounding"):
        train(lora_run(tiny_data, adapted, base, precision={"compute": "bf16", "frozen": "fp32"}))
    with pytest.raises(CheckpointError, match="has no adapters"):
        export_peft(find_checkpoint(base.parent / "run"), tmp_path / "none")


def test_plan_and_dry_run_know_what_is_trained(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    config = lora_run(tiny_data, tmp_path / "run", base)
    planned = estimate_memory(config, resolve_layout(config, 1), stage_of(config)).fullest.at_peak
    (found,) = dry_run(config, 1).classes
    for purpose in (Purpose.WEIGHTS, Purpose.GRADIENTS, Purpose.OPTIMIZER):
        assert planned[purpose] == found.findings.held[purpose], purpose
