"""Checkpoints of several ranks: sharded tensors come back bit-equal on any number, and failures reach all."""

import logging
import resource
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from glmforge.checkpoint import (
    CheckpointMeta,
    StoredTensors,
    apply_retention,
    load_checkpoint,
    load_latest,
    load_rng_state,
    read_meta,
    save_checkpoint,
    verify_checkpoint,
)
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta
from helpers.distributed import run_ranks

# Shapes that divide evenly, unevenly, and leave ranks with nothing.
SHAPES = {"model.even": (8, 4), "model.uneven": (5, 3), "model.packed": (6, 4, 2), "optim.short": (1, 7)}


def full_tensors(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    full = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return full | {"optim.step": torch.tensor(float(step)), "model.bias": torch.randn(3, generator=generator)}


def sharded(full: dict[str, Tensor], replicas: int = 1) -> dict[str, Tensor]:
    """What FSDP (or HSDP, with several replicas) makes of it; without a group, plain tensors."""
    if not dist.is_initialized():
        return full
    world = dist.get_world_size()
    if replicas == 1:
        mesh, placements = init_device_mesh("cpu", (world,)), [Shard(0)]
    else:
        mesh, placements = init_device_mesh("cpu", (replicas, world // replicas)), [Replicate(), Shard(0)]
    return {n: distribute_tensor(t, mesh, placements) if n in SHAPES else t for n, t in full.items()}


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


def save_on_ranks(root: Path, step: int, replicas: int = 1) -> str:
    rng = torch.Generator().manual_seed(100 + dist.get_rank())
    meta = make_meta(step)
    path = save_checkpoint(root, step, sharded(full_tensors(step), replicas), meta, rng_state=rng.get_state())
    return str(path)


def load_on_ranks(root: Path, step: int, replicas: int = 1) -> CheckpointMeta:
    blank = {name: torch.full_like(t, -1) for name, t in full_tensors(step).items()}
    tensors = sharded(blank, replicas)
    _, meta = load_latest(root, tensors)
    loaded = whole(tensors)
    for name, expected in full_tensors(step).items():
        assert torch.equal(loaded[name], expected), name
    return meta


def reload_and_save(root: Path, step: int) -> None:
    """Load `step` on these ranks and save what was loaded as the next step, now sharded over these ranks."""
    tensors = sharded({name: torch.full_like(t, -1) for name, t in full_tensors(step).items()})
    load_latest(root, tensors)
    save_checkpoint(root, step + 1, tensors, make_meta(step + 1))


def test_4_to_2_to_1_ranks_is_bit_equal(tmp_path):
    paths = run_ranks(save_on_ranks, 4, tmp_path, 1)
    assert len(set(paths)) == 1
    assert read_meta(Path(paths[0])).world_size == 4
    run_ranks(reload_and_save, 2, tmp_path, 1)
    tensors = {name: torch.full_like(t, -1) for name, t in full_tensors(1).items()}
    path, meta = load_latest(tmp_path, tensors)
    assert (meta.step, meta.world_size) == (2, 2)
    assert all(torch.equal(tensors[name], expected) for name, expected in full_tensors(1).items())
    assert verify_checkpoint(path) == []


def test_1_to_4_ranks(tmp_path):
    save_checkpoint(tmp_path, 1, full_tensors(1), make_meta(1))
    metas = run_ranks(load_on_ranks, 4, tmp_path, 1)
    assert metas == [metas[0]] * 4


def change_replicas(root: Path) -> None:
    for step, (saved, loaded) in enumerate([(2, 1), (1, 2)], start=1):
        save_on_ranks(root, step, saved)
        load_on_ranks(root, step, loaded)


def test_hsdp_replicas_come_and_go(tmp_path):
    run_ranks(change_replicas, 4, tmp_path)


def save_large_replicated(root: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    sharded_twice = distribute_tensor(torch.zeros(1000, 100), mesh, [Replicate(), Shard(0)])
    save_checkpoint(root, 1, {"sharded": sharded_twice, "plain": torch.zeros(1000, 100)}, make_meta(1))


def test_replicas_are_stored_once(tmp_path):
    run_ranks(save_large_replicated, 4, tmp_path)
    stored = sum(shard.stat().st_size for shard in tmp_path.glob("step-*/*.distcp"))
    assert 800_000 <= stored < 1.05 * 800_000  # two tensors of 400 kB and torch's framing


def test_stored_tensors_are_put_together_from_all_shards(tmp_path):
    (path, *_) = run_ranks(save_on_ranks, 2, tmp_path, 1)
    stored = StoredTensors(Path(path), "model.")
    assert torch.equal(stored["packed"], full_tensors(1)["model.packed"])


def fsdp_round_trip(root: Path) -> None:
    """Parameters as fully_shard makes them, loaded in place."""

    def build(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
        return fully_shard(model)

    saved, loaded = build(0), build(1)
    save_checkpoint(root, 1, dict(saved.named_parameters()), make_meta(1))
    load_checkpoint(root / "step-00000001", dict(loaded.named_parameters()))
    x = torch.ones(2, 5)
    assert torch.equal(saved(x), loaded(x))


def test_fsdp_parameters(tmp_path):
    run_ranks(fsdp_round_trip, 2, tmp_path)


def save_and_load_rng_state(root: Path) -> list[int]:
    state = load_rng_state(Path(save_on_ranks(root, 1)))
    assert state is not None
    return state.tolist()


def test_each_rank_gets_its_own_generator_state(tmp_path):
    expected = [torch.Generator().manual_seed(100 + r).get_state().tolist() for r in range(2)]
    assert run_ranks(save_and_load_rng_state, 2, tmp_path) == expected


def fail_on_rank_1(root: Path) -> tuple[str, list[str]]:
    save_on_ranks(root, 1)
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() fails instead of ending the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    large = sharded(full_tensors(2) | {"model.even": torch.zeros(100_000, 4)})
    try:
        save_checkpoint(root, 2, large, make_meta(2))
    except CheckpointError as error:
        message = str(error)
    dist.barrier()
    names = sorted(path.name for path in root.iterdir())
    load_on_ranks(root, 1)
    return message, names


def test_one_rank_that_cannot_write_stops_all_with_the_same_words(tmp_path):
    outcomes = run_ranks(fail_on_rank_1, 2, tmp_path)
    message, names = outcomes[0]
    assert outcomes == [outcomes[0]] * 2
    assert f"{tmp_path}/step-00000002 was not saved: rank 1: file too large writing" in message
    assert "ulimit -f" in message
    assert message.endswith("The last complete checkpoint is step-00000001")
    assert "rank 0" not in message
    assert names == ["step-00000001"]


def fail_on_all(root: Path) -> str:
    try:
        save_on_ranks(root / "file" / "checkpoints", 1)
    except CheckpointError as error:
        return str(error)
    return ""


def test_what_rank_0_alone_tries_fails_on_all(tmp_path):
    (tmp_path / "file").write_text("")
    messages = run_ranks(fail_on_all, 2, tmp_path)
    assert len(set(messages)) == 1
    assert "rank 0: " in messages[0]


def load_after_damage(root: Path) -> tuple[int, bool]:
    """Step that is loaded after a bit of the newest one has flipped, and whether this rank says why."""
    save_on_ranks(root, 1)
    newest = Path(save_on_ranks(root, 2))
    if dist.get_rank() == 0:
        shard = newest / "__1_0.distcp"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    dist.barrier()
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("glmforge").addHandler(handler)
    meta = load_on_ranks(root, 1)
    return meta.step, any("__1_0.distcp" in record.getMessage() for record in records)


def test_a_damage_that_one_rank_finds_turns_all_to_the_older_one(tmp_path):
    assert run_ranks(load_after_damage, 2, tmp_path) == [(1, True), (1, False)]


def load_misfit(root: Path) -> str:
    path = Path(save_on_ranks(root, 1))
    tensors = sharded(full_tensors(1) | {"model.bias": torch.zeros(4)})
    try:
        load_checkpoint(path, tensors)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_misfit_is_the_same_error_on_all_ranks(tmp_path):
    messages = run_ranks(load_misfit, 2, tmp_path)
    assert len(set(messages)) == 1
    assert "model.bias is [3] there and [4] here" in messages[0]
    assert "rank" not in messages[0]


def save_and_retain(root: Path) -> list[str]:
    for step in (1, 2, 3):
        save_on_ranks(root, step)
    return [path.name for path in apply_retention(root, CheckpointConfig(keep_last=1))]


def test_retention_is_one_decision(tmp_path):
    deleted = run_ranks(save_and_retain, 2, tmp_path)
    assert deleted == [["step-00000002", "step-00000001"]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
