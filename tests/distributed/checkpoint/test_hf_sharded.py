"""Hugging Face files into and out of a model that is spread over ranks, against the same done with the whole model."""

import json
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from glmforge.checkpoint.convert import export_hf, export_hf_sharded, hf_model_config, import_hf, load_hf_into
from glmforge.checkpoint.convert import hf_export_sharded as sharded_module
from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.config.layout import Layout
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World
from helpers.distributed import run_ranks
from helpers.layouts import blank, full_tensors, lay_out, uneven_config

LAYOUTS = {
    "one": Layout(),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
    "tp x ep": Layout(cp=2, tp=2, ep=4),
    "pp x fsdp x tp x ep": Layout(pp=2, dp_shard=2, tp=2, ep=2),
}
MTP = "model.layers.3."


def make_world(layout: Layout) -> World:
    return World.join(layout, torch.device("cpu")) if layout.world_size > 1 else World.single("cpu")


def run(fn: Callable[..., Any], layout: Layout, *args: object) -> list[Any]:
    return run_ranks(fn, layout.world_size, *args, init_group=layout.world_size > 1)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def edit(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a directory's only shard; its index follows."""
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(tensors, file.name)})
    )


def whole(directory: Path, dtype: torch.dtype | None = None, with_mtp: bool = True) -> dict[str, Tensor]:
    return dict(import_hf(directory, dtype=dtype, with_mtp=with_mtp)[1])


# ---- import


def load(directory: Path, layout: Layout, config: ModelConfig, dtype: torch.dtype, keep: bool = False) -> ModelConfig:
    """Load into this rank's part and compare it, bit for bit, with that slice of what `import_hf` reads."""
    return _load_and_compare(directory, config, make_world(layout), dtype, keep)


def _load_and_compare(
    directory: Path, config: ModelConfig, world: World, dtype: torch.dtype, keep: bool = False
) -> ModelConfig:
    tensors = blank(lay_out(full_tensors(config, dtype=dtype), config, world))
    with counted_reads() as reads:
        read_config = load_hf_into(directory, tensors, config, keep_absent_mtp=keep)
    expected = whole(directory, dtype, config.num_nextn_predict_layers > 0)
    num_kept = 0
    for name, tensor in tensors.items():
        local, offsets = local_chunk(tensor)
        box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, local.shape, strict=True))
        if name in expected:
            assert torch.equal(local, expected[name][box]), name
            num_kept += local.numel()
        else:
            assert (local == -77).all(), name
    # Not more is read than kept, but for the repeated embedding and head, which are compared.
    repeated = sum(local_chunk(tensors[name])[0].numel() for name in REPEATED if name in tensors)
    assert sum(reads) in (num_kept, num_kept + repeated)
    return read_config


REPEATED = ("model.embed_tokens.weight", "lm_head.weight")


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    """Numbers of elements of all slices that are read; reading a tensor whole is an error."""
    numbers: list[int] = []
    read, read_part = Shards.read, Shards.read_part

    def counting(self: Shards, name: str, index: tuple[slice, ...], buffer: Tensor | None = None) -> Tensor:
        part = read_part(self, name, index, buffer)
        numbers.append(part.numel())
        return part

    def refuse(self: Shards, name: str) -> NoReturn:
        raise AssertionError(f"{name} is read whole")

    Shards.read, Shards.read_part = refuse, counting  # type: ignore[method-assign]
    try:
        yield numbers
    finally:
        Shards.read, Shards.read_part = read, read_part  # type: ignore[method-assign]


def pack(tensors: dict[str, Tensor]) -> None:
    """Experts as one tensor per layer, as transformers has them in memory."""
    config = uneven_config()
    tensors.clear()
    tensors |= full_tensors(config)


VARIANTS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "packed experts": pack,
    "stored in bf16": lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}),
}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["to fp32", "to bf16"])
def test_other_forms_on_disk(change: Callable[[dict[str, Tensor]], object], dtype: torch.dtype, tmp_path: Path) -> None:
    config = uneven_config()
    export_hf(full_tensors(config), config, tmp_path / "hf", dtype=torch.float32)
    edit(tmp_path / "hf", change)
    run(load, LAYOUTS["tp x ep"], tmp_path / "hf", LAYOUTS["tp x ep"], config, dtype)


