"""The same weights, states of zeros, and a run that goes on from there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from glmforge.checkpoint import StoredTensors, load_checkpoint, read_meta, reset, save_checkpoint, verify_checkpoint
from glmforge.checkpoint.reset import reset_optimizer
from glmforge.checkpoint.source_files import read_files, stored_files
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.model.transformer import GlmMoe
from glmforge.optim.optimizer import build_optimizer
from helpers.checkpoints import make_meta
from helpers.models import tiny_config

STEP = 12


def run_config(**sections: Any) -> RunConfig:
    base: dict[str, Any] = {
        "name": "run",
        "model": tiny_config().model_dump(),
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "web", "path": "web"}]},
        "phases": [{"name": "main", "steps": 100, "seq_len": 32, "batch_size": 8}],
    }
    return RunConfig.model_validate(base | sections)


def tensors_of(config: RunConfig) -> dict[str, Tensor]:
    """What a run with that configuration saves and loads, at its start."""
    model = GlmMoe.create(config.model)
    optimizer = build_optimizer(model.named_parameters(), parameter_table(config.model), config.optim)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return weights | {f"optim.{name}": tensor for name, tensor in optimizer.state_dict().items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = run_config()
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(t.shape, generator=generator).to(t.dtype) for n, t in tensors_of(config).items()}
    meta = make_meta(
        STEP,
        config=config.model_dump(mode="json"),
        hooks={"metrics": {"a": 1}},
        skipped_samples={"main": [(8, 16)]},
        rollbacks=2,
        ephemeral=True,
        world_size=4,
        created="2020-01-01T00:00:00+00:00",
    )
    root = tmp_path_factory.mktemp("run") / "checkpoints"
    files = stored_files({"buffer": b"rollouts"}, 0, 1)
    return save_checkpoint(root, STEP, tensors, meta, rng_state=torch.arange(8, dtype=torch.uint8), files=files)


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "lamb"])
def test_a_run_of_any_optimizer_loads_the_weights_with_fresh_states(
    source: Path, tmp_path: Path, optimizer: str
) -> None:
    config = run_config(optim={"matrix_optimizer": optimizer})
    path, notes = reset_optimizer(source, tmp_path / "new", config=config)
    assert path == tmp_path / "new" / "checkpoints" / f"step-{STEP:08d}"
    assert verify_checkpoint(path) == []
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in tensors_of(config).items()}
    meta = load_checkpoint(path, tensors, config=config.model_dump(mode="json"))
    stored = StoredTensors(source)
    for name, tensor in tensors.items():
        expected = stored[name] if name.startswith("model.") else torch.zeros_like(tensor)
        assert torch.equal(tensor, expected), name
    assert meta.config["optim"]["matrix_optimizer"] == optimizer
    assert [note.split(" was")[0] for note in notes] == ["optim.matrix_optimizer"] * (optimizer != "muon")


def test_the_position_is_kept_with_all_that_belongs_to_it(source: Path, tmp_path: Path) -> None:
    before, after = read_meta(source), read_meta(reset_optimizer(source, tmp_path).path)
    differing = {name for name, value in after if value != getattr(before, name)}
    assert differing <= {"ephemeral", "created", "git_revision", "versions"}
    assert {"ephemeral", "created"} <= differing
    assert (after.ephemeral, after.step, after.world_size, after.rollbacks) == (False, STEP, 4, 2)
    rng = StoredTensors(tmp_path / "checkpoints" / f"step-{STEP:08d}", "rng.")
    assert torch.equal(rng["00000"], torch.arange(8, dtype=torch.uint8))
    assert read_files(tmp_path / "checkpoints" / f"step-{STEP:08d}", 0, 1) == [{"buffer": b"rollouts"}]


def test_at_position_zero_a_new_run_begins(source: Path, tmp_path: Path) -> None:
    # Another seed and another phase would be refused at the old position.
    phases = [{"name": "other", "steps": 5, "seq_len": 16, "batch_size": 2}]
    config = run_config(seed=9, phases=phases)
    path, _ = reset_optimizer(source, tmp_path, config=config, position="zero")
    meta = read_meta(path)
    assert path.name == "step-00000000"
    assert (meta.step, meta.phase, meta.tokens_consumed, meta.samples_consumed) == (0, "other", 0, {})
    assert (meta.hooks, meta.skipped_samples, meta.rollbacks, meta.data_fingerprint) == ({}, {}, 0, {})
    assert meta.tokenizer_fingerprint == read_meta(source).tokenizer_fingerprint
    assert not list(StoredTensors(path, "rng."))
    assert read_files(path, 0, 1) == []
    tensors = tensors_of(config)
    load_checkpoint(path, tensors, config=config.model_dump(mode="json"))
    assert torch.equal(tensors["model.lm_head.weight"], StoredTensors(source)["model.lm_head.weight"])
    with pytest.raises(CheckpointError, match="seed was 0 and is 9"):
        reset_optimizer(source, tmp_path / "keep", config=config)


def test_a_run_gives_its_newest_checkpoint(source: Path, tmp_path: Path) -> None:
    assert reset_optimizer(source.parents[1], tmp_path / "checkpoints").path == tmp_path / "checkpoints" / source.name


def test_what_a_run_would_prefer_is_not_hidden(source: Path, tmp_path: Path) -> None:
    contents = {file.name: file.read_bytes() for file in source.iterdir()}
    with pytest.raises(
        CheckpointError,
        match=r"holds step-00000012, which a run would resume from instead of "
        r"step-00000012",
    ):
        reset_optimizer(source, source.parents[1])
    with pytest.raises(
        CheckpointError,
        match=r"holds step-00000012, which a run would resume from instead of "
        r"step-00000000",
    ):
        reset_optimizer(source, source.parent, position="zero")
    assert {file.name: file.read_bytes() for file in source.iterdir()} == contents


def test_another_model_is_refused(source: Path, tmp_path: Path) -> None:
    config = run_config(model=tiny_config(n_routed_experts=4).model_dump())
    with pytest.raises(CheckpointError, match=r"does not fit that configuration: model\.n_routed_experts was 8 and is"):
        reset_optimizer(source, tmp_path, config=config, position="zero")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        if done == 20:
            raise OSError(28, "no space left on device")

    with pytest.raises(CheckpointError, match="no space left on device"):
        reset_optimizer(source, tmp_path, advance=fail)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_memory_holds_one_file_at_a_time(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[StorageWeakRef, int]] = []
    alive: list[int] = []
    make = reset.LazyPlanner.lookup_object

    def lookup_object(self: Any, index: Any) -> Tensor:
        tensor = make(self, index)
        made.append((StorageWeakRef(tensor.untyped_storage()), tensor.nbytes))
        alive.append(sum(num_bytes for storage, num_bytes in made if not storage.expired()))
        return tensor

    monkeypatch.setattr(reset.LazyPlanner, "lookup_object", lookup_object)
    monkeypatch.setattr(reset, "_FILE_BYTES", 10_000)
    path = reset_optimizer(source, tmp_path).path
    largest = max(num_bytes for _, num_bytes in made)
    assert sum(num_bytes for _, num_bytes in made) > 10 * largest
    # A file is cut when it has reached its size, so one tensor may go beyond; another is the last of the file before.
    assert max(alive) < 10_000 + 2 * largest
    assert verify_checkpoint(path) == []
    assert len(list(path.glob("*.distcp"))) > 20
    stored = StoredTensors(source, "model.")
    assert all(torch.equal(tensor, stored[name]) for name, tensor in StoredTensors(path, "model.").items())
