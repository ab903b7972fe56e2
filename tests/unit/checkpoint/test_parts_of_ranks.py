"""When the parts of all ranks are a checkpoint."""

import pytest

from glmforge.checkpoint.format.manifest import FileRecord
from glmforge.checkpoint.node_local.parts_of_ranks import (
    Part,
    find_part_problems,
    merged_records,
    missing_ranks,
    part_name,
    read_part,
    read_parts,
    whole_saves,
    write_part,
)
from glmforge.errors import CheckpointError

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def part(rank: int, world_size: int = 2, save: str = "a") -> Part:
    files = {f"__{rank}_0.distcp": FileRecord(size=0, sha256=EMPTY)}
    return Part(step=7, rank=rank, world_size=world_size, ephemeral=True, save=save, files=files)


@pytest.mark.parametrize(
    ("parts", "ranks"),
    [
        ([part(0), part(1)], [[0, 1]]),
        ([part(1), part(0), part(1)], [[0, 1]]),  # a node asked twice
        ([part(0)], []),
        ([part(0, save="a"), part(1, save="b")], []),  # of two saves of the step
        ([part(0, world_size=1), part(1)], [[0]]),  # saved again by fewer ranks
        ([], []),
    ],
    ids=range(6),
)
def test_whole_saves(parts, ranks):
    assert [[p.rank for p in save] for save in whole_saves(parts)] == ranks


def test_missing_ranks_and_merged_records():
    assert missing_ranks([part(0, 4), part(2, 4), part(1, 4, save="old")]) == [1, 3]
    assert list(merged_records([part(0), part(1)])) == ["__0_0.distcp", "__1_0.distcp"]


def test_a_part_is_written_read_and_checked(tmp_path):
    write_part(tmp_path, part(1))
    assert [path.name for path in tmp_path.iterdir()] == ["part-00001.json"]
    assert read_part(tmp_path / part_name(1)) == part(1)
    assert "missing" in find_part_problems(tmp_path, part(1), checksums=True)[0]
    (tmp_path / "__1_0.distcp").touch()
    assert find_part_problems(tmp_path, part(1), checksums=True) == []


def test_damaged_parts_are_named(tmp_path):
    write_part(tmp_path, part(1))
    (tmp_path / "part-00001.json").rename(tmp_path / "part-00000.json")
    with pytest.raises(CheckpointError, match="is the part of rank 1"):
        read_part(tmp_path / "part-00000.json")
    (tmp_path / "part-00002.json").write_text("{")
    parts, problems = read_parts(tmp_path)
    assert (parts, len(problems)) == ([], 2)
