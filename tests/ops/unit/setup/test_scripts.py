"""Generated scripts: as the golden files say, accepted by shellcheck, and proof against names and paths.

After a change of a template: GOLDEN=write pytest tests/ops/unit/setup/test_scripts.py, and read the difference.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig, SlurmConfig, SshConfig
from glmforge.errors import HostError
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.render import name, note, quoted
from glmforge_ops.setup import files
from glmforge_ops.setup.files import Kind, Wanted, render
from glmforge_ops.setup.known_hosts import Place
from helpers.packages import install_or_skip

GOLDEN = Path(__file__).parent / "golden"
KINDS: tuple[Kind, ...] = ("slurm", "mpi", "manual")
HOSTS = [HostLine("node001", 8), HostLine("node002", 8)]
KEY = "restrict,pty ssh-ed25519 AAAA glmforge-h200"
CLUSTER = ClusterConfig(
    name="h200",
    nodes=["node[001-002]"],
    local_path=Path("/local/nvme"),
    ssh=SshConfig(user="trainer"),
    network="infiniband",
    infiniband=["mlx5_0"],
    python="python3",
)


def texts(wanted: Wanted) -> dict[str, str]:
    """Every file that setup writes here, but for keys."""
    places = [
        Place("node001", "10.0.0.1", 22),
        Place("node002", "node002.cluster", 2222, alias="second"),
    ]
    return {file.path.name: file.text for file in files.files_here(wanted, places, "")}


def scripts(wanted: Wanted) -> dict[str, str]:
    return {file: text for file, text in texts(wanted).items() if text.startswith("#!")}


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_golden_files_say(kind: Kind) -> None:
    found = texts(Wanted.of(kind, CLUSTER, HOSTS, Path("/shared/cluster"), nodes=2))
    directory = GOLDEN / kind
    del found["env.sh"]  # has golden files of its own
    found["node.sh"] = files.node_script(Wanted.of(kind, CLUSTER, HOSTS, Path("/shared/cluster"), 2), "node001", KEY)
    if os.environ.get("GOLDEN") == "write":
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for file, text in found.items():
            (directory / file).write_text(text)
    assert found == {file.name: file.read_text() for file in directory.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["/shared/cluster", "/shared/it's; & -- ünd"])
def test_accepted_by_shellcheck(kind: Kind, out: str, tmp_path: Path) -> None:
    install_or_skip(("shellcheck",), ("shellcheck",))
    out = out.replace(" ", "_") if kind == "mpi" else out
    cluster = CLUSTER.model_copy(update={"local_path": Path(out), "slurm": SlurmConfig(partition="gpu"), "nodes": None})
    wanted = Wanted.of(kind, cluster, HOSTS, Path(out), nodes=2)
    for file, text in {**scripts(wanted), "node.sh": files.node_script(wanted, "node001", KEY)}.items():
        (tmp_path / file).write_text(text)
    done = subprocess.run(
        ["shellcheck", "--severity=style", *map(str, sorted(tmp_path.iterdir()))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", ["/-a $(touch PWNED)", "/`touch PWNED`", "/a';touch PWNED;'", '/*"?'])
def test_a_shell_finds_the_path_and_nothing_else(path: str, tmp_path: Path) -> None:
    """The job script, run for real with a launcher that tells what it was called with."""
    out = Path(f"{tmp_path}{path}")
    out.mkdir(parents=True)
    if '"' in path:
        with pytest.raises(HostError, match="choose another path"):
            Wanted.of("manual", CLUSTER, HOSTS, out, 2)
        return
    found = scripts(Wanted.of("manual", CLUSTER.model_copy(update={"local_path": out}), HOSTS, out, 2))
    (out / "job.sbatch").write_text(render("job.sbatch", wanted=Wanted.of("slurm", CLUSTER, HOSTS, out, 2)))
    (out / "launch.sh").write_text('printf "%s\\n" "$@" >called\n')
    subprocess.run(["bash", str(out / "job.sbatch"), "train", "a b"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "called").read_text() == "train\na b\n"
    (out / "env.sh").write_text("true\n")
    (out / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$TMPDIR" >seen\n')
    (out / "python").chmod(0o755)
    text = found["on_node.sh"].replace("python=python3", f"python={shlex.quote(str(out / 'python'))}")
    assert text != found["on_node.sh"]
    (out / "on_node.sh").write_text(text)
    subprocess.run(["bash", str(out / "on_node.sh"), "0", str(tmp_path), "train"], check=True, timeout=60)
    assert (tmp_path / "seen").read_text() == f"{out}/glmforge/tmp\n"
    assert not list(tmp_path.rglob("PWNED"))


def test_arguments_reach_every_node_as_they_are(tmp_path: Path) -> None:
    """Through the launcher, ssh's joining of words, the login shell there, and the script on the node."""
    wanted = Wanted.of("manual", CLUSTER.model_copy(update={"local_path": None}), HOSTS, tmp_path, 2)
    for file, text in scripts(wanted).items():
        (tmp_path / file).write_text(text)
    (tmp_path / "hostfile").write_text("node001 slots=8\n# node009\n\nnode002 slots=8\n")
    (tmp_path / "env.sh").write_text("true\n")
    (tmp_path / "on_node.sh").write_text('printf "%s\\0" "$@" >"got$1"\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    # As the real one does: the words after the host are joined by blanks and given to a shell.
    (programs / "ssh").write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n')
    (programs / "ssh").chmod(0o755)
    arguments = ["train", "a b", "$(touch PWNED)", "'\"", "-x", "", "a\nb", "*"]
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(tmp_path / "launch.sh"), *arguments], cwd=tmp_path, env=environment, check=True)
    for number in ("0", "1"):
        got = (tmp_path / f"got{number}").read_text().split("\0")[:-1]
        assert got == [number, str(tmp_path), *arguments]


