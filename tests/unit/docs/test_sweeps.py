"""What docs/sweeps.md shows can be read: its files, and the options of its commands."""

import re
from pathlib import Path

import pytest

from glmforge.config.load import load_settings
from glmforge_ops.jobs.chain.file import ChainFile
from glmforge_ops.jobs.sweep.points import expand, parse_axis

TEXT = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()


@pytest.fixture
def file_of(tmp_path):
    """A file that the page shows, by its first line."""

    def write(name):
        (shown,) = re.findall(rf"```yaml\n# {name}\n(.*?)```", TEXT, re.DOTALL)
        (tmp_path / name).write_text(shown)
        return tmp_path / name

    return write


def test_the_sweep_file(file_of):
    points = expand([], file_of("sweep.yaml"))
    assert len(points) == 2
    assert points[0]["optim.lr"] == 1e-3


def test_the_chain(file_of):
    chain = load_settings(ChainFile, file_of("life.yaml"))
    assert chain.in_order() == ["corpus", "pretrain", "sft", "needles", "export"]


def test_values_of_options():
    shown = re.findall(r"^\| `([^`]+=[^`]+)` \|", TEXT, re.MULTILINE)
    assert [len(parse_axis(text)[1]) for text in shown] == [2, 2, 2, 5, 3]
