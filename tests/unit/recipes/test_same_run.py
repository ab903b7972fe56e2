"""What nodes must have in common, and what each makes for itself."""

import os
import shutil
import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from glmforge.config.schema import RunConfig
from glmforge.errors import DataError
from glmforge.observe.environment import source_digest
from glmforge.parallel.world import World
from glmforge.recipes.run_data import open_data
from glmforge.recipes.same_run import check_same_data, what_must_agree
from helpers.distributed import run_ranks
from helpers.tiny_data import TinyData

HOST = socket.gethostname()
RECORD = '{"messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2, as ever"}]}\n'


def be_a_node() -> int:
    """This rank is the only one of its node."""
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return dist.get_rank()


def test_settings_must_agree_and_where_files_lie_need_not(tiny_data: TinyData, tmp_path: Path) -> None:
    one = what_must_agree(tiny_data.run_config(tmp_path / "one"))
    other = what_must_agree(tiny_data.run_config(tmp_path / "other", optim={"lr": 1e-3, "min_lr": 1e-4}, seed=7))
    differing = {name for name in one if one[name] != other.get(name)}
    assert differing == {"seed", "optim.lr", "optim.min_lr", "optim.warmup_steps"}
    assert one["data.sources.0.name"] == "text"
    assert str(tmp_path) not in repr(one)


def test_a_package_is_known_by_its_sources(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
    assert source_digest(tmp_path / "one") == source_digest(tmp_path / "other")
    (tmp_path / "other" / "a.pyc").write_text("compiled")
    assert source_digest(tmp_path / "one") == source_digest(tmp_path / "other")
    (tmp_path / "other" / "a.py").rename(tmp_path / "other" / "b.py")
    assert source_digest(tmp_path / "one") != source_digest(tmp_path / "other")


def rank_with_data() -> str:
    rank = be_a_node()
    check_same_data(lambda: {"data.tokenizer": "same"})
    with pytest.raises(DataError) as error:
        check_same_data(lambda: {"data.tokenizer": "same", "data.sources.text": rank == 2})
    return str(error.value)


def test_the_node_that_differs_from_most_is_named_on_all() -> None:
    lines = run_ranks(rank_with_data, 3)
    assert (
        lines
        == [
            f"data: the nodes do not see the same data: node {HOST} (rank 2) has different contents in "
            f"data.sources.text; "
            f"compared with node {HOST} (rank 0). Nothing was trained; copy the files to that node again"
        ]
        * 3
    )


def rank_with_conversations(config: RunConfig, directory: Path, other: str) -> tuple[list[str], str]:
    """The names of the files beside a node's own conversations, and what is said of them; `other`: node 1 has more."""
    rank = be_a_node()
    node = directory / f"node-{rank}"
    node.mkdir()
    (node / "chat.jsonl").write_text(8 * RECORD + (other if rank == 1 else ""))
    source = config.data.sources[0].model_copy(update={"path": node / "chat.jsonl"})
    config = config.model_copy(update={"data": config.data.model_copy(update={"sources": [source]})})
    error = ""
    try:
        open_data(config, World(rank, 2, World.single("cpu").device))
    except DataError as raised:
        error = str(raised)
    return sorted(path.suffix for path in node.iterdir()), error


@pytest.mark.parametrize("other", ["", RECORD], ids=["same", "more"])
def test_each_node_encodes_and_packs_what_lies_on_its_own_disk(tiny_data: TinyData, tmp_path: Path, other: str) -> None:
    phases = [{"name": "main", "steps": 1, "seq_len": 64, "batch_size": 4, "packing": "best_fit"}]
    data = {"tokenizer": str(tiny_data.tokenizer), "sources": [{"name": "chat", "path": "chat.jsonl"}]}
    config = tiny_data.run_config(tmp_path / "run", phases=phases, data=data)
    (first, told), (second, told_too) = run_ranks(rank_with_conversations, 2, config, tmp_path, other)
    assert first == second
    assert {".bin", ".idx", ".loss"} <= set(first)
    assert told == told_too
    assert (f"node {HOST} (rank 1) has different contents in data.sources.chat; " in told) == bool(other)
    shutil.rmtree(tmp_path / "node-0")
