"""A new run starts from the weights of an earlier one: of the run, of a step of it, on any layout."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.initial_weights import load_initial_weights
from glmforge.config import RunConfig
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import export_run
from glmforge.errors import CheckpointError, ConfigError
from glmforge.model import GlmMoe
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.models import tiny_config
from helpers.tiny_data import VOCAB_SIZE, TinyData

PHASES = [{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 4}]


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 2 and 4."""
    directory = tmp_path_factory.mktemp("base") / "run"
    train(tiny_data.run_config(directory, phases=PHASES, checkpoint={"every_steps": 2, "background": False}))
    return directory


def start(data: TinyData, directory: Path, source: str, **sections: Any) -> RunConfig:
    """A run of one step whose learning rate leaves weights as they are, but for zeros."""
    phases = [PHASES[0] | {"steps": 1, "router_bias_rate": 0.0}]
    optim = {"lr": 1e-30, "min_lr": 1e-30, "warmup_steps": 0}
    return data.run_config(directory, init_from=source, **({"phases": phases, "optim": optim, "seed": 7} | sections))


def weights(source: str) -> dict[str, torch.Tensor]:
    return dict(StoredTensors(find_checkpoint(Path(source)), "model."))


def assert_begins_with(run: Path, source: str, *, without: tuple[str, ...] = ()) -> None:
    expected = {name: tensor for name, tensor in weights(source).items() if not name.startswith(without or ("-",))}
    began = weights(str(run))
    for name, tensor in expected.items():
        assert torch.allclose(began[name], tensor, rtol=0, atol=1e-20), name


@pytest.mark.parametrize("form", ["", "@2"])
def test_a_run_begins_with_the_weights_of_a_run_or_of_a_step(
    tiny_data: TinyData, tmp_path: Path, base: Path, form: str
) -> None:
    state = train(start(tiny_data, tmp_path / "run", f"{base}{form}"))
    assert state.step == 1
    assert_begins_with(tmp_path / "run", f"{base}{form}")
    with pytest.raises(AssertionError):
        assert_begins_with(tmp_path / "run", f"{base}{'@4' if form else '@2'}")


def test_every_rank_reads_its_part(tiny_data: TinyData, tmp_path: Path, base: Path) -> None:
    config = start(tiny_data, tmp_path / "two", f"{base}@2", parallel={"dp_shard": 2, "ep": 2})
    run_ranks(train, 2, config, init_group=False)
    assert_begins_with(tmp_path / "two", f"{base}@2")
    train(start(tiny_data, tmp_path / "one", f"{base}@2"))
    one, two = (read_jsonl(tmp_path / run / "metrics.jsonl")[0]["loss"] for run in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-6)  # fp32 in another order of summation


@pytest.mark.parametrize("published", [False, True])
def test_heads_and_mtp_layers_that_the_base_lacks_are_drawn(
    tiny_data: TinyData, tmp_path: Path, base: Path, published: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source, cache = str(base), None
    if published:
        source, cache = str(export_run(base, tmp_path / "export", dtype="fp32").directory), str(tmp_path / "node")
    model = tiny_config(vocab_size=VOCAB_SIZE).model_dump()
    model |= {"heads": {"score": 1}, "num_nextn_predict_layers": model["num_nextn_predict_layers"] + 1}
    with caplog.at_level(logging.WARNING):
        train(start(tiny_data, tmp_path / "run", source, model=model, init_cache_dir=cache))
    assert_begins_with(tmp_path / "run", str(base))
    assert len(list((tmp_path / "node").glob("*/*.safetensors"))) == int(published)
    assert "score.weight" in caplog.text
    began = weights(str(tmp_path / "run"))
    assert began["score.weight"].std() > 0


def test_mtp_layers_that_the_run_has_not_are_not_read(tiny_data: TinyData, tmp_path: Path, base: Path) -> None:
    model = tiny_config(vocab_size=VOCAB_SIZE, num_nextn_predict_layers=0)
    train(start(tiny_data, tmp_path / "run", str(base), model=model.model_dump()))
    assert_begins_with(tmp_path / "run", str(base), without=(f"model.layers.{model.num_hidden_layers}.",))


def test_a_score_model_begins_with_a_base_models_trunk_and_no_base_with_a_score_model(
    tiny_data: TinyData, tmp_path: Path, base: Path
) -> None:
    """From a checkpoint, from a published base, and from a published score model, whose head is taken, too."""
    fields = tiny_config(vocab_size=VOCAB_SIZE, num_nextn_predict_layers=0, lm_head=False, heads={"score": 1})
    config = with_ids_of(fields, Tokenizer.load(tiny_data.tokenizer))
    published = export_run(base, tmp_path / "base", dtype="fp32").directory
    for source in (base, published):
        model = GlmMoe.create(config, seed=7)
        drawn = model.score.weight.clone()
        load_initial_weights(source, model.state_dict(), config, "none")
        assert torch.equal(model.score.weight, drawn)
        expected = weights(str(base))
        assert all(torch.equal(t, expected[n]) for n, t in model.state_dict().items() if n != "score.weight")
    export_hf(model.state_dict(), config, tmp_path / "score", dtype=torch.float32)
    other = GlmMoe.create(config, seed=8)
    load_initial_weights(tmp_path / "score", other.state_dict(), config, "none")
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in other.state_dict().items())
    with pytest.raises(ConfigError, match="has lm_head = False, but the run's model has True; use its model section"):
        train(start(tiny_data, tmp_path / "run", str(tmp_path / "score")))
    critic = config.model_copy(update={"heads": {"value": 1}})
    load_initial_weights(tmp_path / "score", GlmMoe.create(critic).state_dict(), critic, "none")


@pytest.mark.parametrize(
    ("source", "model", "complaint"),
    [
        ("{base}/nothing", {}, r"^init_from: .*/nothing: no such directory"),
        ("{base}@3", {}, r"^init_from: .*@3: no step-00000003"),
        ("{base}", {"hidden_size": 32}, r"^init_from: .* has hidden_size = 48, but the run's model has 32"),
        ("{base}", {"num_experts_per_tok": 1}, r"has num_experts_per_tok = \d+, but the run's model has 1"),
    ],
)
def test_it_is_refused_before_a_model_is_built(
    source: str,
    model: dict[str, int],
    complaint: str,
    tiny_data: TinyData,
    tmp_path: Path,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glmforge.backend.native.NativeBackend.build", lambda *_: pytest.fail("a model was built"))
    model = tiny_config(vocab_size=VOCAB_SIZE).model_dump() | model
    with pytest.raises((CheckpointError, ConfigError), match=complaint):
        train(start(tiny_data, tmp_path / "run", source.format(base=base), model=model))
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_begun_needs_its_base_no_more(tiny_data: TinyData, tmp_path: Path, base: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(base, moved)
    config = start(tiny_data, tmp_path / "run", str(moved), checkpoint={"every_steps": 1, "background": False})
    train(config)
    shutil.rmtree(moved)
    longer = config.model_copy(update={"phases": [config.phases[0].model_copy(update={"steps": 2})]})
    assert train(longer).step == 2


def test_what_is_damaged_is_refused(tiny_data: TinyData, tmp_path: Path, base: Path) -> None:
    copy = tmp_path / "copy" / "step-00000002"
    shutil.copytree(base / "checkpoints" / "step-00000002", copy)
    shard = next(copy.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is incomplete"):
        train(start(tiny_data, tmp_path / "run", str(copy)))
