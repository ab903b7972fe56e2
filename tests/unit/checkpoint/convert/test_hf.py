"""Exports and imports against transformers' own Glm4Moe, tensor by tensor and bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.checkpoint import StoredTensors, save_checkpoint
from glmforge.checkpoint.convert import export_hf, import_hf
from glmforge.config import ModelConfig, load_model_config
from glmforge.config.parameters import parameter_table
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError
from glmforge.model import GlmMoe
from glmforge.model.head import NoLMHeadError
from helpers.checkpoints import make_meta
from helpers.models import randomize_

transformers = pytest.importorskip("transformers")
from transformers.modeling_layers import GenericForSequenceClassification  # noqa: E402
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoePreTrainedModel  # noqa: E402

FIELDS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "intermediate_size": 40,
    "moe_intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "use_qk_norm": True,
    "rope_theta": 20000.0,
    "max_position_embeddings": 64,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [3, 5],
    "pad_token_id": 3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "no qk norm, no bias": {"use_qk_norm": False, "attention_bias": False},
    "no dense layer": {"first_k_dense_replace": 0},
    "all trunk layers dense": {"first_k_dense_replace": 3},
    "groups": {"n_group": 3, "topk_group": 2, "norm_topk_prob": False},
    "no mtp": {"num_nextn_predict_layers": 0},
    "two mtp layers": {"num_nextn_predict_layers": 2},
}
SCORE_ONLY: dict[str, Any] = {"heads": {"score": 1}, "lm_head": False, "num_nextn_predict_layers": 0}
BIAS = "e_score_correction_bias"
MTP = "model.layers.3."


class Glm4MoeForSequenceClassification(GenericForSequenceClassification, Glm4MoePreTrainedModel):
    """As transformers makes this class for other models; docs/checkpoints.md shows it."""


def make_config(**changes: Any) -> ModelConfig:
    return ModelConfig(**(FIELDS | changes))


def make_state(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(torch.float32 if BIAS in name else dtype)
        for name, shape in parameter_table(config).shapes().items()
    }


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def tensors_on_disk(directory: Path) -> dict[str, torch.Tensor]:
    return {n: t for file in directory.glob("*.safetensors") for n, t in load_file(file).items()}


def edit(directory: Path, change: Any) -> None:
    """Change the tensors of a directory's only shard; its index follows."""
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    index = {"weight_map": dict.fromkeys(tensors, file.name)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("changes", "dtype"), [({}, torch.bfloat16), *((changes, torch.float32) for changes in VARIANTS.values())]
)
def test_round_trip_is_bit_equal(tmp_path, changes, dtype):
    config = make_config(**changes)
    state = make_state(config, dtype)
    export_hf(state, config, tmp_path / "hf", dtype=dtype)
    read_config, tensors = import_hf(tmp_path / "hf")
    assert read_config == config
    assert_equal(dict(tensors), state)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_transformers_loads_our_export(tmp_path, changes):
    config = make_config(**changes)
    state = make_state(config)
    export_hf(state, config, tmp_path / "hf", dtype=torch.float32)
    model, report = transformers.Glm4MoeForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    trunk = {n: t for n, t in state.items() if not n.startswith(("model.layers.3.", "model.layers.4."))}
    assert_equal(model.state_dict(), trunk)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    for field in ModelConfig.model_fields.keys() - {"heads", "lm_head"}:
        if field not in ("rope_theta", "partial_rotary_factor"):
            assert getattr(model.config, field) == getattr(config, field), field
    assert model.config.rope_parameters["rope_theta"] == config.rope_theta
    assert model.config.rope_parameters["partial_rotary_factor"] == config.partial_rotary_factor
    assert model.generation_config.eos_token_id == [3, 5]


@pytest.mark.parametrize("changes", [{}, VARIANTS["no mtp"]], ids=["mtp", "no mtp"])
def test_we_load_what_transformers_saves(tmp_path, changes, caplog):
    """transformers has no MTP layers in its model, and announces them all the same."""
    config = make_config(**changes)
    export_hf(make_state(config), config, tmp_path / "ours", dtype=torch.float32)
    model = transformers.Glm4MoeForCausalLM.from_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    read_config, tensors = import_hf(tmp_path / "theirs")
    assert read_config == config.model_copy(update={"num_nextn_predict_layers": 0})
    assert_equal(dict(tensors), model.state_dict())
    announced = config.num_nextn_predict_layers > 0
    assert ("config.json lists" in caplog.text) == announced


