"""What `glmforge cluster clean` prints."""

import pytest

from glmforge_ops.cli.cluster.clean import _print
from glmforge_ops.storage.clean import Cleaned, Leftover


def test_what_several_nodes_say_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    part = Leftover(kind="partial file", path="/data/a.part", bytes=2048, why="old")
    kept = Leftover(kind="scratch directory", path="/tmp/glmforge-parts-1", bytes=0, why="is of another boot")
    nodes = [Cleaned(host=f"node{number}", kept=[kept], removed=[part] if number == 2 else []) for number in (1, 2, 3)]
    _print([*nodes, Cleaned(host="node4", problem="it does not answer")], dry_run=False)
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "node[1-3]: kept /tmp/glmforge-parts-1: is of another boot",
        "node2: removed partial file /data/a.part (2.00 KiB; old)",
        "1 item, 2.00 KiB, removed on 4 nodes",
    ]
    assert said.err == "glmforge: node4: it does not answer\n"