def test_a_repeated_embedding_is_compared(tmp_path: Path) -> None:
    config, layout = uneven_config(), Layout(pp=2, dp_shard=2)
    export_hf(full_tensors(config), config, tmp_path / "hf", dtype=torch.float32, duplicate_mtp_head=True)
    run(load, layout, tmp_path / "hf", layout, config, torch.float32)
    # The last row lies on the second rank of each stage: the first ones must hear of it.
    edit(tmp_path / "hf", lambda tensors: tensors[MTP + "embed_tokens.weight"][-1].add_(1))
    messages = run(refusal, layout, tmp_path / "hf", layout, config)
    assert len(set(messages)) == 1
    assert f"{MTP}embed_tokens.weight differs from model.embed_tokens.weight" in messages[0]
    without = uneven_config(num_nextn_predict_layers=0)
    assert run(load, layout, tmp_path / "hf", layout, without, torch.float32) == [without] * 4


def refusal(directory: Path, layout: Layout, config: ModelConfig) -> str:
    """What `load_hf_into` says; a refusal of what the headers tell leaves all tensors as they were."""
    tensors = blank(lay_out(full_tensors(config), config, make_world(layout)))
    try:
        load_hf_into(directory, tensors, config)
    except CheckpointError as error:
        if "differs from" not in str(error):
            assert all((local_chunk(tensor)[0] == -77).all() for tensor in tensors.values())
        return str(error)
    return ""


EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
DEFECTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda t: t.pop(EXPERT), f"{EXPERT} missing, required by config.json"),
    "unexpected": (lambda t: t.update(extra=torch.zeros(1)), "extra in the files, but not in config.json's model"),
    "shape": (lambda t: t.update({EXPERT: torch.zeros(24, 12)}), f"{EXPERT} is [24, 12], but config.json implies"),
    "type": (lambda t: t.update({EXPERT: t[EXPERT].bfloat16()}), f"{EXPERT} is torch.bfloat16, "),
}


@pytest.mark.parametrize(("defect", "message"), DEFECTS.values(), ids=DEFECTS)
def test_what_import_refuses_is_refused_on_all_ranks(
    defect: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    config = uneven_config()
    export_hf(full_tensors(config), config, tmp_path / "hf", dtype=torch.float32)
    edit(tmp_path / "hf", defect)
    messages = run(refusal, Layout(pp=2), tmp_path / "hf", Layout(pp=2), config)
    assert len(set(messages)) == 1
    assert message in messages[0]


MODELS = {
    "depth": (uneven_config(num_hidden_layers=4), "has model.layers.3.enorm.weight"),
    "more layers": (
        uneven_config(num_hidden_layers=4, num_nextn_predict_layers=0),
        "lacks model.layers.3.input_layernorm.weight",
    ),
    "fewer layers": (uneven_config(num_hidden_layers=2, num_nextn_predict_layers=0), "which this run lacks"),
    "width": (uneven_config(vocab_size=86), "model.embed_tokens.weight is [84, 24] there and [86, 24] in this run"),
}


@pytest.mark.parametrize(("config", "message"), MODELS.values(), ids=MODELS)
def test_another_model_is_refused(config: ModelConfig, message: str, tmp_path: Path) -> None:
    there = uneven_config()
    export_hf(full_tensors(there), there, tmp_path / "hf", dtype=torch.float32)
    messages = run(refusal, Layout(pp=2), tmp_path / "hf", Layout(pp=2), config)
    assert len(set(messages)) == 1
    assert message in messages[0]


def test_mtp_layers_that_only_one_side_has(tmp_path: Path) -> None:
    with_mtp, without = uneven_config(), uneven_config(num_nextn_predict_layers=0)
    layout = Layout(pp=2)
    export_hf(full_tensors(with_mtp), with_mtp, tmp_path / "with", dtype=torch.float32)
    export_hf(full_tensors(with_mtp), with_mtp, tmp_path / "without", dtype=torch.float32, with_mtp=False)
    assert run(load, layout, tmp_path / "with", layout, without, torch.float32) == [without] * 2
    (message, other) = run(refusal, layout, tmp_path / "without", layout, with_mtp)
    assert message == other
    assert f"lacks MTP layer {MTP}" in message
    assert run(load, layout, tmp_path / "without", layout, with_mtp, torch.float32, True) == [without] * 2


# ---- export


def export(out_dir: Path, layout: Layout, config: ModelConfig, options: dict[str, Any]) -> list[str]:
    """Export this rank's part, and load it again; the files that this rank wrote."""
    written = []
    write_shard = sharded_module.write_shard

    def recording(file: Path, tensors: dict[str, Tensor]) -> None:
        written.append(file.name)
        write_shard(file, tensors)

    sharded_module.write_shard = recording
    sharded_module._EXCHANGE_BYTES = 8_000  # so that a shard takes several exchanges
    world = make_world(layout)
    export_hf_sharded(lay_out(full_tensors(config), config, world), config, out_dir, **options)
    if options.get("with_mtp", True):
        assert _load_and_compare(out_dir, config, world, torch.float32) == config
    return written


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_out_the_same_files_and_in_the_same_slices_as_the_whole_model(layout: Layout, tmp_path: Path) -> None:
    config, options = uneven_config(), {"max_shard_bytes": 4_500}
    export_hf(full_tensors(config), config, tmp_path / "whole", **options)
    written = run(export, layout, tmp_path / "sharded", layout, config, options)
    assert contents(tmp_path / "sharded") == contents(tmp_path / "whole")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "sharded", tmp_path / "whole"]
    counts = [len(files) for files in written]
    assert sum(counts) == len(list((tmp_path / "whole").glob("*.safetensors"))) > layout.world_size
    assert max(counts) - min(counts) <= 1