def test_the_files_are_those_of_a_published_checkpoint(tmp_path):
    config = make_config()
    export_hf(make_state(config), config, tmp_path / "hf")
    on_disk = tensors_on_disk(tmp_path / "hf")
    assert on_disk["model.layers.1.mlp.experts.5.gate_proj.weight"].shape == (12, 16)
    assert on_disk["model.layers.1.mlp.experts.5.down_proj.weight"].shape == (16, 12)
    assert on_disk[MTP + "eh_proj.weight"].shape == (16, 32)
    assert on_disk["model.layers.1.mlp.gate." + BIAS].dtype == torch.float32
    assert not any("gate_up_proj" in name or "embed_tokens" in name[6:] for name in on_disk if MTP in name)
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert content["architectures"] == ["Glm4MoeForCausalLM"]
    assert content["model_type"] == "glm4_moe"
    assert content["rope_theta"] == content["rope_parameters"]["rope_theta"] == 20000.0
    assert content["dtype"] == content["torch_dtype"] == "bfloat16"
    assert content["num_nextn_predict_layers"] == 1


def test_without_mtp(tmp_path):
    config = make_config()
    state = make_state(config)
    export_hf(state, config, tmp_path / "without", dtype=torch.float32, with_mtp=False)
    assert json.loads((tmp_path / "without" / "config.json").read_text())["num_nextn_predict_layers"] == 0
    export_hf(state, config, tmp_path / "with", dtype=torch.float32)
    for read_config, tensors in (import_hf(tmp_path / "without"), import_hf(tmp_path / "with", with_mtp=False)):
        assert read_config == make_config(num_nextn_predict_layers=0)
        assert_equal(dict(tensors), {n: t for n, t in state.items() if not n.startswith(MTP)})


def test_import_casts_on_request_but_not_the_correction_biases(tmp_path):
    config = make_config()
    export_hf(make_state(config), config, tmp_path / "hf", dtype=torch.float32)
    _, tensors = import_hf(tmp_path / "hf", dtype=torch.bfloat16)
    for name, tensor in tensors:
        assert tensor.dtype == (torch.float32 if BIAS in name else torch.bfloat16), name


class TestDuplicatedMtpHead:
    """GLM-4.5 repeats embedding and head in the MTP layer."""

    @pytest.fixture
    def exported(self, tmp_path):
        config = make_config()
        state = make_state(config)
        export_hf(state, config, tmp_path / "hf", dtype=torch.float32, duplicate_mtp_head=True)
        return tmp_path / "hf", config, state

    def test_they_are_written(self, exported):
        directory, _, state = exported
        on_disk = tensors_on_disk(directory)
        assert torch.equal(on_disk[MTP + "embed_tokens.weight"], state["model.embed_tokens.weight"])
        assert torch.equal(on_disk[MTP + "shared_head.head.weight"], state["lm_head.weight"])

    def test_they_are_read_once(self, exported):
        directory, config, state = exported
        read_config, tensors = import_hf(directory)
        assert read_config == config
        assert_equal(dict(tensors), state)

    @pytest.mark.parametrize("name", ["embed_tokens.weight", "shared_head.head.weight"])
    def test_one_that_differs_is_refused(self, exported, name):
        directory, _, _ = exported
        edit(directory, lambda tensors: tensors[MTP + name].add_(1))
        _, tensors = import_hf(directory)
        with pytest.raises(CheckpointError, match=rf"{MTP}{name} differs from .*with_mtp=False"):
            dict(tensors)
        dict(import_hf(directory, with_mtp=False)[1])

    def test_there_must_be_mtp_layers(self, tmp_path):
        config = make_config(num_nextn_predict_layers=0)
        with pytest.raises(ValueError, match="duplicate_mtp_head needs MTP layers"):
            export_hf(make_state(config), config, tmp_path / "hf", duplicate_mtp_head=True)


@pytest.mark.parametrize("max_shard_bytes", [1, 3000, 10**9])
def test_shards(tmp_path, max_shard_bytes):
    config = make_config()
    state = make_state(config)
    export_hf(state, config, tmp_path / "hf", dtype=torch.float32, max_shard_bytes=max_shard_bytes)
    shards = sorted((tmp_path / "hf").glob("*.safetensors"))
    num_tensors = len(tensors_on_disk(tmp_path / "hf"))
    assert {1: len(shards) == num_tensors, 3000: 1 < len(shards) < num_tensors, 10**9: len(shards) == 1}[
        max_shard_bytes
    ]
    assert shards[-1].name == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
    for shard in shards:
        sizes = [t.nbytes for t in load_file(shard).values()]
        assert sum(sizes) <= max_shard_bytes or len(sizes) == 1
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors_on_disk(tmp_path / "hf").values())
    assert_equal(dict(import_hf(tmp_path / "hf")[1]), state)