@pytest.mark.parametrize(
    ("first", "address", "told"),
    [("node001", "node001", "node001"), ("node002", "node001", ""), ("node001", "10.0.0.7", "10.0.0.7")],
)
def test_ranks_of_a_slurm_job_meet_on_its_own_first_node(first: str, address: str, told: str, tmp_path: Path) -> None:
    """Not on the cluster's first one, which need not be part of the job."""
    cluster = CLUSTER.model_copy(update={"master_addr": address})
    launch = tmp_path / "launch.sh"
    launch.write_text(scripts(Wanted.of("slurm", cluster, HOSTS, tmp_path, nodes=2))["launch.sh"])
    for program, script in {"scontrol": f"echo {first}; echo other", "srun": 'echo "at $MASTER_ADDR"'}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / program).chmod(0o755)
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": f"{first},other", "SLURM_JOB_NUM_NODES": "2"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | job
    done = subprocess.run(["bash", str(launch), "train"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"at {told}\n"


def test_one_failing_node_ends_the_others(tmp_path: Path) -> None:
    wanted = Wanted.of("manual", CLUSTER, HOSTS, tmp_path, 2)
    (tmp_path / "launch.sh").write_text(scripts(wanted)["launch.sh"])
    (tmp_path / "hostfile").write_text("localhost\n127.0.0.1\n")
    (tmp_path / "on_node.sh").write_text('if [ "$1" = 1 ]; then exit 3; fi\nexec sleep 1000\n')
    done = subprocess.run(["bash", str(tmp_path / "launch.sh"), "train"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a node has failed; the others are ended" in done.stderr


def test_nothing_stands_unquoted_in_a_template() -> None:
    from glmforge_ops.setup.files import _environment

    with pytest.raises(TypeError, match="without a filter"):
        _environment().from_string("cluster={{ path }}").render(path="/a")
    assert _environment().from_string("{{ path | word }}").render(path="a b") == "'a b'"


def test_names_comments_and_paths_stay_what_they_are() -> None:
    for text in ("a b", "-oProxyCommand=x", "a\nb", ""):
        with pytest.raises(HostError, match="not a name that a script can hold"):
            name(text)
    assert note("a\nb\x1b[0m") == r"a\nb\x1b[0m"
    assert quoted("/a b") == '"/a b"'
    with pytest.raises(HostError, match="choose another"):
        quoted('/a"\nProxyCommand x')
