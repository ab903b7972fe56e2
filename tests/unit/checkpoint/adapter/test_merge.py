"""What others make of our adapters: PEFT's file and merged weights give the logits of W + scaling * B A."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.merge import merge
from glmforge.checkpoint.adapter.peft_config import WEIGHTS_FILE
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.to_peft import export_peft
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.convert.hf_import import import_hf
from glmforge.checkpoint.format.safetensors_stream import write_safetensors
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.config.adapters import table_with
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta
from helpers.models import tiny_config

CONFIG = tiny_config(num_nextn_predict_layers=0, num_hidden_layers=2)
V, E, F = CONFIG.vocab_size, CONFIG.n_routed_experts, CONFIG.moe_intermediate_size
RANK = 3
ATTENTION = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.o_proj"]
HALVES, DOWN, PACKED = ["experts.gate_proj", "experts.up_proj"], ["experts.down_proj"], ["experts.gate_up_proj"]
DENSE = ["model.layers.0.mlp.up_proj", "shared_experts.down_proj"]
EXPERTS = "model.layers.1.mlp.experts"


def lora(*targets: list[str], **settings: Any) -> LoraConfig:
    return LoraConfig(rank=RANK, alpha=9.0, targets=tuple(name for names in targets for name in names), **settings)


CASES = {
    "attention": lora(ATTENTION),
    "dora": lora(ATTENTION, dora=True),
    "packed experts": lora(PACKED, DOWN),
    "halves": lora(ATTENTION, HALVES, DOWN),
    "router, head, embedding": lora(["gate", "lm_head", "embed_tokens"]),
    "dense layers and shared experts": lora(DENSE, ATTENTION),
    "modules with a bias, and packed experts": lora(DENSE, modules_to_save=("self_attn", "experts")),
    "norms, embedding": lora(
        ATTENTION, modules_to_save=("input_layernorm", "norm", "embed_tokens", "model.layers.0.mlp.*")
    ),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "model"
    generator = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(row.shape, generator=generator) * (0.1 if len(row.shape) > 1 else 1.0)
        for name, row in parameter_table(CONFIG).items()
    }
    export_hf(state, CONFIG, directory, dtype=torch.float32, max_shard_bytes=200_000)
    return directory


def adapters(lora: LoraConfig, model: ModelConfig = CONFIG) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = [row for row in table_with(model, lora).trained().values() if row.lr_scale]
    return {f"model.{row.name}": torch.rand(row.shape, generator=generator) - 0.3 for row in rows}


def save(root: Path, lora: LoraConfig, base: Path, model: ModelConfig = CONFIG) -> Path:
    info = AdapterInfo(model, lora, "lite", base_weights(base))
    saver = AdapterSaver(root, CheckpointConfig(), adapters(lora, model), info, run_name="test")
    saver.save(7, adapters(lora, model), make_meta(7), durable=True)
    return checkpoint_path(root, 7)


@pytest.mark.parametrize("lora", CASES.values(), ids=list(CASES))
def test_peft_and_merged_weights_agree(tmp_path, base, lora):
    """PEFT sums W x and B A x, the merged model (W + B A) x: in fp32 that is 1e-5 of logits of about 10."""
    peft = pytest.importorskip("peft")
    pytest.importorskip("transformers")
    from transformers import Glm4MoeForCausalLM

    checkpoint = save(tmp_path, lora, base)
    export_peft(checkpoint, tmp_path / "peft")
    merge(checkpoint, tmp_path / "merged")
    tokens = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        original = Glm4MoeForCausalLM.from_pretrained(base, dtype=torch.float32)
        plain = original(tokens).logits
        adapted = peft.PeftModel.from_pretrained(original, tmp_path / "peft")
        loaded = load_file(tmp_path / "peft" / WEIGHTS_FILE)
        assert peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() == loaded.keys()
        with_peft = adapted(tokens).logits
        merged = Glm4MoeForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(tokens).logits
    assert (with_peft - plain).abs().max() > 1e-2
    torch.testing.assert_close(merged, with_peft, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("experts", [HALVES + DOWN, PACKED + DOWN], ids=["halves", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_files_are_the_base_s_but_for_what_was_adapted(tmp_path, base, dtype, experts):
    """Without PEFT: every tensor against W + scaling * B A, rounded once, and the others bit for bit."""
    source = tmp_path / "base"
    export_hf(dict(import_hf(base)[1]), CONFIG, source, dtype=dtype, max_shard_bytes=200_000)
    settings = lora(ATTENTION, experts)
    merge(save(tmp_path, settings, source), tmp_path / "merged")
    assert sorted(p.name for p in (tmp_path / "merged").iterdir()) == sorted(p.name for p in source.iterdir())
    changed = set()
    for file in source.glob("*.safetensors"):
        before, after = load_file(file), load_file(tmp_path / "merged" / file.name)
        assert before.keys() == after.keys()
        for name, weight in before.items():
            delta = delta_of(name, adapters(settings))
            expected = weight if delta is None else (weight.float() + settings.scaling * delta).to(dtype)
            assert after[name].dtype == dtype or name.endswith("e_score_correction_bias")
            torch.testing.assert_close(after[name], expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)
            if delta is None:
                assert torch.equal(after[name], weight)
            else:
                changed.add(name)
    assert len(changed) == 2 + 3 * E


def test_what_reads_back_otherwise_gets_no_name(tmp_path, base, monkeypatch):
    """As on a disk that does not keep what it is given."""

    def damaging(file: Path, *rest: Any) -> None:
        write_safetensors(file, *rest)
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    monkeypatch.setattr("glmforge.checkpoint.adapter.merge.write_safetensors", damaging)
    with pytest.raises(CheckpointError, match="reads back otherwise"):
        merge(save(tmp_path, lora(ATTENTION), base), tmp_path / "merged")
    assert not list(tmp_path.glob("*merged*"))


@pytest.mark.parametrize("experts", [HALVES + DOWN, PACKED], ids=["halves", "packed"])
def test_a_base_with_packed_experts_gets_the_same_weights(tmp_path, base, experts):
    packed = tmp_path / "packed"
    packed.mkdir()
    shutil.copy(base / "config.json", packed)
    save_file({name: tensor.contiguous() for name, tensor in import_hf(base)[1]}, packed / "model.safetensors")
    for source, name in ((base, "one by one"), (packed, "at once")):
        merge(save(tmp_path / name, lora(experts), source), tmp_path / name / "merged")
    one_by_one, at_once = (dict(import_hf(tmp_path / name / "merged")[1]) for name in ("one by one", "at once"))
    assert all(torch.equal(at_once[name], tensor) for name, tensor in one_by_one.items())


def delta_of(name: str, tensors: dict[str, Tensor]) -> Tensor | None:
    """B A for a tensor of the files, None where nothing is adapted."""
    *_, owner, expert, key, _ = name.split(".") if ".experts." in name else ("", "", "", "")
    if owner:
        packed = key != "down_proj" and f"model.{EXPERTS}.lora_A.gate_up_proj" in tensors
        a, b = (tensors[f"model.{EXPERTS}.lora_{p}.{'gate_up_proj' if packed else key}"][int(expert)] for p in "AB")
        rows = {"gate_proj": slice(0, F), "up_proj": slice(F, 2 * F)}[key] if packed else slice(None)
        return (b @ a)[rows]
    module = "model." + name.removesuffix(".weight")
    a, b = (tensors.get(f"{module}.lora_{part}.weight") for part in "AB")
    return None if a is None else b @ a


def test_what_does_not_belong_together_is_refused_in_one_line(tmp_path, base):
    checkpoint = save(tmp_path, lora(ATTENTION), base)
    other = tmp_path / "other"
    state = {name: tensor + 1e-3 for name, tensor in import_hf(base)[1]}
    export_hf(state, CONFIG, other, dtype=torch.float32, max_shard_bytes=200_000)
    with pytest.raises(
        CheckpointError,
        match=r"was trained on the weights of .*/model .* holds other or changed weights",
    ) as error:
        merge(checkpoint, tmp_path / "merged", other)
    assert "\n" not in str(error.value)
    shallow = tmp_path / "shallow"
    config = CONFIG.model_copy(update={"num_hidden_layers": 1})
    export_hf({n: state[n] for n in parameter_table(config)}, config, shallow, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"has adapters of model.layers.1.self_attn.o_proj.weight, which"):
        merge(checkpoint, tmp_path / "merged", shallow, check=False)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("settings", "model", "reason"),
    [
        (
            {"modules_to_save": ("gate",)},
            {},
            "mlp.gate.e_score_correction_bias is not in the adapter; adapt the router",
        ),
        (
            {"modules_to_save": ("model.layers.1.mlp.*",)},
            {},
            "e_score_correction_bias is not in the adapter; adapt the router",
        ),
        (
            {"modules_to_save": ("*.v_proj.bias",)},
            {},
            r"only part of model\.layers\.0\.self_attn\.v_proj is trained; "
            r"add 'model\.layers\.0\.self_attn\.v_proj\.weight'",
        ),
        (
            {"modules_to_save": ("experts.down_proj",)},
            {},
            r"only part of model\.layers\.1\.mlp\.experts is trained; "
            r"add 'model\.layers\.1\.mlp\.experts\.gate_up_proj'",
        ),
        ({}, {"heads": {"score": 1}}, r"no head 'score' \(model.heads\); or load the run itself"),
    ],
)
def test_what_peft_could_not_load_is_refused_in_one_line(tmp_path, base, settings, model, reason):
    config = CONFIG.model_copy(update=model)
    checkpoint = save(tmp_path, lora(ATTENTION, **settings), base, config)
    with pytest.raises(CheckpointError, match=reason) as refused:
        export_peft(checkpoint, tmp_path / "peft")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "peft").exists()


def test_what_mtp_layers_train_is_left_out_for_peft(tmp_path, base):
    """As transformers leaves the layers out."""
    config = CONFIG.model_copy(update={"num_nextn_predict_layers": 1})
    export_peft(save(tmp_path, lora(ATTENTION, modules_to_save=("input_layernorm",)), base, config), tmp_path / "peft")
    saved = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["modules_to_save"]
    assert saved == [f"model.layers.{layer}.input_layernorm" for layer in range(2)]
    assert not [name for name in load_file(tmp_path / "peft" / WEIGHTS_FILE) if "layers.2" in name]


def test_a_head_is_not_lost_by_merging(tmp_path, base):
    checkpoint = save(tmp_path, lora(ATTENTION), base, CONFIG.model_copy(update={"heads": {"score": 1}}))
    with pytest.raises(CheckpointError, match=r"has the head score \(model.heads\)"):
        merge(checkpoint, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_fingerprint_does_not_depend_on_files(tmp_path, base):
    export_hf(dict(import_hf(base)[1]), CONFIG, tmp_path / "one file", dtype=torch.float32)
    assert base_weights(tmp_path / "one file").fingerprint == base_weights(base).fingerprint


def test_adapter_config_is_what_peft_reads(tmp_path, base):
    checkpoint = save(tmp_path, lora(ATTENTION, HALVES), base)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (config["r"], config["lora_alpha"]) == (RANK, 9)
    assert config["rank_pattern"] == {"mlp.experts.gate_up_proj": 2 * RANK}
    assert config["target_parameters"] == ["mlp.experts.gate_up_proj"]
    assert config["base_model_name_or_path"] == str(base)


def test_repeated_embedding_and_head_are_merged_too(tmp_path):
    """GLM-4.5's MTP layers hold embedding and head once more, and a reader refuses copies that differ."""
    model = tiny_config(num_hidden_layers=2, num_nextn_predict_layers=1)
    state = {name: torch.rand(row.shape) for name, row in parameter_table(model).items()}
    export_hf(state, model, tmp_path / "base", dtype=torch.float32, duplicate_mtp_head=True)
    adapted = lora(["lm_head", "embed_tokens"])
    merge(save(tmp_path, adapted, tmp_path / "base", model), tmp_path / "merged")
    merged = dict(import_hf(tmp_path / "merged")[1])
    assert (merged["lm_head.weight"] - state["lm_head.weight"]).abs().max() > 0.1


def test_merging_takes_memory_for_one_tensor_not_for_the_model(tmp_path):
    """The base has 76 MB in tensors of at most 0.6 MB; half a shard of it would not go unseen."""
    config = tiny_config(
        num_nextn_predict_layers=0,
        num_hidden_layers=5,
        hidden_size=256,
        n_routed_experts=48,
        moe_intermediate_size=128,
        vocab_size=512,
    )
    state = {name: torch.zeros(row.shape) for name, row in parameter_table(config).items()}
    export_hf(state, config, tmp_path / "base", dtype=torch.float32, max_shard_bytes=40_000_000)
    size = sum(tensor.nbytes for tensor in state.values())
    del state
    checkpoint = save(tmp_path, lora(DOWN), tmp_path / "base", config)
    merge(checkpoint, tmp_path / "warm")  # what torch and the allocator take once
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status_kib("VmHWM")
    merge(checkpoint, tmp_path / "merged")
    assert size > 70e6
    assert (status_kib("VmHWM") - before) * 1024 < size / 8


def status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
