"""Weights in 8 and 4 bits: what is written, that transformers computes with it, and what is refused."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from glmforge.checkpoint.convert import export_hf
from glmforge.cli.app import app
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import open_source
from glmforge.deploy.quantize import environment, rounding
from glmforge.deploy.quantize.calibrated import calibration_rows, quantize_calibrated
from glmforge.deploy.quantize.gguf_types import quantize_gguf
from glmforge.deploy.quantize.rounding import Fp8Blocks, Int8Channels, Rounding
from glmforge.deploy.quantize.streamed import quantize_streamed
from glmforge.errors import CheckpointError, DataError, GlmforgeError
from glmforge.model.transformer import GlmMoe
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

QUANTIZER_PYTHON = os.environ.get("GLMFORGE_QUANTIZER_PYTHON")
"""A Python with llm-compressor, which takes minutes to install."""
LLAMA_CPP_PYTHON = os.environ.get("GLMFORGE_LLAMA_CPP_PYTHON")

needs_quantizer = pytest.mark.skipif(
    QUANTIZER_PYTHON is None, reason="needs GLMFORGE_QUANTIZER_PYTHON, a Python with llm-compressor"
)


@pytest.fixture(scope="module")
def model(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, of which each matters, and an MTP layer; all sides of linear maps are multiples of 16."""
    directory = tmp_path_factory.mktemp("quantize") / "hf"
    model = GlmMoe.create(tiny_config(hidden_size=64))
    randomize_(model)
    export_hf(dict(model.state_dict()), model.config, directory, dtype=torch.float32, tokenizer_dir=tiny_data.tokenizer)
    return directory


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for file in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("code", [Fp8Blocks(16), Int8Channels()])
def test_what_is_written(model: Path, tmp_path: Path, code: Rounding) -> None:
    source = open_source(model)
    done = quantize_streamed(source, tmp_path / "out", code)
    before, after = weights_of(model), weights_of(tmp_path / "out")
    first, *_ = code.specs((16, 16))
    rounded = {name.removesuffix(first) for name in after if name.endswith(f".{first}") and name not in before}
    rounded |= {name.removesuffix(first) for name in after if after[name].dtype == torch.float8_e4m3fn}
    linear = {name.removesuffix("weight") for name in before if name.endswith("_proj.weight")}
    assert rounded == {name for name in linear if not name.startswith("model.layers.4.")}  # the MTP layer is kept
    assert done.num_quantised == len(rounded)
    for stem in rounded:
        weight = before[stem + "weight"]
        stored = {end: after[stem + end] for end in code.specs(tuple(weight.shape))}
        off = (code.decode(stored, tuple(weight.shape)) - weight).abs().max() / weight.abs().max()
        assert 0 < off < (0.036 if isinstance(code, Fp8Blocks) else 0.0045), stem  # 16/448 and 1/127, half of each
    for name in before.keys() - {stem + "weight" for stem in rounded}:
        expected = before[name] if name.endswith("correction_bias") else before[name].to(torch.bfloat16)
        assert torch.equal(after[name], expected), name
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == after.keys()
    assert index["metadata"]["total_size"] == done.num_bytes == sum(t.numel() * t.itemsize for t in after.values())
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_transformers_computes_with_fp8(model: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    quantize_streamed(open_source(model), tmp_path / "out", Fp8Blocks(16))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16).eval()
    code, after, loaded = Fp8Blocks(16), weights_of(tmp_path / "out"), theirs.state_dict()
    stems = [name.removesuffix("weight_scale_inv") for name in after if name.endswith("weight_scale_inv")]
    for stem in stems:
        shape = tuple(after[stem + "weight"].shape)
        decoded = code.decode({end: after[stem + end] for end in code.specs(shape)}, shape).to(torch.bfloat16)
        if ".experts." not in stem:
            assert torch.equal(loaded[stem + "weight"], decoded), stem
            continue
        module, expert, part = stem.removesuffix(".").rsplit(".", 2)
        packed = loaded[f"{module}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"][int(expert)]
        assert torch.equal(packed[32:] if part == "up_proj" else packed[: len(decoded)], decoded), stem
    with torch.no_grad():
        assert torch.isfinite(theirs(torch.arange(32)[None]).logits).all()


