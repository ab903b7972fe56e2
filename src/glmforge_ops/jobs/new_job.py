"""From what the command line says to a job's directory: checked before anything is written.

Of a training job the whole configuration is loaded and laid out on as many ranks as there will be: a mistake costs a
second here, and hours at the end of a queue.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glmforge.config.launch import JOB_NAME, LaunchConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.load import dump_config, load_config, load_settings
from glmforge.config.schema import RunConfig
from glmforge.config.secrets import HIDDEN, is_secret, take_secrets
from glmforge.config.tree import as_mapping, assign, child, from_value, merge, parse
from glmforge.errors import ConfigError, GlmforgeError, LaunchError
from glmforge.files import kind_of, read_text, shown
from glmforge.observe.job_records import JobDescription, JobDirectory, utc_now
from glmforge.observe.run import write_text
from glmforge.observe.units import counted
from glmforge_ops.jobs.script.hosts import hosts_of
from glmforge_ops.jobs.script.render import Script, render
from glmforge_ops.jobs.submit import find_launcher, id_of_task, note_submission

_MAX_OPTIONS_BYTES = 1 << 18
_TASK_DIGITS = 9
_NEEDED = re.compile(
    r"(?:PATH|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CUDA_HOME|TMPDIR|SLURM_CONF|GLOO_SOCKET_IFNAME|HF_HOME|HF_HUB_OFFLINE"
    r"|(?:GLMFORGE|NCCL|TORCH|PYTORCH|TRITON|OMP|MKL|UCX|FI|TOKENIZERS)_[A-Z0-9_]+)"
)
_PLAIN = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,32768}")


@dataclass(frozen=True)
class NewJob:
    """A job that is not written yet.

    Attributes:
        directory: where it will be.
        config: of a training job.
        script: the text of its script.
    """

    directory: JobDirectory
    description: JobDescription
    config: RunConfig | None
    script: str

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken, `RunFileError` if the disk is full; then nothing of it stays."""
        resume = f"'glmforge jobs resubmit {self.directory.name}'"
        with removed_on_error() as made:
            create_job(self.directory, self.description, f"the name is taken; give another --name, or {resume}")
            made.append(self.directory.root)
            if self.config is not None:
                write_text(self.directory.run_config, dump_config(self.config))
            write_text(self.directory.script, self.script)

    def remove(self) -> None:
        """Delete one that could not be submitted, so that its name is free."""
        shutil.rmtree(self.directory.root, ignore_errors=True)


def read_options(file: Path | None, given: Mapping[str, Any]) -> LaunchConfig:
    """Options of a file, with those of the command line over them. Raises `ConfigError`, one line per mistake."""
    tree = from_value(dict(given), "options")
    if file is not None:
        text = read_text(file, error=ConfigError, max_bytes=_MAX_OPTIONS_BYTES)
        tree = merge(as_mapping(parse(text, str(file))), tree)
    if child(tree, "launcher") is None:
        has_hosts = child(tree, "hosts") is not None or child(tree, "hostfile") is not None
        tree = assign(tree, ["launcher"], from_value(find_launcher(has_hosts=has_hosts), "options"), "options")
    # Secrets go first: an error message shows the value that is wrong.
    pairs = getattr(child(tree, "env"), "value", [])
    env = take_secrets({key.value: node.value for key, node in pairs if isinstance(node.value, str)})
    for name in [name for name, value in env.items() if value == HIDDEN]:
        tree = assign(tree, ["env", name], from_value(HIDDEN, "options"), "options")
    return load_settings(LaunchConfig, tree)


def training_job(
    source: str, overrides: Sequence[str], launch: LaunchConfig, root: Path, name: str | None, template: Path | None
) -> NewJob:
    """A job that runs `glmforge train`. Raises `GlmforgeError`."""
    config = load_config(source, overrides)
    if launch.array:
        raise LaunchError(
            f"array: every task would train the same run, {shown(config.output_dir)}; for runs that differ, use --sweep"
        )
    return run_job(JobDirectory(root / _free_name(root, name, config.name)), config, launch, template)


def run_job(directory: JobDirectory, config: RunConfig, launch: LaunchConfig, template: Path | None = None) -> NewJob:
    """A job that trains a run whose configuration is known, as a point of a sweep. Raises `ConfigError`."""
    try:  # on fewer nodes, or more, the supervisor asks anew
        resolve_layout(config, launch.nodes * launch.ranks)
    except ConfigError as error:
        raise ConfigError(f"{counted(launch.nodes, 'node')} x {counted(launch.ranks, 'rank')}: {error}") from None
    command = [_python(launch), "-m", "glmforge", "train", str(directory.run_config)]
    return _job(directory, "train", command, launch, template, config)


def command_job(directory: JobDirectory, command: Sequence[str], launch: LaunchConfig) -> NewJob:
    """A job that runs a command on every rank: a stage of a chain that trains nothing. Raises `LaunchError`."""
    return _job(directory, "stage", command, launch)


