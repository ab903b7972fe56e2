"""Scripts of jobs: as the golden files say, accepted by bash and shellcheck, and proof against what stands in them.

After a change of a template: GOLDEN=write pytest tests/ops/unit/jobs/script/test_render.py, and read the difference.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.script.render import Script, render
from helpers.packages import install_or_skip

ROOT = Path(__file__).parents[5]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Script(
    "glmforge",
    LaunchConfig(
        launcher="slurm",
        supervise=False,
        nodes=2,
        gpus_per_node=8,
        cpus_per_task=12,
        time="24:00:00",
    ),
)
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
HOSTS = LaunchConfig(launcher="ssh", nodes=2, ranks_per_node=2, supervise=False)


def script(launch: LaunchConfig, *, trains: bool = True, **changes: object) -> Script:
    own = ["train.py", "--out", "/a b/it's"]
    command = ["-m", "glmforge", "train", "/shared/jobs/air/run.yaml"] if trains else own
    values: dict[str, object] = {
        "name": "air",
        "launch": launch,
        "command": ("/opt/python", *command),
        "directory": Path("/shared/my work"),
        "job": Path("/shared/jobs/air"),
        "python": "/opt/python",
        "trains": trains,
        "environment": tuple(launch.plain_env.items()),
        "secrets": launch.secrets,
    }
    return Script(**(values | changes))  # type: ignore[arg-type]


def with_(launch: LaunchConfig, **changes: object) -> LaunchConfig:
    return LaunchConfig.model_validate(launch.model_dump() | changes)


SCRIPTS = {
    "slurm_supervised": script(WHOLE),
    "slurm_supervised_small": script(SMALL),
    "slurm_supervised_array": script(with_(SMALL, array="0-7%2")),
    "slurm_sweep": script(with_(SMALL, array="0-7%2"), task_digits=3),
    "slurm_srun": script(with_(WHOLE, supervise=False, supervisor={})),
    "slurm_srun_own_program": script(with_(SMALL, supervise=False, requeue=True), trains=False),
    "slurm_srun_container": script(with_(SMALL, supervise=False, container="nvcr.io/nvidia/pytorch:26.01-py3")),
    "slurm_torchrun": script(with_(WHOLE, supervise=False, supervisor={}, starter="torchrun")),
    "slurm_torchrun_sif": script(with_(SMALL, supervise=False, starter="torchrun", container="/images/torch.sif")),
    "pbs_supervised": script(with_(WHOLE, launcher="pbs")),
    "pbs_ssh": script(with_(SMALL, launcher="pbs", supervise=False), ssh=("ssh", "-F", "/a b/config")),
    "local_local": script(LaunchConfig(launcher="local", ranks_per_node=2, supervise=False)),
    "local_torchrun": script(LaunchConfig(launcher="local", ranks_per_node=2, supervise=False, starter="torchrun")),
    "ssh_ssh": script(with_(HOSTS, env={"A": "it's"}, interface="eth0"), hosts=("node1", "node2", "node3")),
    "ssh_torchrun": script(with_(HOSTS, starter="torchrun"), hosts=("node1", "node2"), address="10.0.0.1"),
    "mpi_mpirun": script(with_(HOSTS, launcher="mpi", env={"A": "it's", "HF_TOKEN": "***"}), hosts=("node1", "node2")),
    "local_supervised": script(LaunchConfig(launcher="local", ranks_per_node=2)),
    "ssh_supervised": script(LaunchConfig(launcher="ssh", nodes=2, hosts=["node1", "node2"])),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_the_golden_file_says(name: str) -> None:
    found, golden = render(SCRIPTS[name]), GOLDEN / f"{name}.sh"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text()


def test_the_example_is_a_rendering() -> None:
    """After a change of a template: GOLDEN=write writes it, too."""
    example = ROOT / "examples" / "slurm" / "pretrain.sbatch"
    if os.environ.get("GOLDEN") == "write":
        example.write_text(render(EXAMPLE))
    assert render(EXAMPLE) == example.read_text()


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


@settings(max_examples=60, deadline=None)
@given(words=st.lists(hostile, min_size=1, max_size=3), place=hostile, value=hostile)
def test_the_shell_gets_every_word_as_it_was(words: list[str], place: str, value: str) -> None:
    """The command is one that prints what it got: run by bash as the script has it, with srun and scontrol replaced."""
    directory = Path("/nowhere") / place.replace("/", "_")
    launch = with_(SMALL, supervise=False, env={"ODD": value})
    printed = 'printf \'%s\\0\' "$ODD" "$@"'
    made = script(launch, command=("bash", "-c", printed, "x", *words), directory=directory)
    mocks = (
        "SLURM_JOB_NAME=j SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n SLURMD_NODENAME=n SLURM_PROCID=0 SLURM_NTASKS=1 "
        "SLURM_LOCALID=0 SLURM_NTASKS_PER_NODE=1\n"
        "export SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NTASKS_PER_NODE\n"
        'scontrol() { :; }\nsay() { :; }\ncd() { printf "%s\\0" "$2"; }\n'
        'srun() { while [ "$1" != bash ]; do shift; done; "$@"; }\n'
    )
    text = re.sub(r"^say\(\) .*$", "say() { :; }", render(made), flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", mocks + text], capture_output=True, timeout=60)
    assert done.stdout.split(b"\0")[:-1] == [each.encode() for each in (str(directory), value, *words)], done.stderr


@pytest.mark.parametrize("launcher", ["local", "ssh", "mpi"])
@settings(max_examples=12, deadline=None)
@given(words=st.lists(hostile, min_size=1, max_size=3), value=hostile)
def test_so_does_the_shell_of_another_host(
    launcher: str, words: list[str], value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Run by programs in place of ssh, which has a shell read one line, and of mpirun."""
    directory = tmp_path_factory.mktemp("it's a $(place)")
    programs = directory / "bin"
    programs.mkdir()
    (programs / "ssh").write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexec sh -c "$3"\n')
    ranks = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
    (programs / "mpirun").write_text(f'#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nexec env {ranks} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    launch = LaunchConfig(launcher=launcher, supervise=False, env={"ODD": value})  # type: ignore[arg-type]
    printed = 'printf \'%s\\0\' "$PWD" "$RANK/$WORLD_SIZE" "$LOCAL_RANK/$LOCAL_WORLD_SIZE" "$ODD" "$@"'
    command = ("bash", "-c", printed, "x", *words)
    made = script(launch, command=command, directory=directory, hosts=("node1",), environment=(("ODD", value),))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", render(made)], env=os.environ | {"PATH": path}, capture_output=True, timeout=60
    )
    expected = [str(directory), "0/1", "0/1", value, *words]
    assert done.stdout.split(b"\0")[:-1] == [each.encode() for each in expected], done.stderr
    assert done.returncode == 0