@pytest.mark.parametrize("code", [Fp8Blocks(16), Int8Channels()])
def test_zeros_and_large_values(code: Rounding) -> None:
    weight = torch.zeros(32, 32)
    weight[:16, :16] = 3e4 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    stored = code.encode(weight)
    decoded = code.decode(stored, (32, 32))
    assert torch.isfinite(decoded).all()
    assert torch.equal(decoded[16:], weight[16:])
    assert ((decoded - weight).abs() <= code.error_bound(weight, stored)).all()
    assert not ((decoded * 1.2 - weight).abs() <= code.error_bound(weight, stored)).all()


def test_int8_is_packed_as_compressed_tensors_does() -> None:
    """Little end first, each code plus 128."""
    weight = torch.tensor([[127.0, -127.0, 0.0, 1.0]])
    stored = Int8Channels().encode(weight)
    assert stored["weight_packed"].view(torch.uint8).tolist() == [[255, 1, 128, 129]]
    assert stored["weight_shape"].tolist() == [1, 4]
    assert stored["weight_scale"].item() == 1.0


def test_a_wrong_code_gets_no_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = rounding._scale
    monkeypatch.setattr(rounding, "_scale", lambda largest, code: scale(largest, code * 2))  # clips half of the range
    with pytest.raises(CheckpointError, match=r"_proj.weight was read back different"):
        quantize_streamed(open_source(model), tmp_path / "out", Fp8Blocks(16))
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_kept_or_refused(model: Path, tmp_path: Path) -> None:
    done = quantize_streamed(open_source(model), tmp_path / "out", Fp8Blocks(32))  # the dense layer has 80
    assert done.kept[:3] == [f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert set(done.kept) < set(settings["modules_to_not_convert"])
    with pytest.raises(CheckpointError, match="multiples of 128; choose a smaller --group-size"):
        quantize_streamed(open_source(model), tmp_path / "none", Fp8Blocks())
    with pytest.raises(CheckpointError, match="out: exists"):
        quantize_streamed(open_source(model), tmp_path / "out", Fp8Blocks(16))


def test_calibration_rows(tiny_data: TinyData, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    rows = calibration_rows(text, tokenizer, num_rows=3, num_tokens=50)
    assert [len(row) for row in rows] == [50] * 3
    assert [index for row in rows for index in row] == tokenizer.encode(text.read_text())[:150]
    lines = tmp_path / "lines.jsonl"
    chat = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A thing."}]
    lines.write_text(f"{json.dumps({'messages': chat})}\n\n{json.dumps({'text': 'some words ' * 20})}\n")
    rows = calibration_rows(lines, tokenizer, num_rows=9, num_tokens=20)
    assert rows[0] == tokenizer.apply_chat_template(chat)[:20]
    assert rows[1] == tokenizer.encode("some words " * 20)[:20]
    lines.write_text('{"text": "fine and long enough to be a row"}\n{"words": 1}\n')
    with pytest.raises(DataError, match=r"lines.jsonl:2: has neither"):
        calibration_rows(lines, tokenizer, num_rows=9, num_tokens=20)
    in_parts = [chat[0] | {"content": [{"type": "text", "value": "What is it?"}]}, chat[1]]  # as ShareGPT has it
    lines.write_text(json.dumps({"messages": in_parts}))
    assert calibration_rows(lines, tokenizer, num_rows=9, num_tokens=20) == [tokenizer.apply_chat_template(chat)[:20]]
    lines.write_text(json.dumps({"messages": [{"role": "boss", "content": "Do it at once, whatever it is."}]}))
    with pytest.raises(DataError, match=r"lines.jsonl:1: message 0.*boss"):
        calibration_rows(lines, tokenizer, num_rows=9, num_tokens=20)
    text.write_text("a")
    with pytest.raises(DataError, match="no text of 8 tokens"):
        calibration_rows(text, tokenizer, num_rows=9, num_tokens=20)


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands: list[list[str]] = []

    def run(command: list[str], *_: str) -> None:
        commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)

    monkeypatch.setattr(environment, "run", run)
    python = environment.environment_python("llm-compressor")
    assert environment.environment_python("llm-compressor") == python
    make, install = commands
    assert make[1:3] == ["-m", "venv"]
    assert install[0] == str(python)
    assert f"torch=={torch.__version__.partition('+')[0]}" in install
    assert "llmcompressor==0.14.0.1" in install
    assert environment.environment_python("llama.cpp") != python


def test_a_command_that_fails_is_reported_in_a_line(tmp_path: Path) -> None:
    program = "import sys; print('first'); sys.exit('no such wheel')"
    with pytest.raises(GlmforgeError, match=r"not made \(exit status 1\): no such wheel; do this"):
        environment.run([sys.executable, "-c", program], "not made", "do this")
    with pytest.raises(GlmforgeError, match="No such file"):
        environment.run([str(tmp_path / "python")], "not made", "do this")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "fp8", "--bits", "4"], "fp8 has 8"),
        (["--method", "gptq"], "gptq needs a file of text"),
        (["--method", "int8", "--calibration", "x"], "int8 needs no calibration"),
    ],
)
def test_options_that_do_not_go_together(model: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["quantize", str(model), "--output", "out", *arguments])
    assert result.exit_code == 2
    assert message in result.output


