"""What others make of our adapters: PEFT's file and merged weights give the logits of W + scaling * B A."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.merge import merge
from glmforge.checkpoint.adapter.peft import ADAPTER_FILE, export_peft, from_packed, to_packed
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.convert.hf_import import import_hf
from glmforge.checkpoint.format.sharded_adapter import AdapterSettings
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta
from helpers.models import tiny_config

CONFIG = tiny_config(num_nextn_predict_layers=0, num_hidden_layers=2)
D, V, E, F = CONFIG.hidden_size, CONFIG.vocab_size, CONFIG.n_routed_experts, CONFIG.moe_intermediate_size
RANK = 3
SETTINGS = AdapterSettings(rank=RANK, alpha=9.0)
Q = CONFIG.num_attention_heads * CONFIG.head_dim

ATTENTION = {
    "model.layers.0.self_attn.q_proj.lora_A.weight": (RANK, D),
    "model.layers.0.self_attn.q_proj.lora_B.weight": (Q, RANK),
    "model.layers.1.self_attn.o_proj.lora_A.weight": (RANK, Q),
    "model.layers.1.self_attn.o_proj.lora_B.weight": (D, RANK),
}
DORA = ATTENTION | {
    "model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight": (Q,),
    "model.layers.1.self_attn.o_proj.lora_magnitude_vector.weight": (D,),
}
EXPERTS = "model.layers.1.mlp.experts"
HALVES = {
    **{f"{EXPERTS}.lora_A.{key}": (E, RANK, D) for key in ("gate_proj", "up_proj")},
    **{f"{EXPERTS}.lora_B.{key}": (E, F, RANK) for key in ("gate_proj", "up_proj")},
}
DOWN = {f"{EXPERTS}.lora_A.down_proj": (E, RANK, F), f"{EXPERTS}.lora_B.down_proj": (E, D, RANK)}
PACKED = {f"{EXPERTS}.lora_A.gate_up_proj": (E, RANK, D), f"{EXPERTS}.lora_B.gate_up_proj": (E, 2 * F, RANK)}
OTHERS = {
    "model.layers.1.mlp.gate.lora_A.weight": (RANK, D),
    "model.layers.1.mlp.gate.lora_B.weight": (E, RANK),
    "lm_head.lora_A.weight": (RANK, D),
    "lm_head.lora_B.weight": (V, RANK),
    "model.embed_tokens.lora_embedding_A.weight": (RANK, V),
    "model.embed_tokens.lora_embedding_B.weight": (D, RANK),
}
DENSE = {
    "model.layers.0.mlp.up_proj.lora_A.weight": (RANK, D),
    "model.layers.0.mlp.up_proj.lora_B.weight": (CONFIG.intermediate_size, RANK),
    "model.layers.1.mlp.shared_experts.down_proj.lora_A.weight": (RANK, F),
    "model.layers.1.mlp.shared_experts.down_proj.lora_B.weight": (D, RANK),
}
ROUTER = {name: shape for name, shape in OTHERS.items() if ".gate." in name}
CASES = {
    "attention": (ATTENTION, SETTINGS),
    "rslora": (ATTENTION, SETTINGS.model_copy(update={"rslora": True})),
    "dora": (DORA, SETTINGS.model_copy(update={"dora": True})),
    "packed experts": (PACKED | DOWN, SETTINGS),
    "only down": (DOWN, SETTINGS),
    "halves": (ATTENTION | HALVES | DOWN, SETTINGS),
    "halves rslora": (ATTENTION | HALVES, SETTINGS.model_copy(update={"rslora": True})),
    "router, head, embedding": (OTHERS, SETTINGS),
    "dense layers and shared experts": (DENSE | ATTENTION, SETTINGS),
    "filled with zeros": (DENSE | ROUTER | HALVES | DOWN, SETTINGS),
    "a whole module": (ATTENTION | {"lm_head.weight": (V, D)}, SETTINGS),
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


def adapters(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {f"model.{name}": torch.rand(shape, generator=generator) - 0.3 for name, shape in shapes.items()}


def save(root: Path, shapes: dict[str, tuple[int, ...]], settings: AdapterSettings, base: Path) -> Path:
    info = AdapterInfo(settings, "lite", base_weights(base))
    saver = AdapterSaver(root, CheckpointConfig(), adapters(shapes), info, run_name="test")
    saver.save(7, adapters(shapes), make_meta(7), durable=True)
    return checkpoint_path(root, 7)


@pytest.mark.parametrize(("shapes", "settings"), CASES.values(), ids=list(CASES))
def test_peft_and_merged_weights_agree(tmp_path, base, shapes, settings):
    """PEFT sums W x and B A x, the merged model (W + B A) x: in fp32 that is 1e-5 of logits of about 10."""
    peft = pytest.importorskip("peft")
    pytest.importorskip("transformers")
    from transformers import Glm4MoeForCausalLM

    checkpoint = save(tmp_path, shapes, settings, base)
    export_peft(checkpoint, tmp_path / "peft")
    merge(checkpoint, base, tmp_path / "merged")
    tokens = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        original = Glm4MoeForCausalLM.from_pretrained(base, dtype=torch.float32)
        plain = original(tokens).logits
        adapted = peft.PeftModel.from_pretrained(original, tmp_path / "peft")
        loaded = load_file(tmp_path / "peft" / ADAPTER_FILE)
        assert peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() == loaded.keys()
        with_peft = adapted(tokens).logits
        merged = Glm4MoeForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(tokens).logits
    assert (with_peft - plain).abs().max() > 1e-2
    torch.testing.assert_close(merged, with_peft, rtol=1e-4, atol=1e-4)


def test_an_adapter_of_the_packed_parameter_comes_back():
    for part, shape in (("lora_A", (E, RANK, D)), ("lora_B", (E, 2 * F, RANK))):
        tensor = torch.randn(shape)
        packed = to_packed({"gate_up_proj": tensor}, part, double=False)
        assert torch.equal(from_packed(packed, part, E), tensor)


@pytest.mark.parametrize("experts", [HALVES | DOWN, PACKED | DOWN], ids=["halves", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_files_are_the_base_s_but_for_what_was_adapted(tmp_path, base, dtype, experts):
    """Without PEFT: every tensor against W + scaling * B A, rounded once, and the others bit for bit."""
    source = tmp_path / "base"
    export_hf(dict(import_hf(base)[1]), CONFIG, source, dtype=dtype, max_shard_bytes=200_000)
    shapes = ATTENTION | experts
    merge(save(tmp_path, shapes, SETTINGS, source), source, tmp_path / "merged")
    assert sorted(p.name for p in (tmp_path / "merged").iterdir()) == sorted(p.name for p in source.iterdir())
    changed = set()
    for file in source.glob("*.safetensors"):
        before, after = load_file(file), load_file(tmp_path / "merged" / file.name)
        assert before.keys() == after.keys()
        for name, weight in before.items():
            delta = delta_of(name, adapters(shapes))
            expected = weight if delta is None else (weight.float() + SETTINGS.scaling * delta).to(dtype)
            assert after[name].dtype == dtype or name.endswith("e_score_correction_bias")
            torch.testing.assert_close(after[name], expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)
            if delta is None:
                assert torch.equal(after[name], weight)
            else:
                changed.add(name)
    assert len(changed) == 2 + 3 * E


@pytest.mark.parametrize("experts", [HALVES | DOWN, PACKED], ids=["halves", "packed"])
def test_a_base_with_packed_experts_gets_the_same_weights(tmp_path, base, experts):
    packed = tmp_path / "packed"
    packed.mkdir()
    shutil.copy(base / "config.json", packed)
    save_file({name: tensor.contiguous() for name, tensor in import_hf(base)[1]}, packed / "model.safetensors")
    for source, name in ((base, "one by one"), (packed, "at once")):
        merge(save(tmp_path / name, experts, SETTINGS, source), source, tmp_path / name / "merged")
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
    checkpoint = save(tmp_path, ATTENTION, SETTINGS, base)
    other = tmp_path / "other"
    state = {name: tensor + 1e-3 for name, tensor in import_hf(base)[1]}
    export_hf(state, CONFIG, other, dtype=torch.float32, max_shard_bytes=200_000)
    with pytest.raises(CheckpointError, match=r"was trained on the weights of .*/model .* holds others") as error:
        merge(checkpoint, other, tmp_path / "merged")
    assert "\n" not in str(error.value)
    shallow = tmp_path / "shallow"
    config = CONFIG.model_copy(update={"num_hidden_layers": 1})
    export_hf({n: state[n] for n in parameter_table(config)}, config, shallow, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"has adapters of model.layers.1.self_attn.o_proj.weight, which"):
        merge(checkpoint, shallow, tmp_path / "merged", check=False)
    assert not (tmp_path / "merged").exists()


def test_the_fingerprint_does_not_depend_on_files(tmp_path, base):
    export_hf(dict(import_hf(base)[1]), CONFIG, tmp_path / "one file", dtype=torch.float32)
    assert base_weights(tmp_path / "one file").fingerprint == base_weights(base).fingerprint


def test_adapter_config_is_what_peft_reads(tmp_path, base):
    checkpoint = save(tmp_path, ATTENTION | HALVES, SETTINGS, base)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (config["r"], config["lora_alpha"]) == (2 * RANK, 18)  # of the packed parameter
    assert config["rank_pattern"] == {"o_proj": RANK, "q_proj": RANK}
    assert config["target_parameters"] == ["mlp.experts.gate_up_proj"]
    assert config["base_model_name_or_path"] == str(base)


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
    shapes = {}
    for layer in range(1, 5):
        owner = f"model.layers.{layer}.mlp.experts"
        shapes |= {f"{owner}.lora_A.down_proj": (48, RANK, 128), f"{owner}.lora_B.down_proj": (48, 256, RANK)}
    checkpoint = save(tmp_path, shapes, SETTINGS, tmp_path / "base")
    merge(checkpoint, tmp_path / "base", tmp_path / "warm")  # what torch and the allocator take once
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status_kib("VmHWM")
    merge(checkpoint, tmp_path / "base", tmp_path / "merged")
    assert size > 70e6
    assert (status_kib("VmHWM") - before) * 1024 < size / 8


def status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
