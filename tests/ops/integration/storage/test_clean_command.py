"""`glmforge cluster clean` on nodes that ssh reaches."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes

NODES = ("node0", "node1")
OLD = time.time() - 7200


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """The ssh command, where nodes see their disks, and where these really are."""
    skip_unless_possible()
    directory = tmp_path_factory.mktemp("cluster")
    seen, disks = directory / "seen", directory / "disks"
    seen.mkdir()
    for name in NODES:
        (disks / name).mkdir(parents=True)
    with ssh_nodes(directory, [disks / name for name in NODES], seen) as ssh:
        yield ssh, seen, disks


def clean(ssh: str, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    words = ["cluster", "clean", "--ssh", ssh, "--json", *arguments]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_leftovers_go_on_all_nodes_that_answer(servers: tuple[str, Path, Path]) -> None:
    ssh, seen, disks = servers
    child = subprocess.Popen(["true"])
    child.wait()
    name = f".step-00000010.partial-{socket.gethostname()}-{child.pid}"
    for node in NODES:
        left = disks / node / "it's a run" / name
        left.mkdir(parents=True)
        os.utime(left, (OLD, OLD))
    words = ["--path", str(seen), "--hosts", ",".join(("nowhere.invalid", *NODES))]
    for dry in (["--dry-run"], []):
        found = clean(ssh, *words, *dry, status=1)
        assert [each["host"] for each in found] == ["nowhere.invalid", *NODES]
        assert found[0]["problem"].startswith("its name is not known")
        of_test = [[r["path"] for r in each["removed"] if str(seen) in r["path"]] for each in found[1:]]
        assert of_test == [[str(seen / "it's a run" / name)]] * 2
    assert not [path for path in disks.rglob(".*") if path.is_dir()]