_RANK = (
    "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75)); print('ready', flush=True); "
    "[signal.pause() for _ in iter(int, 1)]"
)
_PROGRAMS = {
    "scontrol": "#!/bin/sh\necho ' NodeAddr=127.0.0.1 '\n",
    # Slurm with cgroups signals the process that it has started, and none of that one's children.
    "srun": '#!/bin/sh\necho $$ >"$TASK"\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n',
    "mpirun": '#!/bin/sh\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n',
    # torchrun: passes no warning on, and would be ended by one.
    "torchrun": '#!/bin/bash\nwhile [ "$1" != --no-python ]; do shift; done\nshift\n"$@" &\nwait "$!"\n',
}
_SLURM = {
    "SLURM_JOB_NAME": "air",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n",
    "SLURMD_NODENAME": "n",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS_PER_NODE": "1",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}


@pytest.mark.parametrize(
    ("launcher", "starter", "told"),
    [
        ("slurm", "srun", "task"),
        ("slurm", "torchrun", "task"),
        ("local", "local", "script"),
        ("local", "torchrun", "script"),
    ],
)
def test_a_warning_reaches_the_ranks(launcher: str, starter: str, told: str, tmp_path: Path) -> None:
    """As Slurm sends it: to the first process of a task or, with B:, to the script; and the rank's status comes out."""
    for name, text in _PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    launch = LaunchConfig(launcher=launcher, starter=starter, supervise=False, requeue=False)  # type: ignore[arg-type]
    made = script(
        launch,
        command=(sys.executable, "-c", _RANK),
        directory=tmp_path,
        python=str(tmp_path / "torchrun"),
    )
    text = render(made)
    assert ("--signal=B:" in text) == (launcher == "slurm" and told == "script")
    environment = os.environ | _SLURM | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TASK": str(tmp_path / "task.pid")}
    running = subprocess.Popen(
        ["bash", "-c", text], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    try:
        assert "ready\n" in iter(running.stdout.readline, "")
        pid = int((tmp_path / "task.pid").read_text()) if told == "task" else running.pid
        os.kill(pid, signal.SIGUSR1)
        assert running.wait(60) == 75
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.stdout.close()
        running.wait()


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
def test_what_is_wrong_in_it_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(text)
    with pytest.raises(LaunchError, match=told) as error:
        render(script(SMALL), own)
    assert "\n" not in str(error.value)
