"""A secret that a job is given reaches its ranks, and stands in no file and on no screen."""

import json
import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config.secrets import is_secret
from glmforge.errors import GlmforgeError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.jobs.starters.nodes import SshStarter
from helpers.ranks import assignment, attempt_in, ended, texts

SECRET = "s3cr3t/+=$'\" x"
URL = "http://me:pa55word@proxy:3128"
PROGRAM = """
import hashlib, os
print("ranks have", *(hashlib.sha256(os.environ.get(n, "").encode()).hexdigest() for n in ("WANDB_API_KEY", "PROXY")))
"""
PRINTED = " ".join(["ranks have", *(sha256(value.encode()).hexdigest() for value in (SECRET, URL))])
GIVEN = ("--env", f"WANDB_API_KEY={SECRET}", "--env", "PROXY", "--env", "PLAIN=1")
WITHOUT = {name: value for name, value in os.environ.items() if not name.startswith("GLMFORGE")}


def texts_below(root: Path) -> str:
    """All that stands in the files of a directory, and how they are called."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    return "".join(f"{path}\n{path.read_text()}" for path in files)


def no_secret(*said: str) -> bool:
    return not any(word in text for text in said for word in ("s3cr3t", "pa55word"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program, and an environment that tests may change."""
    monkeypatch.chdir(tmp_path)
    for name in ("GLMFORGE_JOBS", "WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PROXY", URL)
    Path("program.py").write_text(PROGRAM)
    return tmp_path


