"""What `glmforge cluster clean` prints."""

import pytest

from glmforge_ops.cli.cluster.clean import _tell
from glmforge_ops.storage.clean import Cleaned


def test_what_several_nodes_say_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    part = {"kind": "partial file", "path": "/data/a.part", "bytes": 2048, "why": "old"}
    kept = {"path": "/tmp/glmforge-parts-1", "why": "of another boot"}
    nodes = [Cleaned(f"node{number}", kept=[kept], removed=[part] if number == 2 else []) for number in (1, 2, 3)]
    _tell([*nodes, Cleaned("node4", "it does not answer")], dry_run=False)
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "node[1-3]: kept /tmp/glmforge-parts-1: of another boot",
        "node2: removed partial file /data/a.part (2.00 KiB; old)",
    ]
    assert said.err == "glmforge: node4: it does not answer\n"
