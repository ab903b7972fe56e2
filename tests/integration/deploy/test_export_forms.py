"""Exports other than a Hugging Face directory of one process: GGUF, other types, several processes, adapters."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import glmforge
from glmforge.checkpoint.convert import export_hf
from glmforge.cli.app import app
from glmforge.config.model import ModelConfig
from glmforge.deploy import gguf as gguf_module
from glmforge.deploy.export import export_run, open_source
from glmforge.deploy.gguf import export_gguf
from glmforge.errors import CheckpointError, GlmforgeError
from glmforge.model.transformer import GlmMoe
from glmforge.recipes.train import train
from helpers.command import Commands
from helpers.lora_runs import lora_run
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

gguf = pytest.importorskip("gguf")

LLAMA_CPP_PYTHON = os.environ.get("GLMFORGE_LLAMA_CPP_PYTHON")
"""A Python with llama-cpp-python, which takes ten minutes to build."""

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "programs" / "llama_cpp_logits.py"


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("forms") / "run"
    train(tiny_data.run_config(directory))
    return directory


def write_model(
    directory: Path, tokenizer: Path, dtype: torch.dtype = torch.float32, **overrides: object
) -> ModelConfig:
    """A model with random weights, each of which matters."""
    model = GlmMoe.create(tiny_config(**overrides))
    randomize_(model)
    export_hf(dict(model.state_dict()), model.config, directory, dtype=torch.float32, tokenizer_dir=tokenizer)
    return model.config


def read_back(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """Tensors in fp32 and fields, by the package's own reader."""
    reader = gguf.GGUFReader(file)
    tensors = {}
    for tensor in reader.tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = torch.from_numpy(values.copy()).float().reshape(shape)
    return tensors, {name: field.contents() for name, field in reader.fields.items()}


