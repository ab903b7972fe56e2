"""Scripts of jobs: as the golden files say, accepted by bash and shellcheck, and proof against what stands in them.

After a change of a template: GOLDEN=write pytest tests/ops/unit/jobs/script/test_render.py, and read the difference.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.script.hosts import Hosts
from glmforge_ops.jobs.script.render import Script, render
from helpers.packages import install_or_skip

ROOT = Path(__file__).parents[5]
GOLDEN = Path(__file__).parent / "golden"
WHOLE = LaunchConfig(
    launcher="slurm",
    nodes=2,
    gpus_per_node=8,
    cpus_per_task=12,
    mem="64G",
    time="2-00:00:00",
    partition="gpu",
    qos="high",
    account="research",
    exclusive=True,
    constraint="h200&nvme",
    nodelist=["node001"],
    exclude=["node003", "node007"],
    dependency="afterok:12:13,afterany:14",
    interface="eth0",
    port=29_500,
    env={"NCCL_DEBUG": "INFO", "WORDS": "it's $(odd) `text`"},
    sbatch_args=["--mail-type=END", "--comment=it's"],
    supervisor=SupervisorConfig(min_nodes=1, spare_nodes=1),
)
SMALL = LaunchConfig(launcher="slurm", nodes=2, ranks_per_node=2, requeue=False, signal=None)
MPI = LaunchConfig(launcher="mpi", nodes=2, ranks_per_node=2, interface="eth0", env={"A": "it's", "HF_TOKEN": "***"})


def script(launch: LaunchConfig, **changes: object) -> Script:
    values: dict[str, object] = {
        "name": "air",
        "launch": launch,
        "command": ("/opt/python", "-m", "glmforge", "train", "/shared/jobs/air/run.yaml"),
        "directory": Path("/shared/my work"),
        "job": Path("/shared/jobs/air"),
        "python": "/opt/python",
    }
    return Script(**(values | changes))  # type: ignore[arg-type]


def with_(launch: LaunchConfig, **changes: object) -> LaunchConfig:
    return LaunchConfig.model_validate(launch.model_dump() | changes)


SCRIPTS = {
    "slurm": script(WHOLE),
    "slurm_small": script(SMALL),
    "slurm_array": script(with_(SMALL, array="0-7%2")),
    "slurm_sweep": script(with_(SMALL, array="0-7%2"), task_digits=3),
    "pbs": script(with_(WHOLE, launcher="pbs")),
    "pbs_array": script(with_(SMALL, launcher="pbs", array="0-7")),
    "here": script(LaunchConfig(launcher="ssh", nodes=2, hosts=["node1", "node2"])),
    "mpi": script(MPI, hosts=Hosts(("node1", "node2", "node3"), "10.0.0.1", ("ssh", "-F", "/a b/config"))),
    "mpi_container": script(with_(MPI, container="/images/t.sif", gpus_per_node=2), hosts=Hosts(("node1", "node2"))),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_the_golden_file_says(name: str) -> None:
    found, golden = render(SCRIPTS[name]), GOLDEN / f"{name}.sh"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text()


def test_shellcheck_finds_nothing() -> None:
    install_or_skip(("shellcheck",), ("shellcheck",))
    files = sorted(map(str, GOLDEN.glob("*.sh")))
    assert [Path(file).stem for file in files] == sorted(SCRIPTS)
    # SC2016: what looks like a variable in a user's value is none.
    done = subprocess.run(["shellcheck", "--exclude=SC2016", *files], capture_output=True, text=True)
    assert not done.stdout


def test_shellcheck_finds_nothing_in_examples() -> None:
    """Those of users' own scripts, and of two nodes without a scheduler, among them."""
    install_or_skip(("shellcheck",), ("shellcheck",))
    files = sorted(str(path) for path in (ROOT / "examples").rglob("*") if path.suffix in (".sh", ".sbatch"))
    assert {"pretrain.sbatch", "launch.sh"} <= {Path(file).name for file in files}
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True)
    assert not done.stdout


