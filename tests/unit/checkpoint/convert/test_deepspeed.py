"""Universal checkpoints without DeepSpeed: ours there and back bit by bit, and files from outside that are refused.

What DeepSpeed itself writes and loads is in tests/backends/deepspeed.
"""

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor
from typer.testing import CliRunner

from glmforge.checkpoint import StoredTensors, read_meta, save_checkpoint, verify_checkpoint
from glmforge.checkpoint.convert.deepspeed import deepspeed_to_hf, export_deepspeed, import_deepspeed
from glmforge.checkpoint.format.torch_file import TorchFile, field, reading
from glmforge.checkpoint.reset import state_specs, weight_specs
from glmforge.cli.checkpoint import app
from glmforge.config import RunConfig, dump_config
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta
from helpers.models import tiny_config
from helpers.tiny_data import TinyData

NAME = "model.layers.1.mlp.experts.down_proj"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
PHASES = [
    {"name": "first", "steps": 2, "seq_len": 32, "batch_size": 8},
    {"name": "second", "steps": 4, "seq_len": 64, "batch_size": 4},
]


def quiet(done: int, total: int) -> None:
    pass


def run_of(tiny_data: TinyData, directory: Path, **sections: Any) -> RunConfig:
    optim = {"matrix_optimizer": "adamw", "lr": 1e-3, "schedule": "constant", "warmup_steps": 5}
    return tiny_data.run_config(directory, **({"phases": PHASES, "optim": optim} | sections))