# Of each type the largest error relative to a tensor's largest value: none, 11 and 8 bits, half a step of 1/127.
@pytest.mark.parametrize(("kind", "error"), [("f32", 0.0), ("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 0.0045)])
def test_gguf_holds_the_model(tiny_data: TinyData, tmp_path: Path, kind: str, error: float) -> None:
    config = write_model(tmp_path / "hf", tiny_data.tokenizer, hidden_size=64, moe_intermediate_size=48)
    in_f16 = export_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf", type_name=kind)
    tensors, fields = read_back(tmp_path / "out.gguf")
    model = glmforge.load_pretrained(tmp_path / "hf").state_dict()
    experts = model["model.layers.2.mlp.experts.gate_up_proj"]
    expected = {
        "token_embd.weight": model["model.embed_tokens.weight"],
        "output.weight": model["lm_head.weight"],
        "output_norm.weight": model["model.norm.weight"],
        "blk.0.ffn_up.weight": model["model.layers.0.mlp.up_proj.weight"],
        "blk.1.attn_q.bias": model["model.layers.1.self_attn.q_proj.bias"],
        "blk.1.attn_k_norm.weight": model["model.layers.1.self_attn.k_norm.weight"],
        "blk.1.post_attention_norm.weight": model["model.layers.1.post_attention_layernorm.weight"],
        "blk.2.ffn_gate_inp.weight": model["model.layers.2.mlp.gate.weight"],
        "blk.2.exp_probs_b.bias": model["model.layers.2.mlp.gate.e_score_correction_bias"],
        "blk.2.ffn_gate_exps.weight": experts[:, :48],
        "blk.2.ffn_up_exps.weight": experts[:, 48:],
        "blk.2.ffn_down_exps.weight": model["model.layers.2.mlp.experts.down_proj"],
        "blk.3.ffn_down_shexp.weight": model["model.layers.3.mlp.shared_experts.down_proj.weight"],
        "blk.4.nextn.eh_proj.weight": model["model.layers.4.eh_proj.weight"],
        "blk.4.nextn.shared_head_norm.weight": model["model.layers.4.shared_head.norm.weight"],
    }
    for name, tensor in expected.items():
        exact = tensor.dim() == 1 or name.endswith("ffn_gate_inp.weight")  # these stay fp32
        off = (tensors[name] - tensor).abs().max().item()
        assert off <= (0 if exact else error * tensor.abs().max().item()), name
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(tensor.numel() for tensor in model.values())
    wanted = [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.shape[-1] % 32]
    assert in_f16 == (wanted if kind == "q8_0" else [])
    assert wanted  # rows of 48
    settings = {key.removeprefix("glm4moe."): value for key, value in fields.items()}
    assert settings["block_count"] == 5
    assert settings["nextn_predict_layers"] == 1
    assert settings["expert_gating_func"] == 2
    assert settings["rope.dimension_count"] == config.head_dim // 2
    assert settings["expert_weights_scale"] == 2.5
    assert settings["leading_dense_block_count"] == 1


def test_gguf_has_the_tokenizer(tiny_data: TinyData, tmp_path: Path) -> None:
    write_model(tmp_path / "hf", tiny_data.tokenizer, vocab_size=520)
    export_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf", with_mtp=False)
    _, fields = read_back(tmp_path / "out.gguf")
    tokenizer = glmforge.load_tokenizer(tmp_path / "hf")
    tokens = fields["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[:512] == [tokenizer.id_to_token(index) for index in range(512)]
    assert tokens[512:] == [f"[PAD{index}]" for index in range(512, 520)]
    kinds = fields["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list)
    assert kinds[tokenizer.special_id("<|user|>")] == gguf.TokenType.CONTROL
    assert kinds[tokenizer.special_id("<think>")] == gguf.TokenType.USER_DEFINED
    assert (kinds[0], kinds[-1]) == (gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
    assert fields["tokenizer.ggml.eot_token_id"] == tokenizer.special_id("<|user|>")
    assert fields["tokenizer.chat_template"] == tokenizer.chat_template
    assert "glm4moe.nextn_predict_layers" not in fields
    assert fields["glm4moe.block_count"] == 4


@pytest.mark.skipif(LLAMA_CPP_PYTHON is None, reason="needs GLMFORGE_LLAMA_CPP_PYTHON, a Python with llama-cpp-python")
@pytest.mark.parametrize("with_mtp", [True, False])
def test_llama_cpp_computes_the_same(tiny_data: TinyData, tmp_path: Path, with_mtp: bool) -> None:
    import numpy as np

    write_model(tmp_path / "hf", tiny_data.tokenizer)
    export_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf", type_name="f32", with_mtp=with_mtp)
    model, tokenizer = glmforge.load_pretrained(tmp_path / "hf"), glmforge.load_tokenizer(tmp_path / "hf")
    texts = ["<|user|>\nHi 1234!<|assistant|>\n<think></think>", "  don't\r\n\n stop "]
    row = torch.randint(0, 470, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    asked = {"rows": [row], "prompts": [row[:9]], "max_new_tokens": 40, "stop": [], "texts": texts}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    assert LLAMA_CPP_PYTHON is not None
    files = [str(tmp_path / name) for name in ("out.gguf", "asked.json", "found.npz")]
    subprocess.run([LLAMA_CPP_PYTHON, str(PROGRAM), *files], check=True)
    found = np.load(tmp_path / "found.npz")
    with torch.no_grad():
        logits = model.logits(torch.tensor([row]))[0]
        ids = row[:9]
        for _ in range(40):
            ids.append(int(model.logits(torch.tensor([ids]))[0, -1].argmax()))
    # fp32 sums in another order: 1e-5 of the largest logit.
    assert np.abs(found["logits_0"] - logits.numpy()).max() < 1e-5 * max(1.0, logits.abs().max().item())
    assert found["greedy_0"].tolist() == ids[9:]
    for number, text in enumerate(texts):
        assert found[f"tokens_{number}"].tolist() == tokenizer.encode_with_special_tokens(text)


def test_a_run_and_its_export_give_the_same_gguf(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "hf", dtype="fp32")
    for source, name in ((run, "run"), (tmp_path / "hf", "hf")):
        export_gguf(open_source(source), tmp_path / f"{name}.gguf", type_name="f32")
    of_run, of_hf = (read_back(tmp_path / f"{name}.gguf")[0] for name in ("run", "hf"))
    assert of_run.keys() == of_hf.keys()
    assert all(torch.equal(of_run[name], of_hf[name]) for name in of_run)


def test_gguf_that_is_read_back_different_gets_no_name(
    tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "hf", tiny_data.tokenizer)
    encode = gguf_module._encode
    monkeypatch.setattr(gguf_module, "_encode", lambda values, *rest: encode(values[::-1].copy(), *rest))
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight was read back different"):
        export_gguf(open_source(tmp_path / "hf"), tmp_path / "out" / "out.gguf", type_name="q8_0")
    assert not list((tmp_path / "out").iterdir())


def test_what_gguf_cannot_hold_is_refused(tiny_data: TinyData, tmp_path: Path) -> None:
    write_model(tmp_path / "hf", tiny_data.tokenizer)
    source = open_source(tmp_path / "hf")
    (tmp_path / "taken.gguf").touch()
    with pytest.raises(CheckpointError, match=r"taken.gguf: exists; .*--force"):
        export_gguf(source, tmp_path / "taken.gguf")
    export_gguf(source, tmp_path / "taken.gguf", overwrite=True)
    (tmp_path / "hf" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer.*--tokenizer"):
        export_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf")
    write_model(tmp_path / "groups", tiny_data.tokenizer, n_group=2, topk_group=1)
    with pytest.raises(CheckpointError, match="n_group 2"):
        export_gguf(open_source(tmp_path / "groups"), tmp_path / "out.gguf")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_directory_is_cast(tiny_data: TinyData, tmp_path: Path, dtype: str) -> None:
    write_model(tmp_path / "hf", tiny_data.tokenizer)
    exported = export_run(tmp_path / "hf", tmp_path / "out", dtype=dtype)
    assert exported.step is None
    before, after = (load_file(next(d.glob("*.safetensors"))) for d in (tmp_path / "hf", tmp_path / "out"))
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name].to(torch.float32 if name.endswith("correction_bias") else kind)), name


def test_packed_experts_are_exported_one_by_one(tiny_data: TinyData, tmp_path: Path) -> None:
    write_model(tmp_path / "hf", tiny_data.tokenizer)
    shutil.copytree(tmp_path / "hf", tmp_path / "packed")
    (file,) = (tmp_path / "packed").glob("*.safetensors")
    state = glmforge.load_pretrained(tmp_path / "hf").state_dict()
    save_file(state, file)
    index = {"weight_map": dict.fromkeys(state, file.name)}
    (tmp_path / "packed" / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("hf", "packed"):
        export_run(tmp_path / name, tmp_path / f"{name}-out")
    one, other = (load_file(next((tmp_path / f"{name}-out").glob("*.safetensors"))) for name in ("hf", "packed"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_value_beyond_fp16_is_refused(tiny_data: TinyData, tmp_path: Path) -> None:
    model = GlmMoe.create(tiny_config())
    with torch.no_grad():
        model.state_dict()["lm_head.weight"][3, 4] = 1e5
    export_hf(
        dict(model.state_dict()), model.config, tmp_path / "hf", dtype=torch.float32, tokenizer_dir=tiny_data.tokenizer
    )
    with pytest.raises(CheckpointError, match=r"lm_head.weight: has values above 65,504"):
        export_run(tmp_path / "hf", tmp_path / "out", dtype="fp16")
    with pytest.raises(CheckpointError, match=r"lm_head.weight: has values above 65,504"):
        export_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf", type_name="f16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [2, 3])
def test_several_processes_write_what_one_writes(run: Path, tmp_path: Path, commands: Commands, ranks: int) -> None:
    export_run(run, tmp_path / "one", dtype="fp16")
    started = commands.start(
        "export", str(run), str(tmp_path / "several"), "--sharded", "--dtype", "fp16", ranks=ranks, prepared=True
    )
    assert started.process.wait() == 0, started.log.read_text()
    one, several = ({f.name: f.read_bytes() for f in (tmp_path / d).iterdir()} for d in ("one", "several"))
    assert one == several


def test_a_sharded_export_needs_several_processes(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "out"), "--sharded"])
    assert isinstance(result.exception, GlmforgeError)
    assert "torchrun" in str(result.exception)


def test_adapters_are_merged(tiny_data: TinyData, tmp_path: Path) -> None:
    train(tiny_data.run_config(tmp_path / "base"))
    base = export_run(tmp_path / "base", tmp_path / "hf", dtype="fp32").directory
    train(lora_run(tiny_data, tmp_path / "lora", base))
    export_gguf(open_source(tmp_path / "lora"), tmp_path / "out.gguf", type_name="f32")
    tensors, _ = read_back(tmp_path / "out.gguf")
    merged, plain = (glmforge.load_pretrained(tmp_path / name).state_dict() for name in ("lora", "hf"))
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(tensors["blk.1.attn_q.weight"], merged[name])
    assert not torch.equal(merged[name], plain[name])