@needs_quantizer
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_calibrated_by_llm_compressor(model: Path, tmp_path: Path, method: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. It is 12 o'clock.\n" * 60)
    assert QUANTIZER_PYTHON is not None
    done = quantize_calibrated(
        open_source(model),
        tmp_path / "out",
        method,
        4,
        text,
        group_size=16,
        num_rows=4,
        num_tokens=64,
        python=Path(QUANTIZER_PYTHON),
    )
    before, after = weights_of(model), weights_of(tmp_path / "out")
    for name, tensor in before.items():
        if name.endswith("_proj.weight") and ".4." not in name[:15]:
            assert name + "_packed" in after
        elif not name.endswith("norm.weight") and "mlp.gate" not in name:  # which AWQ scales
            assert torch.equal(after[name].float(), tensor.to(after[name].dtype).float()), name
    assert after["model.layers.4.eh_proj.weight"].dtype == torch.bfloat16
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    assert "model.layers.4.eh_proj" in config["quantization_config"]["ignore"]
    assert done.difference < 0.1
    if method == "awq":
        assert done.smoothing_difference is not None
        assert done.smoothing_difference < 1e-5
        assert not torch.equal(after["model.norm.weight"], after["model.layers.2.post_attention_layernorm.weight"])


def test_groups_must_divide(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"groups of 128 do not divide hidden_size 64; pass another --group-size"):
        quantize_calibrated(open_source(model), tmp_path / "out", "gptq", 4, tmp_path / "none")


@pytest.mark.skipif(LLAMA_CPP_PYTHON is None, reason="needs GLMFORGE_LLAMA_CPP_PYTHON, a Python with llama-cpp-python")
@pytest.mark.parametrize(("width", "down"), [(256, "Q4_K"), (96, "Q4_0")])
def test_k_quants(tiny_data: TinyData, tmp_path: Path, width: int, down: str) -> None:
    gguf = pytest.importorskip("gguf")
    tiny = GlmMoe.create(tiny_config(hidden_size=256, moe_intermediate_size=width, intermediate_size=256))
    randomize_(tiny)
    export_hf(dict(tiny.state_dict()), tiny.config, tmp_path / "hf", tokenizer_dir=tiny_data.tokenizer)
    assert LLAMA_CPP_PYTHON is not None
    quantize_gguf(open_source(tmp_path / "hf"), tmp_path / "out.gguf", 4, python=Path(LLAMA_CPP_PYTHON))
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert types["output.weight"] == "Q6_K"
    assert types["blk.1.ffn_gate_inp.weight"] == types["blk.1.exp_probs_b.bias"] == "F32"
    assert {types[f"blk.{n}.ffn_down_exps.weight"] for n in (1, 2, 3)} <= {down, "Q6_K"}
    assert (types["blk.1.ffn_down_exps.weight"] == "Q4_0") == (down == "Q4_0")
    assert [file.name for file in tmp_path.glob("*.gguf")] == ["out.gguf"]
    assert not list(tmp_path.glob(".out*"))


def test_gguf_in_8_bits_needs_no_llama_cpp(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    types = quantize_gguf(open_source(model), tmp_path / "out.gguf", 8, python=Path("/nonexistent"))
    assert types["Q8_0"] > 0
    with pytest.raises(CheckpointError, match="exists"):
        quantize_gguf(open_source(model), tmp_path / "out.gguf", 8)
    with pytest.raises(GlmforgeError, match="No such file"):
        quantize_gguf(open_source(model), tmp_path / "other.gguf", 4, python=Path("/nonexistent"))
    assert not list(tmp_path.glob(".other*"))