def script_job(
    program: Path, arguments: Sequence[str], launch: LaunchConfig, root: Path, name: str | None, template: Path | None
) -> NewJob:
    """A job that runs a user's own program on every rank. Raises `LaunchError`."""
    if kind_of(program, error=LaunchError) != "file":
        raise LaunchError(f"{shown(program)}: no such file; --script takes a Python program, or an executable")
    path = program.absolute()
    if path.suffix == ".py":
        command = [_python(launch), "-u", str(path)]
    elif os.access(path, os.X_OK):
        command = [str(path)]
    else:
        raise LaunchError(f"{shown(program)}: is neither a Python program (.py) nor executable; chmod +x it")
    directory = JobDirectory(root / _free_name(root, name, path.stem))
    if launch.array and not JOB_NAME.fullmatch(f"{directory.name}-{'9' * _TASK_DIGITS}"):
        raise LaunchError(f"--name {shown(directory.name)}: is too long for an array; its tasks' names end in -N")
    return _job(directory, "script", [*command, *arguments], launch, template)


def make_task(directory: JobDirectory) -> None:
    """Make the job of an array's task, JOB-7 of the array JOB, when it starts for the first time.

    Does nothing for other jobs. Raises `GlmforgeError`.
    """
    name, _, number = directory.name.rpartition("-")
    try:
        description = JobDirectory(directory.root.with_name(name or directory.name)).read()
    except GlmforgeError:
        return  # the job's own files say what is wrong
    if not description.launch.array or not number.isdecimal():
        return
    if directory.root.exists():
        if directory.read().part_of != name:
            raise LaunchError(f"{directory.name}: is another job; launch the array under another --name")
        return
    variable = "SLURM_ARRAY_TASK_ID" if description.launch.launcher == "slurm" else "PBS_ARRAY_INDEX"
    env = description.launch.env | {variable: number}  # also when it is submitted again alone
    launch = description.launch.model_copy(update={"array": None, "env": env})
    changes = {"name": directory.name, "launch": launch, "part_of": name, "task": int(number)}
    of_task = description.model_copy(update=changes)
    NewJob(directory, of_task, None, render(Script.of(of_task, directory.root))).write()
    id_ = os.environ.get("PBS_JOBID") or id_of_task(os.environ.get("SLURM_ARRAY_JOB_ID", "0"), int(number))
    note_submission(directory, id_, launch.launcher)


def _job(
    directory: JobDirectory,
    kind: Literal["train", "script", "stage"],
    command: Sequence[str],
    launch: LaunchConfig,
    template: Path | None = None,
    config: RunConfig | None = None,
) -> NewJob:
    for word in command:
        if not _PLAIN.fullmatch(word):
            raise LaunchError(f"{shown(word)}: the command has a line break or a control character; remove it")
    description = JobDescription(
        name=directory.name,
        kind=kind,
        command=list(command),
        directory=Path.cwd(),
        run=None if config is None else config.output_dir.absolute(),
        env=needed_environment(os.environ),
        created=utc_now(),
        launch=launch,
    )
    script = replace(Script.of(description, directory.root), hosts=hosts_of(launch))
    return NewJob(directory, description, config, render(script, template))


def needed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of paths and libraries, which ranks on other nodes need as well; no secrets."""
    return {
        name: value
        for name, value in environment.items()
        if _NEEDED.fullmatch(name) and not is_secret(name, value) and _PLAIN.fullmatch(value)
    }


def _python(launch: LaunchConfig) -> str:
    """Of ranks: this one, which all nodes have at the same place; a container has its own."""
    return "python" if launch.container else sys.executable


def create_job(job: JobDirectory, description: JobDescription, taken: str) -> None:
    """Write the description into a new directory. Raises `LaunchError` if there is one, `RunFileError`."""
    with removed_on_error() as made:
        make_directory(job.root, taken)
        made.append(job.root)
        write_text(job.description, dump_config(description))


def make_directory(root: Path, taken: str) -> None:
    """Make the directory of a job, sweep or chain, for its owner alone. Raises `LaunchError`; `taken` if it exists."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700)
    except OSError as error:
        if os.path.lexists(root):
            raise LaunchError(f"{shown(root)}: {taken}") from None
        why = f"cannot hold jobs ({error.strerror}); choose another --jobs-dir"
        raise LaunchError(f"{shown(root.parent)}: {why}") from None


@contextmanager
def removed_on_error() -> Iterator[list[Path]]:
    """A list for directories that are made within the block: an error removes them, as far as it can."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for root in reversed(made):
            shutil.rmtree(root, ignore_errors=True)  # the cause is reported
        raise


def _free_name(root: Path, given: str | None, proposed: str) -> str:
    """The name that was given, else one made of the run's that is not taken: air, air-2, air-3."""
    if given is not None:
        if not JOB_NAME.fullmatch(given):
            raise LaunchError(f"--name {shown(given)}: a job's name is made of at most 64 letters, digits and _.-")
        return given
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", proposed).strip("-_.")[:56] or "job"
    number, free = 1, name
    while (root / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free