OPTIONS: dict[str, dict[str, Any]] = {
    "fp32, over an earlier one": {"dtype": torch.float32, "overwrite": True},
    "no mtp": {"with_mtp": False},
    "repeated head": {"duplicate_mtp_head": True, "max_shard_bytes": 9_000},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_those_of_the_whole_export(options: dict[str, Any], tmp_path: Path) -> None:
    config, layout = uneven_config(), Layout(pp=2, tp=2, ep=2)
    export_hf(full_tensors(config), config, tmp_path / "whole", **options)
    if "overwrite" in options:
        export_hf(full_tensors(config, seed=1), config, tmp_path / "sharded")
    run(export, layout, tmp_path / "sharded", layout, config, options)
    assert contents(tmp_path / "sharded") == contents(tmp_path / "whole")


def refused_exports(root: Path) -> list[str]:
    """What is said when a name, a shape, the directory does not fit, and when the disk refuses rank 1 alone."""
    config = uneven_config()
    world = make_world(Layout(pp=2))
    state = lay_out(full_tensors(config), config, world)
    lacking = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    misshaped = state | ({"model.norm.weight": torch.zeros(25)} if world.rank == 1 else {})
    messages = []

    def attempt(tensors: dict[str, Tensor], out_dir: Path) -> None:
        try:
            export_hf_sharded(tensors, config, out_dir, max_shard_bytes=30_000)
        except CheckpointError as error:
            messages.append(str(error))

    attempt(lacking, root / "hf")
    attempt(misshaped, root / "hf")
    attempt(state, root)
    if world.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() fails instead of ending the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    attempt(state, root / "hf")
    dist.barrier()
    assert not list(root.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return messages


def test_what_one_rank_cannot_do_is_refused_on_all_and_leaves_nothing_behind(tmp_path: Path) -> None:
    messages, others = run_ranks(refused_exports, 2, tmp_path)
    assert messages == others
    lacking, misshaped, taken, disk = messages
    assert lacking == "the model to export lacks lm_head.weight, which its configuration requires"
    assert misshaped.endswith("model.norm.weight is [25], expected [24]")
    assert "exists; choose another directory, or replace an earlier export with --force" in taken
    assert disk.startswith(f"{tmp_path}/hf was not written: rank 1: ")
    assert "File too large" in disk


def largest_holding(out_dir: Path, config: ModelConfig) -> tuple[int, int]:
    """Bytes of the largest shard that this rank has held, and of the most that it has sent or got at once."""
    shards, batches = [0], [0]
    write_shard, all_to_all = sharded_module.write_shard, sharded_module._all_to_all

    def write(file: Path, tensors: dict[str, Tensor]) -> None:
        shards.append(sum(tensor.nbytes for tensor in tensors.values()))
        write_shard(file, tensors)

    def exchange(outgoing: list[list[Tensor]], incoming: list[int]) -> list[Tensor]:
        batches.append(sum(incoming))
        batches.append(sum(chunk.nbytes for to_rank in outgoing for chunk in to_rank))
        return all_to_all(outgoing, incoming)

    sharded_module.write_shard, sharded_module._all_to_all = write, exchange
    sharded_module._EXCHANGE_BYTES = 8_000
    tensors = lay_out(full_tensors(config), config, make_world(LAYOUTS["tp x ep"]))
    export_hf_sharded(tensors, config, out_dir, max_shard_bytes=12_000)
    return max(shards), max(batches)


def test_a_rank_holds_one_shard_and_a_batch(tmp_path: Path) -> None:
    config = uneven_config()
    for shard, batch in run_ranks(largest_holding, 4, tmp_path / "hf", config):
        assert shard <= 12_000
        assert batch <= 8_000


def test_the_config_of_files_without_the_announced_mtp_layers(tmp_path: Path) -> None:
    config = uneven_config()
    export_hf(full_tensors(config), config, tmp_path / "hf", dtype=torch.float32)
    assert hf_model_config(tmp_path / "hf") == config
    edit(tmp_path / "hf", lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(MTP)])
    assert hf_model_config(tmp_path / "hf") == uneven_config(num_nextn_predict_layers=0)