def test_of_a_job_on_this_machine(here: Path) -> None:
    """Launched with a umask that closes nothing, and again from an environment without it."""
    glmforge = [sys.executable, "-m", "glmforge"]
    command = [*glmforge, "launch", "--script", "program.py", "--launcher", "local", *GIVEN]
    done = subprocess.run(command, capture_output=True, text=True, umask=0, env=WITHOUT | {"PROXY": URL}, check=True)
    assert PRINTED in done.stdout + texts_below(here / "jobs")
    again = [*glmforge, "jobs", "resubmit", "program"]
    refused = subprocess.run(again, capture_output=True, text=True, env=WITHOUT, check=False)
    assert refused.returncode == 1
    assert (
        "env: the value of PROXY, WANDB_API_KEY is not stored in the job's files; set it in the environment"
        in refused.stderr
    )
    assert no_secret(done.stdout, done.stderr, refused.stderr, texts_below(here / "jobs"))
    description = (here / "jobs/program/job.yaml").read_text()
    assert {"    WANDB_API_KEY: '***'", "    PROXY: '***'", "    PLAIN: '1'"} <= {*description.splitlines()}
    open_to_others = [path for path in (here / "jobs").rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    assert not open_to_others


def slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm of one node; what sbatch has in its environment."""
    programs, seen = here / "bin", here / "seen.json"
    programs.mkdir()
    of = {
        "scontrol": "",
        "sinfo": 'case "$*" in *%P*) echo "main*|n1" ;; *) echo gpu:8 ;; esac',
        "squeue": """echo '{"jobs": []}'""",
        "sbatch": f'case "$*" in --test-only*) ;; *) {sys.executable} -c "import json, os; '
        f"json.dump(dict(os.environ), open('{seen}', 'w'))\"; echo 17 ;; esac",
    }
    for name, script in of.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")
    return seen


SWEEP = ("launch", "demo", *GIVEN, "--launcher", "slurm", "--sweep", "optim.lr=1e-4,1e-3")
OF_SLURM = {
    "supervised": ("launch", "--script", "program.py", "--launcher", "slurm", *GIVEN),
    "array": ("launch", "--script", "program.py", "--launcher", "slurm", *GIVEN, "--array", "0-1"),
    "sweep": SWEEP,
    "options": ("launch", "--script", "program.py", "--options", "site.yaml"),
    "chain": ("chain", "run", "chain.yaml"),
}


@pytest.mark.parametrize(
    ("name", "exported"),
    [*((name, None) for name in OF_SLURM), *(("supervised", each) for each in ("NONE", "HOME,PATH"))],
)
def test_slurm_has_it_from_the_environment(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, exported: str | None
) -> None:
    """Whatever somebody's profile exports to jobs."""
    env = {"WANDB_API_KEY": SECRET, "PROXY": URL}
    Path("site.yaml").write_text(json.dumps({"launcher": "slurm", "env": env}))
    stages = {"one": {"command": "true"}, "two": {"command": "true", "launch": {"env": {"HF_TOKEN": SECRET}}}}
    options = {"launcher": "slurm", "env": env}
    Path("chain.yaml").write_text(json.dumps({"name": "life", "launch": options, "stages": stages}))
    seen = slurm(here, monkeypatch)
    if exported is not None:
        monkeypatch.setenv("SBATCH_EXPORT", exported)
    runner = CliRunner()
    done = runner.invoke(app, [*OF_SLURM[name], "--jobs-dir", "jobs"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    had = json.loads(seen.read_text())
    assert (had["WANDB_API_KEY"], had["PROXY"]) == (SECRET, URL)
    wanted = had.get("SBATCH_EXPORT", "ALL").split(",")
    assert {"WANDB_API_KEY", "PROXY"} <= {*wanted} or wanted == ["ALL"]
    assert no_secret(done.output, texts_below(here / "jobs"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--launcher", "pbs"), "env.WANDB_API_KEY: PBS shows a job's environment to all users"),
        (("--env", "HF_TOKEN=s3cr3t\nx", "--launcher", "slurm", "--dry-run"), None),
        (("--env", "MY TOKEN=s3cr3t", "--launcher", "slurm"), "env.MY TOKEN"),
        (("--env", "WANDB_API_KEY=s3cr3t", "--env", "A=\nb"), "env.A: should match pattern"),
    ],
)
def test_what_is_wrong_is_told_without_it(here: Path, words: tuple[str, ...], told: str | None) -> None:
    given = ["launch", "--script", "program.py", "--env", f"WANDB_API_KEY={SECRET}", *words]
    done = CliRunner().invoke(app, given)
    assert (done.exit_code == 0) == (told is None), done.output
    said = done.output + str(done.exception)
    assert (told or "") in said
    assert no_secret(said)
    assert not (here / "jobs").exists()


def test_one_that_is_not_there_is_asked_for(here: Path) -> None:
    given = ["launch", "--script", "program.py", "--launcher", "local", "--env", "HF_TOKEN"]
    told = "^env: the value of HF_TOKEN is not stored in the job's files; set it in the environment, and submit again$"
    with pytest.raises(GlmforgeError, match=told):
        CliRunner().invoke(app, given, catch_exceptions=False)
    assert not (here / "jobs").exists()


def test_through_ssh_it_is_on_no_command_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor in the file of what ranks are to do."""
    ssh = here / "ssh"
    ssh.write_text(
        f'#!/bin/sh\necho "$*" >>{here}/calls\nunset WANDB_API_KEY\nfor last; do :; done\nexec sh -c "$last"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    attempt = attempt_in(here)
    command = [sys.executable, str(here / "program.py")]
    ranks = assignment(command, ["far"], ranks_per_node=2, secrets=["WANDB_API_KEY", "PROXY"])
    assert ended(SshStarter(Ssh(command=(str(ssh),))).start(attempt, ranks)) == 0
    assert [texts(attempt, rank)[-1] for rank in range(2)] == [PRINTED] * 2
    assert no_secret(texts_below(here / "attempts"), (here / "calls").read_text())


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *[
            (name, "x", True)
            for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "db_password", "OPENAI_KEY")
        ],
        *[(name, "x", True) for name in ("PGPASSWD", "GCP_CREDENTIALS", "AUTH", "MY_SECRET", "APIKEY", "GITHUB_PAT")],
        ("DATABASE", "postgres://u:p@db/x", True),
        ("HTTPS_PROXY", "http://proxy:3128", False),
        ("REPOSITORY", "https://git@host/x", False),
        *[
            (n, "x", False)
            for n in ("TOKENIZERS_PARALLELISM", "PWD", "MONKEY", "KEYBOARD", "AUTHOR", "PATH", "COMPASS")
        ],
    ],
)
def test_names_and_values(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret
