"""`glmforge launch`: what its options become, and what is refused before anything is written."""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import JobDirectory
from glmforge.runtime.process import identify
from glmforge_ops.jobs.schedulers.here import Here, id_of
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.sweep.sweep import Sweep

runner = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without jobs, on a machine without a scheduler."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLMFORGE_JOBS", raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "cat", "sleep"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path


def scheduler(here: Path, name: str, script: str) -> None:
    """A program of this name."""
    (here / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (here / "bin" / name).chmod(0o755)


def slurm(here: Path, submits: str = "echo 17") -> None:
    """A Slurm of one partition and two nodes."""
    nodes = "".join(f"main*|n{i}\\n" for i in (1, 2))
    scheduler(here, "scontrol", "exit 0")
    scheduler(here, "sinfo", f'case "$*" in *%P*) printf "{nodes}" ;; *) echo gpu:8 ;; esac')
    scheduler(here, "squeue", """echo '{"jobs": []}'""")
    scheduler(here, "sbatch", f'[ "$1" = --test-only ] || {{ {submits}; }}')


def launch(*arguments: str) -> tuple[str, str]:
    """What it prints. Raises `GlmforgeError`."""
    done = runner.invoke(app, ["launch", *arguments], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_a_dry_run_prints_the_script_and_writes_nothing(here: Path) -> None:
    script, told = launch("demo", "--launcher", "slurm", "--nodes", "2", "--gpus-per-node", "4", "--dry-run")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n" in script
    assert f"supervise {here}/jobs/demo\n" in script
    assert "nothing was submitted" in told
    assert not (here / "jobs").exists()


def test_every_option_is_in_the_script(here: Path) -> None:
    (here / "more.yaml").write_text("requeue: false\n")
    script, _ = launch(
        *("demo", "--launcher", "slurm", "--nodes", "2", "--gpus-per-node", "2", "--cpus-per-task", "3", "--mem", "9G"),
        *("--time", "1-00:00:00", "--partition", "gpu", "--qos", "high", "--account", "me", "--exclusive"),
        *("--constraint", "a&b", "--exclude", "n[1-2],n5", "--dependency", "afterok:3", "--signal", "USR1@60"),
        *("--nodelist", "n7", "--sbatch-arg=--mail-type=END", "--sbatch-arg=--comment=a b", "--options", "more.yaml"),
        *("--name", "x", "--dry-run"),
    )
    for line in (
        *("--job-name=x", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=3", "--mem=9G"),
        *("--time=1-00:00:00", "--partition=gpu", "--qos=high", "--account=me", "--exclusive", "--constraint='a&b'"),
        *("--exclude=n1,n2,n5", "--dependency=afterok:3", "--signal=B:USR1@60", "--no-requeue", "--nodelist=n7"),
        *("--mail-type=END", "'--comment=a b'"),
    ):
        assert f"#SBATCH {line}\n" in script


def test_options_of_the_ranks_are_in_the_script_of_mpirun(here: Path) -> None:
    (here / "more.yaml").write_text("port: 1234\n")
    options = ("--env", "A=b c", "--env", "C=", "--interface", "ib0", "--options", "more.yaml")
    script, _ = launch("demo", "--launcher", "mpi", "--hosts", "n1", *options, "--dry-run")
    for line in ("export A='b c'", "export C=''", "MASTER_PORT=1234", "NCCL_SOCKET_IFNAME=ib0"):
        assert line in script


def test_options_of_a_file_and_of_the_command_line(here: Path) -> None:
    (here / "site.yaml").write_text("launcher: slurm\npartition: gpu\nnodes: 4\nsupervisor: {max_restarts: 9}\n")
    script, _ = launch("demo", "--options", "site.yaml", "--nodes", "2", "--spare-nodes", "1", "--dry-run")
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --nodes=2-3" in script


def test_a_job_is_submitted_and_known(here: Path) -> None:
    slurm(here)
    told, _ = launch("demo", "--nodes", "2", "--gpus-per-node", "4", "optim.lr=1e-4", "--json")
    assert json.loads(told) == {
        "name": "demo",
        "directory": str(here / "jobs/demo"),
        "launcher": "slurm",
        "submission": "17",
        "run": str(here / "runs/demo"),
    }
    job = JobDirectory(here / "jobs/demo")
    described = job.read()
    assert described.command[1:] == ["-m", "glmforge", "train", str(job.run_config)]
    assert (described.launch.launcher, described.launch.ranks, described.directory) == ("slurm", 4, here)
    assert "lr: 0.0001" in job.run_config.read_text()
    assert [submission.id for submission in job.read_submissions()] == ["17"]
    assert [event["event"] for event in job.read_events()] == ["submitted"]
    _, said = launch("demo", "--nodes", "2", "--gpus-per-node", "4")
    assert "plan: unknown kind of GPU" in said
    assert "\ndemo-2: 2 nodes x 4 ranks, submitted to slurm as 17\n" in said


def test_a_job_that_nobody_took_leaves_nothing(here: Path) -> None:
    slurm(here, submits="echo 'sbatch: error: Batch job submission failed: no' >&2; exit 1")
    with pytest.raises(GlmforgeError, match="sbatch: Batch job submission failed: no; nothing was submitted"):
        launch("demo", "--nodes", "2", "--name", "x")
    assert list((here / "jobs").iterdir()) == []


@pytest.mark.parametrize("most_bytes", [100, 2000])
def test_a_full_disk_leaves_nothing(here: Path, most_bytes: int) -> None:
    """Before anything is submitted: the description, or the configuration behind it, cannot be written to its end."""
    slurm(here, submits=f"touch {here}/submitted; echo 17")
    with file_limit(most_bytes), pytest.raises(GlmforgeError, match=r"\.yaml: cannot be written \(File too large\)"):
        launch("demo", "--nodes", "2", "--name", "x")
    assert list((here / "jobs").iterdir()) == []
    assert not (here / "submitted").exists()


@contextmanager
def file_limit(most_bytes: int) -> Iterator[None]:
    """No file can be longer: what a program sees of a full disk, but for the error's name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("file", ["submissions.jsonl", "events.jsonl"])
def test_a_job_that_cannot_be_noted_is_cancelled(here: Path, file: str) -> None:
    """It would run without anybody who knows of it."""
    slurm(here, submits=f"/bin/mkdir {file}; echo 17")  # in the job's directory
    scheduler(here, "scancel", f'echo "$*" > {here}/cancelled')
    with pytest.raises(GlmforgeError, match=rf"^slurm 17 was cancelled, since it could not be noted: .*/{file}: "):
        launch("demo", "--nodes", "2", "--name", "x")
    assert (here / "cancelled").read_text() == "17\n"
    assert list((here / "jobs").iterdir()) == []


def test_a_job_that_can_neither_be_noted_nor_cancelled_is_named_and_keeps_its_files(here: Path) -> None:
    slurm(here, submits="/bin/mkdir events.jsonl; echo 17")
    scheduler(here, "scancel", "echo 'scancel: error: no' >&2; exit 1")
    with pytest.raises(GlmforgeError, match=r"^slurm 17 could not be noted, and runs \(scancel 17: no\)"):
        launch("demo", "--nodes", "2", "--name", "x")
    assert_whole(here / "jobs/x")


def assert_whole(root: Path) -> None:
    """A job's directory has all that the job needs when it starts."""
    job = JobDirectory(root)
    assert job.read().name == root.name
    assert str(job.root) in job.script.read_text()
    assert job.run_config.exists()


@pytest.mark.parametrize(
    "answer", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received"]
)
def test_a_job_that_slurm_may_have_taken_keeps_its_files(here: Path, answer: str) -> None:
    slurm(here, submits=f"echo 'sbatch: error: Batch job submission failed: {answer}' >&2; exit 1")
    with pytest.raises(
        GlmforgeError, match=r"^x: may have been submitted, or not: sbatch: Batch job submission failed: "
    ):
        launch("demo", "--nodes", "2", "--name", "x")
    assert_whole(here / "jobs/x")


@pytest.mark.parametrize("more", [(), ("--detach",)])
def test_a_sweep_without_a_scheduler_tells_a_machine_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Sweep, "run", lambda *_, **__: {"s-000": JobState.FINISHED, "s-001": JobState.FINISHED})
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    told, _ = launch("demo", "--launcher", "local", "--sweep", "seed=1,2", "--name", "s", "--no-plan", "--json", *more)
    assert [point["name"] for point in json.loads(told)["points"]] == ["s-000", "s-001"]


def test_a_program_of_ones_own(here: Path) -> None:
    program = here / "my train.py"
    program.touch()
    words = ("--epochs", "3", "it's", "$(x)")
    script, _ = launch("--launcher", "mpi", "--hosts", "n1", "--script", str(program), "--dry-run", "--", *words)
    assert f""" -u '{program}' --epochs 3 'it'"'"'s' '$(x)'\n""" in script


def test_a_detached_job_of_this_machine(here: Path) -> None:
    program = here / "go"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    own = here / "own.jinja"
    own.write_text("#!/bin/bash\nexec sleep 1000\n")
    told, _ = launch("--script", str(program), "--template", str(own), "--detach", "--json")
    id_ = json.loads(told)["submission"]
    pid = int(id_.partition(".")[0])
    assert id_of(identify(pid)) == id_
    Here().cancel(id_)
    os.waitpid(pid, 0)


def test_in_the_foreground_it_becomes_the_job(here: Path) -> None:
    """Its status is the job's, and its number that of the submission."""
    from sys import executable

    program = here / "go"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (here / "own.jinja").write_text("#!/bin/bash\necho $$\nexit 7\n")
    arguments = ["launch", "--script", str(program), "--template", "own.jinja", "--name", "x"]
    done = subprocess.run([executable, "-m", "glmforge", *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 7, done.stderr
    (submission,) = JobDirectory(here / "jobs/x").read_submissions()
    assert submission.id.startswith(done.stdout.strip() + ".")


def test_the_script_of_an_array_supervises_its_tasks(here: Path) -> None:
    (here / "go.py").touch()
    slurm(here)
    launch("--script", "go.py", "--array", "1-5:2%2", "--name", "x")
    assert [path.name for path in (here / "jobs").iterdir()] == ["x"]
    supervises = f"""supervise {here}/jobs/x-"$(printf '%01d' "$SLURM_ARRAY_TASK_ID")"\n"""
    assert supervises in JobDirectory(here / "jobs/x").script.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--script", "go.py", "--array", "0-9999999999"), "options: array: 0-9999999999 is invalid; write it like"),
        (
            ("--script", "go.py", "--array", "0-3", "--name", "a" * 64),
            "--name " + "a" * 64 + ": is too long for an array",
        ),
        (("demo", "--launcher", "ssh", "--nodes", "2"), "hosts: the launcher ssh needs hosts: --hosts"),
        (
            ("demo", "--hosts", "a,b", "--nodes", "2", "--exclude", "b"),
            "nodes: 2, spares included, is more than there are hosts: 1",
        ),
        (("demo", "--gpus-per-node", "8", "--gpu", "h900"), "--gpu h900: unknown"),
        (("demo", "--nodes", "2"), "options: nodes: the launcher local runs on one node, not"),
        (("demo", "--gpus-per-node", "3"), "1 node x 3 ranks: phases.0.batch_size: 8 sequences do not divide over 3"),
        (("nothing.yaml",), "nothing.yaml: no such file"),
        (("demo", "optim.lr=x"), "override 'optim.lr=x'"),
        (("demo", "--name", "a\nb"), r"--name 'a\nb': a job's name"),
        (("demo", "--partition", "a b"), "options: partition: should match pattern"),
        (("demo", "--time", "soon"), "options: time: soon is invalid; write it like 24:00:00 or 2-00:00:00"),
        (("demo", "--time", "00:00:00"), "options: time: 00:00:00 means unlimited; leave it out for the"),
        (("demo", "--launcher", "slurm", "--hosts", "a"), "options: hosts: the launcher slurm uses the nodes of the"),
        (("demo", "--jobs-dir", "plain"), "{here}/plain: cannot hold jobs (File exists); choose another --jobs-dir"),
        (("demo", "--jobs-dir", "/proc/x"), "/proc/x: cannot hold jobs (No such file or directory); choose another"),
        (("demo", "--env", "A=b\nc"), "options: env.A: should match pattern"),
        (("demo", "--hosts", "a;b"), "--hosts: a;b is not the name of a host"),
        (("demo", "--options", "none.yaml"), "none.yaml: cannot be read"),
        (("--script", "none.py"), "none.py: no such file"),
        (("--script", "plain"), "plain: is neither a Python program (.py) nor executable"),
        (("--script", "go.py", "--", "a\nb"), r"'a\nb': the command has a line break"),
        (("demo", "--launcher", "slurm"), "sinfo: is not on this machine"),
        (("demo", "--array", "0-3", "output_dir=runs/%a"), "array: every task would train the same run, runs/%a"),
        (("demo", "--options", "list.yaml"), "list.yaml:1: launcher: should be 'local', "),
        (("demo", "--partition", "gpu"), "partition: the launcher local has no scheduler"),
        (("demo", "--launcher", "k8s"), "options: launcher: should be 'local', "),
        (
            ("demo", "--options", "alone.yaml", "--dry-run"),
            "alone.yaml:1: supervise: all launchers but mpi have a supervisor",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(here: Path, arguments: tuple[str, ...], told: str) -> None:
    (here / "go.py").touch()
    (here / "plain").touch()
    (here / "list.yaml").write_text("launcher: [slurm]\n")
    (here / "alone.yaml").write_text("supervise: false\n")
    with pytest.raises(GlmforgeError) as error:
        launch(*arguments)
    assert str(error.value).startswith(told.format(here=here))
    assert "\n" not in str(error.value)
    assert not (here / "jobs").exists()


def test_secrets_are_not_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(here)
    for name in ("NCCL_DEBUG", "HF_TOKEN", "GLMFORGE_API_KEY", "AWS_SECRET", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NCCL_ODD", "a\nb")
    launch("demo", "--nodes", "2")
    kept = JobDirectory(here / "jobs/demo").read().env
    assert {"NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "PATH"} <= kept.keys()
    assert not {"HF_TOKEN", "GLMFORGE_API_KEY", "AWS_SECRET", "NCCL_ODD"} & kept.keys()


def test_a_sweep_tells_a_machine_what_was_submitted(here: Path) -> None:
    slurm(here)
    words = ["demo", "--launcher", "slurm", "--sweep", "seed=1,2", "--name", "s", "--no-plan", "--no-check"]
    told = json.loads(launch(*words, "--json")[0])
    assert (told["name"], told["launcher"], told["directory"]) == ("s", "slurm", str(here / "jobs/s"))
    points = [(point["name"], point["submission"], point["settings"]) for point in told["points"]]
    assert points == [("s-000", "17_0", {"seed": 1}), ("s-001", "17_1", {"seed": 2})]
    assert launch(*words, "--dry-run", "--name", "t")[0].startswith("#!/bin/bash")