def test_export_streams_from_a_checkpoint(tmp_path):
    config = make_config()
    state = make_state(config)
    path = save_checkpoint(tmp_path, 1, {f"model.{n}": t for n, t in state.items()}, make_meta(1))
    export_hf(StoredTensors(path, "model."), config, tmp_path / "hf", dtype=torch.float32)
    assert_equal(dict(import_hf(tmp_path / "hf")[1]), state)


def make_tokenizer(directory: Path, num_tokens: int) -> Tokenizer:
    return train_tokenizer(("the smith the " * 50 + "".join(map(chr, range(32, 500))),), num_tokens, directory)


def test_the_tokenizer_goes_along_and_says_where_generation_stops(tmp_path):
    config = make_config(vocab_size=512)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", 298)
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text("{{ messages }}")
    export_hf(make_state(config), config, tmp_path / "hf", tokenizer_dir=tmp_path / "tokenizer")
    assert Tokenizer.load(tmp_path / "hf").fingerprint == tokenizer.fingerprint
    assert (tmp_path / "hf" / "chat_template.jinja").read_text() == "{{ messages }}"
    for file in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / "hf" / file).read_text())
        assert (content["eos_token_id"], content["pad_token_id"]) == ([262, 269, 271], 262), file
    assert load_model_config(tmp_path / "hf").eos_token_id == list(tokenizer.stop_ids)


def test_a_tokenizer_with_another_vocabulary_is_refused(tmp_path):
    config = make_config()
    make_tokenizer(tmp_path / "tokenizer", 298)
    with pytest.raises(CheckpointError, match=r"has 298 tokens, the model only 96 \(vocab_size\)"):
        export_hf(make_state(config), config, tmp_path / "hf", tokenizer_dir=tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a GLM tokenizer"):
        export_hf(make_state(config), config, tmp_path / "hf", tokenizer_dir=tmp_path / "tokenizer")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        export_hf(make_state(config), config, tmp_path / "hf", tokenizer_dir=tmp_path)
    assert not (tmp_path / "hf").exists()


def test_a_directory_is_replaced_only_if_it_is_an_export_and_on_request(tmp_path):
    config = make_config()
    state = make_state(config)
    (tmp_path / "work").mkdir()
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="work: exists"):
            export_hf(state, config, tmp_path / "work", overwrite=overwrite)
    export_hf(state, config, tmp_path / "hf")
    with pytest.raises(CheckpointError, match="hf: exists; choose another directory"):
        export_hf(state, config, tmp_path / "hf")
    export_hf(state, config, tmp_path / "hf", dtype=torch.float32, overwrite=True)
    assert_equal(dict(import_hf(tmp_path / "hf")[1]), state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "work"]


@pytest.mark.parametrize("changes", [{"heads": {"score": 1}}, SCORE_ONLY | {"heads": {"value": 1}}], ids=str)
def test_other_heads_of_its_own_are_not_exported(tmp_path, changes):
    config = make_config(**changes)
    with pytest.raises(CheckpointError, match=r"heads \((score|value)\) that cannot be exported together with"):
        export_hf(make_state(config), config, tmp_path / "hf")


@pytest.mark.parametrize("num_labels", [1, 3])
def test_a_score_head_alone_is_sequence_classification(tmp_path, num_labels):
    """By transformers' generic class, which names weights and settings as for every model that has a class of its own;
    what it saves is read back."""
    config = make_config(**SCORE_ONLY | {"heads": {"score": num_labels}})
    model = GlmMoe(config)
    randomize_(model)
    export_hf(model.state_dict(), config, tmp_path / "hf", dtype=torch.float32)
    written = json.loads((tmp_path / "hf/config.json").read_text())
    assert written["architectures"] == ["Glm4MoeForSequenceClassification"]
    assert not {"heads", "lm_head"} & written.keys()
    assert not (tmp_path / "hf/generation_config.json").exists()
    theirs, report = Glm4MoeForSequenceClassification.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values())
    ids_BS = torch.randint(6, config.vocab_size, (2, 12))
    with torch.no_grad():
        scores = model(ids_BS, head=lambda h_TD, heads, depth: heads.linear["score"](h_TD)).main.view(2, 12, num_labels)
        # The same fp32 sums in another order.
        torch.testing.assert_close(scores[:, -1], theirs.eval()(ids_BS).logits, rtol=1e-4, atol=1e-5)
        with pytest.raises(NoLMHeadError, match=r"no language-model head \(model.lm_head is false; it has score\)"):
            model.logits(ids_BS)
    theirs.save_pretrained(tmp_path / "theirs")
    for directory in ("hf", "theirs"):
        read_config, tensors = import_hf(tmp_path / directory)
        assert read_config == config
        assert_equal(dict(tensors), model.state_dict())


