"""A job's script, from a template: what a scheduler is given, readable, and just as well submitted manually.

`templates/`, beside this file, has one for Slurm, for PBS, for jobs without a scheduler, and for mpirun. A user's own
(`--template FILE`) gets the same values and may include ours: `{% include "slurm_directives.jinja" %}`. It is rendered
in a sandbox: templates are passed around, and must do no more than make text.
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from glmforge.config.launch import LaunchConfig
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import read_text, shown
from glmforge.observe.job_records import JobDescription
from glmforge_ops.jobs.script.amounts import hours_minutes_seconds, least_nodes, most_nodes
from glmforge_ops.jobs.script.container import in_apptainer
from glmforge_ops.jobs.script.hosts import NO_HOSTS, Hosts
from glmforge_ops.render import safe_environment

_OWN_NAME = "(your template)"
_MAX_TEMPLATE_BYTES = 1 << 20
_TEMPLATES = {"slurm": "slurm.sh.jinja", "pbs": "pbs.sh.jinja", "mpi": "mpi.sh.jinja"}
_PBS_UNITS = {"K": "kb", "M": "mb", "G": "gb", "T": "tb"}


@dataclass(frozen=True)
class Script:
    """What a script is rendered from.

    Attributes:
        name: of the job.
        launch: its options.
        command: of every rank.
        directory: in which ranks run.
        job: the job's directory.
        hosts: of the launchers that have no scheduler.
        task_digits: of an array: the job of task 7 is NAME-7, or NAME-007.
        python: that runs glmforge.
    """

    name: str
    launch: LaunchConfig
    command: tuple[str, ...] = ()
    directory: Path = Path()
    job: Path = Path()
    hosts: Hosts = NO_HOSTS
    task_digits: int = 1
    python: str = sys.executable

    @classmethod
    def of(cls, description: JobDescription, job: Path) -> "Script":
        """Without hosts."""
        return cls(description.name, description.launch, tuple(description.command), description.directory, job)


def render(script: Script, template: Path | None = None) -> str:
    """The text, from our template or a user's file. Raises `LaunchError`, which names the template and the line."""
    if template is None:
        return _render(_ours(), _TEMPLATES.get(script.launch.launcher, "here.sh.jinja"), script)
    text = read_text(template, error=LaunchError, max_bytes=_MAX_TEMPLATE_BYTES)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({_OWN_NAME: text}), _packaged()])
    try:
        return _render(safe_environment(loader, sandboxed=True), _OWN_NAME, script)
    except jinja2.TemplateSyntaxError as error:
        place = shown(template) + ("" if error.name in (None, _OWN_NAME) else f": {error.name}")
        raise LaunchError(f"{place}:{error.lineno}: {shown(error.message)}") from None
    except (jinja2.TemplateError, GlmforgeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise LaunchError(f"{_line_of(template, error)}: {shown(error)}") from None


def slurm_directives(launch: LaunchConfig) -> str:
    """The #SBATCH lines of a job."""
    return _render(_ours(), "slurm_directives.jinja", Script("glmforge", launch))


def _render(environment: jinja2.Environment, name: str, script: Script) -> str:
    """Of plain values: an object would bring its methods, which another user's template could call."""
    launch, mem = script.launch, script.launch.mem
    apptainer = []
    if launch.container is not None:
        apptainer = in_apptainer(launch.container, [script.directory, script.job], gpus=launch.gpus_per_node > 0)
    return environment.get_template(name).render(
        name=script.name,
        launch=launch.model_dump(),
        command=list(script.command),
        directory=str(script.directory),
        job=str(script.job),
        python=script.python,
        environment=tuple(launch.plain_env.items()),
        secrets=launch.secrets,
        hosts=script.hosts.names,
        address=script.hosts.address,
        ssh=script.hosts.ssh,
        task_digits=script.task_digits,
        least_nodes=least_nodes(launch),
        most_nodes=most_nodes(launch),
        ranks=launch.ranks,
        starter=launch.chosen_starter,
        walltime=None if launch.time is None else hours_minutes_seconds(launch.time),
        pbs_mem=None if mem is None else mem.rstrip("KMGT") + _PBS_UNITS.get(mem[-1], "mb"),
        apptainer=apptainer,
    )


@cache
def _ours() -> jinja2.Environment:
    return safe_environment(_packaged())


@cache
def _packaged() -> jinja2.BaseLoader:
    return jinja2.PackageLoader("glmforge_ops", "jobs/script/templates")


def _line_of(template: Path, error: Exception) -> str:
    """Where in the template it happened: jinja's frames carry the template's own lines."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return shown(template) if line is None else f"{shown(template)}:{line}"
