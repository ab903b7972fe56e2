"""A checkpoint of any layout loads into any other, bit for bit: what is on the disk knows nothing of axes."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from glmforge.checkpoint import StoredTensors, load_checkpoint, save_checkpoint
from glmforge.config.layout import Layout
from glmforge.errors import CheckpointError
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World
from helpers.checkpoints import make_meta
from helpers.distributed import run_ranks
from helpers.layouts import blank, full_tensors, lay_out, uneven_config

LAYOUTS = {
    "one": Layout(),
    "pp fsdp tp ep": Layout(pp=2, dp_shard=2, tp=2, ep=2),
    "hsdp tp ep": Layout(dp_replicate=2, dp_shard=2, tp=2, ep=2),
    "fsdp": Layout(dp_shard=4),
    "cp tp ep": Layout(cp=2, tp=2, ep=4),
    "fsdp tp": Layout(dp_shard=4, tp=2),
}

PAIRS = [
    ("one", "pp fsdp tp ep"),
    ("pp fsdp tp ep", "hsdp tp ep"),
]
MORE_PAIRS = [
    ("fsdp tp", "cp tp ep"),
    ("pp fsdp tp ep", "one"),
    ("cp tp ep", "pp fsdp tp ep"),
    ("hsdp tp ep", "fsdp"),
]


def full_state() -> dict[str, Tensor]:
    """What a run saves, whole: weights and router biases, a moment and a step count of each weight."""
    config = uneven_config()
    weights, moments = full_tensors(config, seed=0), full_tensors(config, seed=1)
    steps = {f"optim.step.{name}": torch.tensor(float(len(name))) for name in weights}
    return _with_prefix("model.", weights) | _with_prefix("optim.moment.", moments) | steps


def state_of_rank(world: World) -> dict[str, Tensor]:
    """This rank's part of it. The step counts are plain, on every rank that has the weight."""
    config, full = uneven_config(), full_state()
    weights = lay_out(full_tensors(config, seed=0), config, world)
    moments = lay_out(full_tensors(config, seed=1), config, world)
    steps = {f"optim.step.{name}": full[f"optim.step.{name}"].clone() for name in weights}
    return _with_prefix("model.", weights) | _with_prefix("optim.moment.", moments) | steps


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def make_world(layout: Layout) -> World:
    return World.join(layout, torch.device("cpu")) if layout.world_size > 1 else World.single("cpu")


def save(root: Path, layout: Layout) -> None:
    """Save this rank's part; to put a tensor together for that is an error."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a tensor was gathered")

    tensors = state_of_rank(make_world(layout))
    DTensor.full_tensor = DTensor.redistribute = refuse  # type: ignore[method-assign]
    save_checkpoint(root, 1, tensors, make_meta(1))


def load_and_compare(path: Path, layout: Layout) -> None:
    tensors = blank(state_of_rank(make_world(layout)))
    load_checkpoint(path, tensors)
    expected = full_state()
    for name, tensor in tensors.items():
        local, offsets = local_chunk(tensor)
        box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, local.shape, strict=True))
        assert torch.equal(local, expected[name][box]), name


def run(fn: Callable[..., object], layout: Layout, *args: object) -> list[object]:
    return run_ranks(fn, layout.world_size, *args, init_group=layout.world_size > 1)


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint that a layout saves; each is made once."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            root = tmp_path_factory.mktemp("layout")
            run(save, LAYOUTS[name], root, LAYOUTS[name])
            made[name] = root / "step-00000001"
        return made[name]

    return make


@pytest.mark.parametrize(
    ("saved", "loaded"), [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.full) for pair in MORE_PAIRS)]
)
def test_saved_in_one_layout_loaded_in_another(saved: str, loaded: str, checkpoint_of: Callable[[str], Path]) -> None:
    run(load_and_compare, LAYOUTS[loaded], checkpoint_of(saved), LAYOUTS[loaded])


@pytest.mark.parametrize("name", ["pp fsdp tp ep", pytest.param("hsdp tp ep", marks=pytest.mark.full)])
def test_all_of_it_is_stored_and_once(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    stored, expected = StoredTensors(checkpoint_of(name)), full_state()
    assert set(stored) == set(expected)
    for name_, metadata in stored._stored.items():
        volume = sum(chunk.sizes.numel() for chunk in metadata.chunks)
        assert volume == expected[name_].numel(), name_


def bytes_written(root: Path) -> int:
    """How much this rank writes in a layout where most is held by two ranks and some by four."""
    world = make_world(Layout(dp_replicate=2, dp_shard=2, tp=2, ep=2))
    tensors = lay_out(full_tensors(LARGER), LARGER, world)
    path = save_checkpoint(root, 1, tensors, make_meta(1))
    return sum(file.stat().st_size for file in path.glob(f"__{dist.get_rank()}_*"))


LARGER = uneven_config(hidden_size=96, moe_intermediate_size=64, vocab_size=512, head_dim=16)


def test_the_ranks_that_hold_a_part_share_the_writing(tmp_path: Path) -> None:
    written = run_ranks(bytes_written, 8, tmp_path)
    total = sum(tensor.nbytes for tensor in full_tensors(LARGER).values())
    assert sum(written) < 1.25 * total  # about 200 parts with 1.5 kB each of torch's framing on top
    assert max(written) < 1.1 * sum(written) / 8  # parts of up to 49 kB cannot be dealt out more evenly


def load_changed(path: Path) -> list[str]:
    """What is said when one stage of four ranks lacks a tensor, has another one, or has one of another shape."""
    layout = Layout(pp=2, dp_shard=2)
    world = make_world(layout)
    last = world.axis_rank("pp") == 1
    messages = []
    lacking, extra, other = (blank(state_of_rank(world)) for _ in range(3))
    if last:
        del lacking["model.lm_head.weight"]
        extra["model.reward_head.weight"] = torch.zeros(3)
        other["optim.step.lm_head.weight"] = torch.zeros(2)
    for tensors in (lacking, extra, other):
        try:
            load_checkpoint(path, tensors)
        except CheckpointError as error:
            messages.append(str(error))
        assert all((local_chunk(tensor)[0] == -77).all() for name, tensor in blank(tensors).items())
    return messages


def test_misfits_are_those_of_all_ranks_together(checkpoint_of: Callable[[str], Path]) -> None:
    outcomes = run_ranks(load_changed, 4, checkpoint_of("one"))
    assert outcomes == [outcomes[0]] * 4
    lacking, extra, other = outcomes[0]
    assert lacking.endswith("it has 1 tensor that this run lacks: model.lm_head.weight")
    assert extra.endswith("it lacks 1 tensor: model.reward_head.weight")
    assert other.endswith("1 tensor with another shape: optim.step.lm_head.weight is [] there and [2] here")


def fail_to_read(path: Path) -> str:
    """The error of a rank whose own reading works, when another's does not."""
    tensors = blank(state_of_rank(make_world(LAYOUTS["fsdp"])))
    if dist.get_rank() == 2:
        from glmforge.checkpoint.format.read import CachingReader

        def refuse(*_: object) -> NoReturn:
            raise OSError(5, "input/output error")

        CachingReader.read_data = refuse  # type: ignore[method-assign]
    try:
        load_checkpoint(path, tensors)
    except CheckpointError as error:
        return str(error)
    return ""


def test_one_rank_that_cannot_read_stops_all(checkpoint_of: Callable[[str], Path]) -> None:
    messages = run_ranks(fail_to_read, 4, checkpoint_of("one"))
    assert messages == ["rank 2: input/output error"] * 4