@pytest.fixture(scope="module")
def saved(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """A run that has made 3 steps, 16 + 4 samples."""
    directory = tmp_path_factory.mktemp("run")
    config = run_of(tiny_data, directory)
    generator = torch.Generator().manual_seed(0)
    specs = weight_specs(config) | state_specs(config)
    tensors = {name: torch.randn(spec.shape, generator=generator) for name, spec in specs.items()}
    tensors |= {name: torch.tensor(3.0) for name in tensors if name.startswith("optim.step.")}
    meta = make_meta(
        3,
        phase="second",
        samples_consumed={"first": 16, "second": 4},
        tokens_consumed=16 * 32 + 4 * 64,
        config=config.model_dump(mode="json"),
    )
    save_checkpoint(directory / "checkpoints", 3, tensors, meta)
    return config, directory


@pytest.fixture(scope="module")
def universal(saved: tuple[RunConfig, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deepspeed")
    export_deepspeed(saved[1], out, quiet)
    return out


@pytest.fixture
def copy(universal: Path, tmp_path: Path) -> Path:
    return shutil.copytree(universal, tmp_path / "copy")


def step_of(out: Path) -> Path:
    return out / "global_step3_universal"


def test_there_and_back_is_bit_equal(
    saved: tuple[RunConfig, Path], universal: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    config = run_of(tiny_data, tmp_path / "again")
    path = import_deepspeed(universal, config, tmp_path / "again", quiet)
    assert verify_checkpoint(path) == []
    before, after = StoredTensors(saved[1] / "checkpoints/step-00000003"), StoredTensors(path)
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_run_goes_on_at_that_sample_of_its_own_order(universal: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    config = run_of(tiny_data, tmp_path)
    meta = read_meta(import_deepspeed(universal, config, tmp_path, quiet))
    assert (meta.step, meta.phase, meta.samples_consumed) == (3, "second", {"first": 16, "second": 4})
    assert meta.tokens_consumed == 16 * 32 + 4 * 64
    assert meta.tokenizer_fingerprint == Tokenizer.load(tiny_data.tokenizer).fingerprint
    curriculum = Curriculum(config, {"text": TokenShard(tiny_data.train)})
    assert meta.data_fingerprint == curriculum.fingerprint()
    assert curriculum.load_state_dict(meta.mixtures, meta.samples_consumed) == []


def test_the_learning_rate_is_that_of_the_next_step(universal: Path) -> None:
    """Warm-up ends with step 5, after 28 samples of which 12 are of 64 tokens; the next step ends after 1,024."""
    path = step_of(universal) / "zero/optimizer_state.pt"
    with reading(path) as stream:
        groups = field(TorchFile(path, stream).root, "param_groups")
    assert field(groups, 0, "lr") == pytest.approx(1e-3 * (16 * 32 + 8 * 64) / (16 * 32 + 12 * 64))


def remove(path: str) -> Callable[[Path], None]:
    return lambda out: (step_of(out) / path).unlink()


def change(path: str, edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    def changed(out: Path) -> None:
        file = step_of(out) / path
        torch.save(edit(torch.load(file, weights_only=True)), file)

    return changed


def lead_out(out: Path) -> None:
    shutil.copytree(step_of(out), out.parent / "elsewhere")
    (out / "latest_universal").write_text("../elsewhere")


def truncate(out: Path) -> None:
    file = step_of(out) / "zero" / NAME / "fp32.pt"
    os.truncate(file, file.stat().st_size // 2)


def overlap(content: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tensor of 2 ** 50 elements in four bytes."""
    return {"param": torch.zeros(1).expand(2**50)}


def compress(out: Path) -> None:
    import zipfile

    file = step_of(out) / "zero" / NAME / "fp32.pt"
    with zipfile.ZipFile(file) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in members.items():
            archive.writestr(info.filename, content)


MODEL = "mp_rank_00_model_states.pt"
WEIGHTS = f"zero/{NAME}/fp32.pt"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "latest leads out": (lead_out, "latest_universal: names"),
    "not there": (lambda out: shutil.rmtree(step_of(out)), "not a directory beside it"),
    "no model file": (lambda out: [remove(MODEL)(out), remove(f"zero_pp_rank_0_{MODEL}")(out)], "is it a DeepSpeed"),
    "model file is text": (lambda out: (step_of(out) / MODEL).write_text("text"), "not a tensor archive"),
    "weights missing": (remove(WEIGHTS), f"0 of 12,288 elements of fp32 of {NAME}"),
    "moments missing": (remove(f"zero/{NAME}/exp_avg_sq.pt"), f"0 of 12,288 elements of exp_avg_sq of {NAME}"),
    "truncated": (truncate, f"{NAME}/fp32.pt: not a tensor archive"),
    "compressed": (compress, f"{NAME}/fp32.pt: an archive without a plain byteorder"),
    "another shape": (change(WEIGHTS, lambda c: {"param": c["param"][:, :1]}), "of 12,288 elements of fp32"),
    "overlapping": (change(WEIGHTS, overlap), f"{NAME}/fp32.pt: a tensor larger than its storage"),
    "no tensor": (change(WEIGHTS, lambda c: {"param": [1]}), f"{NAME}/fp32.pt: a header that is not a tensor's"),
    "no position": (change(MODEL, lambda c: c | {"global_steps": -1}), f"{MODEL}: has another value"),
    "name leads out": (change(MODEL, lambda c: c | {"param_shapes": [{"../x": (1,)}]}), "is not a parameter's name"),
    "pipeline": (change(MODEL, lambda c: c | {"checkpoint_parallel_dimensions": {"pp_degree": 2}}), "pipeline"),
    "frozen": (change(MODEL, lambda c: c | {"frozen_param_shapes": {"a": (1,)}}), "frozen parameters"),
    "bias missing": (change(MODEL, lambda c: c | {"buffer_names": []}), f"{BIAS} is absent, and "),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_is_refused_in_one_line(case: str, copy: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    damage, words = DAMAGE[case]
    damage(copy)
    with pytest.raises(CheckpointError, match=words) as caught:
        import_deepspeed(copy, run_of(tiny_data, tmp_path / "run"), tmp_path / "run", quiet)
    assert len(str(caught.value).splitlines()) == 1
    assert not list((tmp_path / "run").rglob("step-*"))


class Planted:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


def test_planted_code_does_not_run(copy: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    """It is in the way in a tensor's place, and elsewhere, as a user's own client state may be, it is passed over."""
    file = step_of(copy) / MODEL
    content = torch.load(file, weights_only=True)
    torch.save(content | {"args": Planted(tmp_path / "ran")}, file)
    import_deepspeed(copy, run_of(tiny_data, tmp_path / "run"), tmp_path / "run", quiet)
    torch.save({"param": Planted(tmp_path / "ran")}, step_of(copy) / WEIGHTS)
    with pytest.raises(CheckpointError, match="not a tensor's"):
        import_deepspeed(copy, run_of(tiny_data, tmp_path / "b"), tmp_path / "b", quiet)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"optim": {"matrix_optimizer": "muon"}}, "its optimizer keeps momentum"),
        (
            {"model": tiny_config(vocab_size=512, num_nextn_predict_layers=0).model_dump()},
            r"model.layers.4.* is .*, and absent in the model",
        ),
        (
            {"model": tiny_config(vocab_size=512, moe_intermediate_size=64).model_dump()},
            r"down_proj is \(8, 48, 32\), and \(8, 48, 64\) in the model",
        ),
        ({"phases": PHASES[:1]}, "had 20 samples, 4 more than"),
    ],
    ids=["muon", "MTP", "width", "phases"],
)
def test_another_run_is_refused(
    sections: dict[str, Any], words: str, universal: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        import_deepspeed(universal, run_of(tiny_data, tmp_path, **sections), tmp_path, quiet)


def test_an_existing_export_is_kept(saved: tuple[RunConfig, Path], copy: Path) -> None:
    with pytest.raises(CheckpointError, match="exists"):
        export_deepspeed(saved[1], copy, quiet)


def test_hugging_face_of_a_glm_needs_no_transformers(
    universal: Path, saved: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    from glmforge.checkpoint.convert import HfTensors, export_hf

    weights = StoredTensors(saved[1] / "checkpoints/step-00000003", "model.")
    export_hf(weights, saved[0].model, tmp_path / "direct", dtype=torch.float32)
    deepspeed_to_hf(universal, tmp_path / "direct", tmp_path / "hf", torch.float32)
    found = HfTensors(tmp_path / "hf")
    assert set(found) == set(weights)
    assert all(torch.equal(found[name], weights[name]) for name in found)


def test_objects_and_ordered_dicts_are_opened_one_level_at_a_time(tmp_path: Path) -> None:
    modules = OrderedDict(a=torch.arange(6.0)[2:5])
    modules._metadata = {"version": 1}  # as that of a state_dict
    torch.save([{"x": 1.5, "y": modules}], tmp_path / "file.pt")
    with reading(tmp_path / "file.pt") as stream:
        file = TorchFile(tmp_path / "file.pt", stream)
        assert field(file.root, 0, "x") == 1.5
        tensor = file.tensor(field(file.root, 0, "y", "a"))
    assert tensor.read().tolist() == [2, 3, 4]
    assert tensor.read(1, 2).tolist() == [3, 4]
    with pytest.raises(CheckpointError, match="fewer elements"):
        tensor.read(2, 2)


def test_the_commands(universal: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    (tmp_path / "run.yaml").write_text(dump_config(run_of(tiny_data, tmp_path / "run")))
    given = run("from-deepspeed", universal, tmp_path / "run", "--config", tmp_path / "run.yaml")
    assert given.output.strip().endswith("run/checkpoints/step-00000003"), given.output
    back = run("to-deepspeed", tmp_path / "run", tmp_path / "out")
    assert back.output.strip().endswith("out/global_step3_universal"), back.output
    assert (tmp_path / "out/latest_universal").read_text().strip() == "global_step3_universal"
    for wrong in ([], ["--config", tmp_path / "run.yaml", "--hf", tmp_path]):
        refused = run("from-deepspeed", universal, tmp_path / "other", *wrong)
        assert refused.exit_code == 2
        assert "either --config or --hf" in refused.output