STATE_DEFECTS = {
    "missing": (lambda s: s.pop("lm_head.weight"), r"lacks lm_head\.weight"),
    "unexpected": (lambda s: s.update(extra=torch.zeros(1)), "has extra, unknown"),
    "shape": (
        lambda s: s.update({"model.norm.weight": torch.zeros(17)}),
        r"model\.norm\.weight is \[17\], expected \[16\]",
    ),
}


@pytest.mark.parametrize(("defect", "message"), STATE_DEFECTS.values(), ids=STATE_DEFECTS)
def test_a_state_that_does_not_fit_is_not_exported(tmp_path, defect, message):
    config = make_config()
    state = make_state(config)
    defect(state)
    with pytest.raises(CheckpointError, match=message):
        export_hf(state, config, tmp_path / "hf")
    assert not list(tmp_path.iterdir())


EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
FILE_DEFECTS = {
    "missing": (lambda t: t.pop(EXPERT), rf"{EXPERT} missing, required by config\.json"),
    "unexpected": (
        lambda t: t.update({"model.layers.9.weight": torch.zeros(1)}),
        r"model\.layers\.9\.weight in the files, but not in config\.json's model \(num_hidden_layers 3, "
        r"num_nextn_predict_layers 1; quantized",
    ),
    "shape": (
        lambda t: t.update({EXPERT: torch.zeros(16, 12)}),
        rf"{EXPERT} is \[16, 12\], but config\.json implies \[12, 16\]",
    ),
}


@pytest.mark.parametrize(("defect", "message"), FILE_DEFECTS.values(), ids=FILE_DEFECTS)
def test_files_that_do_not_fit_their_config_are_refused_before_reading(tmp_path, defect, message):
    config = make_config()
    export_hf(make_state(config), config, tmp_path / "hf", dtype=torch.float32)
    edit(tmp_path / "hf", defect)
    with pytest.raises(CheckpointError, match=message):
        import_hf(tmp_path / "hf")


def test_experts_of_mixed_types_are_refused(tmp_path):
    config = make_config()
    export_hf(make_state(config), config, tmp_path / "hf", dtype=torch.float32)
    edit(tmp_path / "hf", lambda t: t.update({EXPERT: t[EXPERT].bfloat16()}))
    _, tensors = import_hf(tmp_path / "hf")
    with pytest.raises(CheckpointError, match=rf"{EXPERT} is torch\.bfloat16, .* is torch\.float32"):
        dict(tensors)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: next(d.glob("*.safetensors")).unlink(), r"model-00001-of-00001\.safetensors: missing"),
        (
            lambda d: _cut(next(d.glob("*.safetensors"))),
            "is damaged or truncated",
        ),
        (lambda d: (d / "model.safetensors.index.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "is not an index of safetensors"),
        (lambda d: (d / "model.safetensors.index.json").unlink(), r"model\.safetensors: missing"),
    ],
    ids=["no shard", "cut shard", "broken index", "empty index", "no index"],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    config = make_config()
    export_hf(make_state(config), config, tmp_path / "hf")
    damage(tmp_path / "hf")
    with pytest.raises(CheckpointError, match=message):
        import_hf(tmp_path / "hf")


def _cut(file):
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("preset", ["glm45_355b", "glm45_air_106b"])
def test_configs_of_the_presets_survive_the_way(tmp_path, preset):
    """The whole description of the model, without its weights."""
    from glmforge.checkpoint.convert.hf_config import hf_config

    config = load_model_config(preset)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(config, torch.bfloat16)))
    assert load_model_config(tmp_path) == config
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "theirs")
    assert load_model_config(tmp_path / "theirs") == config