def test_no_line_is_left_over() -> None:
    """Neither blanks at the end of a line, nor three line breaks in a row, as templates like to leave them."""
    for name, each in SCRIPTS.items():
        text = render(each)
        assert not re.search(r"[ \t]$|\n\n\n", text, re.MULTILINE), name
        assert text.endswith("\n"), name


hostile = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40) | st.sampled_from(
    ["$(touch /tmp/x)", "`id`", "a'b", 'a"b', "a;b", "a b", "-e", "\\", "!x", "${HOME}", "#", "*", "~", "=", "é\u202e"]
)


@settings(max_examples=30, deadline=None)
@given(words=st.lists(hostile, min_size=1, max_size=3), value=hostile)
def test_the_shell_gets_every_word_as_it_was(
    words: list[str], value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The command prints what it got; a program in place of mpirun starts it."""
    directory = tmp_path_factory.mktemp("it's a $(place)")
    ranks = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
    mpirun = directory / "mpirun"
    mpirun.write_text(f'#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nexec env {ranks} "$@"\n')
    mpirun.chmod(0o755)
    printed = 'printf \'%s\\0\' "$PWD" "$RANK/$WORLD_SIZE" "$LOCAL_RANK/$LOCAL_WORLD_SIZE" "$ODD" "$@"'
    made = script(
        LaunchConfig(launcher="mpi", env={"ODD": value}),
        command=("bash", "-c", printed, "x", *words),
        directory=directory,
        hosts=Hosts(("node1",)),
    )
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", render(made)], env=os.environ | {"PATH": path}, capture_output=True, timeout=60
    )
    expected = [str(directory), "0/1", "0/1", value, *words]
    assert done.stdout.split(b"\0")[:-1] == [each.encode() for each in expected], done.stderr


@settings(max_examples=30, deadline=None)
@given(place=hostile, name=hostile)
def test_so_does_the_supervisor(place: str, name: str) -> None:
    """Run by bash, with programs replaced."""
    directory = Path("/nowhere") / place.replace("/", "_")
    made = script(SMALL, directory=directory, job=directory / "job", name=name)
    mocks = 'cd() { printf "%s\\0" "$2"; }\nexec() { printf "%s\\0" "$@"; }\nchmod() { :; }\n'
    done = subprocess.run(["bash", "-c", mocks + render(made)], capture_output=True, timeout=60)
    expected = [str(directory), "/opt/python", "-m", "glmforge", "supervise", str(directory / "job")]
    assert done.stdout.split(b"\0")[:-1] == [each.encode() for each in expected], done.stderr


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text('#!/bin/sh\n{% include "slurm_directives.jinja" %}\nmodule load cuda\nsrun {{ command | words }}\n')
    text = render(script(SMALL), own)
    assert text.endswith("module load cuda\nsrun /opt/python -m glmforge train /shared/jobs/air/run.yaml\n")
    assert "#SBATCH --nodes=2\n" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\n{% if %}\n", r"own\.jinja:2: Expected an expression"),
        ("a\n\n{{ nothing | word }}\n", r"own\.jinja:3: 'nothing' is undefined"),
        ("{{ name }}", r"own\.jinja:1: a template puts 'air' into a script without a filter"),
        ("{{ name | shout }}", r"own\.jinja:1: No filter named 'shout'"),
        ('{% include "none.jinja" %}', r"own\.jinja:1: none\.jinja"),
        ("{{ (name.__class__.__mro__ | string) | word }}", r"own\.jinja:1: access to attribute '__class__'"),
        ("{{ directory.unlink() }}", r"own\.jinja:1"),
        ("{{ 1 // 0 }}", r"own\.jinja:1: .*zero"),
        ("{{ launch.env['A'] | word }}", r"own\.jinja:1"),
    ],
)
def test_an_error_in_it_has_its_line(tmp_path: Path, text: str, told: str) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(text)
    with pytest.raises(LaunchError, match=told) as error:
        render(script(SMALL), own)
    assert "\n" not in str(error.value)
