"""What loading a Hugging Face directory costs each rank, what it asks of the nodes, and copies on their own disks."""

import ctypes
import fcntl
import itertools
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from glmforge.checkpoint import collective
from glmforge.checkpoint.collective import run_each_unhurried
from glmforge.checkpoint.convert import export_hf, load_hf_into
from glmforge.checkpoint.convert import hf_node_copy as node_copy_module
from glmforge.checkpoint.convert.hf_load import NUM_READERS
from glmforge.checkpoint.convert.hf_node_copy import copy_to_node, noted_checksum
from glmforge.checkpoint.format.safetensors_read import BLOCK_BYTES
from glmforge.checkpoint.initial_weights import load_initial_weights
from glmforge.config.layout import Layout
from glmforge.errors import CheckpointError, ConfigError, GlmforgeError
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World
from helpers.distributed import run_ranks
from helpers.layouts import blank, full_tensors, lay_out, uneven_config

LARGE = uneven_config(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1024,
    moe_intermediate_size=512,
    n_routed_experts=16,
    head_dim=64,
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 MB of weights in bf16, in files of 20 MB."""
    directory = tmp_path_factory.mktemp("large") / "hf"
    export_hf(full_tensors(LARGE), LARGE, directory, dtype=torch.bfloat16, max_shard_bytes=20_000_000)
    assert sum(file.stat().st_size for file in directory.glob("*.safetensors")) > 100e6
    return directory


@pytest.fixture(scope="module")
def packed(large: Path) -> Path:
    """The same with experts as one tensor of 17 MB per layer and matrix, in one file."""
    directory = large.parent / "packed"
    directory.mkdir()
    shutil.copy(large / "config.json", directory)
    save_file(full_tensors(LARGE, dtype=torch.bfloat16), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


# ---- bytes and memory


def cost_of_loading(directory: Path, layout: Layout) -> tuple[int, int, int]:
    """Bytes that this rank keeps, as they are stored; those it read from tensors; how far its memory rose."""
    tensors = blank(lay_out(full_tensors(LARGE), LARGE, World.join(layout, torch.device("cpu"))))
    dist.barrier()
    read: list[int] = []
    preadv = os.preadv
    ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, or reading could use it unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmHWM")
    with mock.patch.object(os, "preadv", lambda *args: read.append(preadv(*args)) or read[-1]):
        load_hf_into(directory, tensors, LARGE)
    rise = memory("VmHWM") - before
    return sum(2 * local_chunk(tensor)[0].numel() for tensor in tensors.values()), sum(read), rise


def memory(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


@pytest.mark.parametrize(
    ("form", "layout", "surplus"),
    [
        ("large", Layout(dp_shard=4, ep=4), 1.0),
        pytest.param("packed", Layout(dp_replicate=2, dp_shard=2), 1.0, marks=pytest.mark.full),
        ("packed", Layout(dp_shard=2, tp=2), 2.0),
    ],
    ids=["experts", "hsdp", "tp"],
)
def test_a_rank_reads_its_slices_and_needs_room_for_some_blocks(
    form: str, layout: Layout, surplus: float, request: pytest.FixtureRequest
) -> None:
    """Of matrices that tp cuts by columns, whole rows are read: at most tp times what is kept."""
    directory = request.getfixturevalue(form)
    for kept, read, rise in run_ranks(cost_of_loading, 4, directory, layout):
        num_biases = 2 * 3 * LARGE.n_routed_experts  # fp32, so they have two bytes more
        assert kept <= read <= surplus * kept + num_biases
        assert kept > 20e6
        # Blocks of all readers, and 10 MB for threads, headers and lists. The rank's tensors, fp32, are there before.
        assert rise < NUM_READERS * BLOCK_BYTES + 10e6


def test_a_file_that_is_cut_off_while_it_is_read_is_named(large: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(large, tmp_path / "hf"))
    tensors, config = full_tensors(LARGE), LARGE
    victim = sorted(directory.glob("*.safetensors"))[-1]
    preadv = os.preadv

    def cut_off(*args: object) -> int:
        os.truncate(victim, 1000)
        return preadv(*args)  # type: ignore[arg-type]

    with (
        mock.patch.object(os, "preadv", cut_off),
        pytest.raises(CheckpointError, match=rf"{victim.name}: was truncated while it was"),
    ):
        load_hf_into(directory, tensors, config)


# ---- nodes


def small(directory: Path, seed: int = 0) -> Path:
    config = uneven_config()
    tensors = full_tensors(config, seed)
    export_hf(tensors, config, directory, dtype=torch.float32, max_shard_bytes=12_000)
    return directory


def on_node(number: int) -> None:
    """Let each rank be the only one of a node."""
    os.environ["LOCAL_RANK"] = "0"
    socket.gethostname = lambda: f"gpu{number:02d}"  # type: ignore[method-assign]


def complaint(root: Path) -> str:
    """What loading says on a node that sees the directory `root/<rank>`; "" if it loads."""
    rank = dist.get_rank()
    on_node(rank)
    try:
        load_small(root / str(rank))
    except CheckpointError as error:
        return str(error).replace(str(root / str(rank)), "DIR")
    return ""


def lose(directory: Path) -> None:
    (directory / "model-00002-of-00009.safetensors").unlink()


def revise(directory: Path) -> None:
    shutil.rmtree(directory)
    small(directory, seed=1)


def cut(directory: Path) -> None:
    os.truncate(directory / "model-00003-of-00009.safetensors", 1000)


def reword(directory: Path) -> None:
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(content | {"rope_theta": 2e4}))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "lacks a file": (lose, "node gpu02 (rank 2) lacks model-00002-of-00009.safetensors;"),
    "lacks all": (shutil.rmtree, "node gpu02 (rank 2) has no such files;"),
    "another revision": (revise, "node gpu02 (rank 2) has different contents in"),
    "cut off": (cut, "has model-00003-of-00009.safetensors of 1,000 bytes instead of "),
    "another configuration": (reword, "has config.json of "),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_node_with_other_files_is_named_on_all_ranks(
    change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    small(tmp_path / "0")
    for number in (1, 2):
        shutil.copytree(tmp_path / "0", tmp_path / str(number))
    assert run_ranks(complaint, 3, tmp_path) == ["", "", ""]
    change(tmp_path / "2")
    (said,) = set(run_ranks(complaint, 3, tmp_path))
    assert message in said
    assert "\n" not in said
    assert said.startswith("DIR: the nodes do not see the same files: node gpu02 (rank 2) ")
    assert "compared with node gpu00 (rank 0). Nothing was loaded" in said


def load_small(directory: Path, cache_dir: Path | None = None) -> dict[str, Tensor]:
    config = uneven_config()
    tensors = blank(full_tensors(config))
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        load_initial_weights(directory, tensors, config, "", cache_dir=cache_dir)
    except GlmforgeError:
        assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
        raise
    return tensors


def test_what_most_nodes_have_is_taken_for_right(tmp_path: Path) -> None:
    for number in range(3):
        small(tmp_path / str(number))
    shutil.rmtree(tmp_path / "0")
    (said,) = set(run_ranks(complaint, 3, tmp_path))
    assert "node gpu00 (rank 0) has no such files; compared with node gpu01 (rank 1)." in said


# ---- copies


def names(directory: Path) -> dict[str, int]:
    """Of the files that are there and whole, with their inodes."""
    return {file.name: file.stat().st_ino for file in directory.iterdir() if not file.name.startswith(".")}


def test_a_copy_is_loaded_in_place_of_the_directory(tmp_path: Path) -> None:
    directory, cache = small(tmp_path / "hf"), tmp_path / "node"
    loaded = load_small(directory, cache)
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in full_tensors(uneven_config()).items())
    (copy,) = (path for path in cache.iterdir() if path.is_dir())
    assert names(copy).keys() == names(directory).keys() - {"generation_config.json"}
    before = names(copy)
    (copy / "model-00002-of-00009.safetensors").unlink()
    (copy / "model-00003-of-00009.safetensors.partial").write_bytes(b"left by a process that was killed")
    assert copy_to_node(directory, cache) == copy
    after = names(copy)
    assert {name for name in after if after.get(name) != before.get(name)} <= {
        "model-00002-of-00009.safetensors",
        "model-00003-of-00009.safetensors.partial",
    }


def copy_on_node(directory: Path, cache: Path, num_nodes: int) -> list[str]:
    """Each node has a disk of its own; the files that this process copied."""
    rank = dist.get_rank()
    os.environ["LOCAL_RANK"] = str(rank // num_nodes)
    copied: list[str] = []
    copy = node_copy_module.copy_missing

    def copying(files: list[object], *args: object, **options: object) -> None:
        copied.append("asked")
        copy(files, *args, **options)  # type: ignore[arg-type]

    with mock.patch.object(node_copy_module, "copy_missing", copying):
        copy_to_node(directory, cache / str(rank % num_nodes))
    return copied


def test_one_process_of_each_node_copies(tmp_path: Path) -> None:
    directory = small(tmp_path / "hf")
    assert run_ranks(copy_on_node, 4, directory, tmp_path / "nodes", 2) == [["asked"], ["asked"], [], []]
    for number in range(2):
        (copy,) = (path for path in (tmp_path / "nodes" / str(number)).iterdir() if path.is_dir())
        for name in names(copy):
            assert (copy / name).read_bytes() == (directory / name).read_bytes()


def test_two_runs_that_start_at_once_wait_for_each_other(tmp_path: Path) -> None:
    directory, cache = small(tmp_path / "hf"), tmp_path / "node"
    held = []
    copy = node_copy_module.copy_missing

    def copying(*args: object, **options: object) -> None:
        with (cache / ".lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(True)
        copy(*args, **options)  # type: ignore[arg-type]

    with mock.patch.object(node_copy_module, "copy_missing", copying):
        copy_to_node(directory, cache)
    assert held == [True]


def test_too_little_space_is_told_before_a_byte_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, cache = small(tmp_path / "hf"), tmp_path / "node"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))  # type: ignore[attr-defined]
    with pytest.raises(
        CheckpointError, match=r"init_cache_dir .*node: 0\.0 GB of weights are to be copied and 0\.0 GB"
    ):
        copy_to_node(directory, cache)
    assert [path.name for path in cache.rglob("*")] == [".lock"]


def test_what_huggingface_hub_noted_is_compared(tmp_path: Path) -> None:
    directory = small(tmp_path / "hf")
    file = directory / "model-00001-of-00009.safetensors"
    notes = directory / ".cache" / "huggingface" / "download" / f"{file.name}.metadata"
    notes.parent.mkdir(parents=True)
    notes.write_text(f"{40 * 'a'}\n{64 * 'b'}\n{time.time() + 60}\n")
    assert noted_checksum(file, directory) == 64 * "b"
    with pytest.raises(
        CheckpointError,
        match=r"model-00001-of-00009\.safetensors: is damaged: its checksum differs "
        r"from the",
    ):
        copy_to_node(directory, tmp_path / "node")
    notes.write_text(f"{40 * 'a'}\n{64 * 'b'}\n{time.time() - 60}\n")  # the file was written again since
    assert noted_checksum(file, directory) is None
    blob = tmp_path / "blobs" / (64 * "c")
    blob.parent.mkdir()
    file.rename(blob)
    file.symlink_to(blob)
    notes.unlink()
    assert noted_checksum(file, directory) == 64 * "c"


def test_only_directories_in_hugging_face_format_are_copied(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="init_cache_dir: applies to Hugging Face directories"):
        load_small(tmp_path / "run", tmp_path / "node")


def work_until_all_have_met(refuse: bool) -> str:
    """Rank 1 works until the ranks have met three times, which they do meanwhile."""
    met = threading.Event()
    count = itertools.count(1)
    gather = collective.all_gather

    def counting(value: object) -> list[object]:
        if next(count) == 3:
            met.set()
        return gather(value)

    def action() -> None:
        if dist.get_rank() == 1:
            assert met.wait(60)
            if refuse:
                raise CheckpointError("no disk")

    with mock.patch.object(collective, "all_gather", counting), mock.patch.object(collective, "_MEETING_S", 0.01):
        try:
            run_each_unhurried(action)
        except CheckpointError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(("refuse", "message"), [(False, ""), (True, "rank 1: no disk")])
def test_ranks_meet_while_one_of_them_works(refuse: bool, message: str) -> None:
    assert run_ranks(work_until_all_have_met, 2, refuse) == [message] * 2
