"""A job's script, from a template: what a scheduler is given, to be read, and to be submitted by hand just as well.

`templates/`, beside this file, has one per launcher for jobs under the supervisor, and one per launcher and starter for
those without, in which the whole start of a training job can be read. A user's own (`--template FILE`) sees the same
values and may include ours: `{% include "slurm_directives.jinja" %}`. It is rendered in a sandbox: templates are
handed around, and shall not do more than make text.
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
from glmforge_ops.jobs.script.amounts import hours_minutes_seconds, least_nodes, most_nodes, pbs_amount
from glmforge_ops.jobs.script.container import by_pyxis, in_apptainer, is_apptainers
from glmforge_ops.jobs.script.hosts import NO_HOSTS, Hosts
from glmforge_ops.render import safe_environment

_OWN_NAME = "(your template)"
_MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class Script:
    """What templates are told.

    Attributes:
        name: of the job.
        launch: its options.
        command: of every rank; none: the script is an example, and trains what its arguments say.
        directory: in which ranks run; None: where the script is submitted.
        job: the job's directory; None: it has none.
        python: that runs glmforge.
        trains: whether the command is `glmforge train`, whose statuses are known.
        environment: of every rank.
        secrets: variables of every rank that the script has from whoever submits it.
        hosts: of the launchers that have no scheduler.
        address: of the first of them, at which ranks meet; None: its name.
        ssh: how hosts are called.
        task_digits: of an array: the job of task 7 is NAME-7, or NAME-007.
    """

    name: str
    launch: LaunchConfig
    command: tuple[str, ...] = ()
    directory: Path | None = None
    job: Path | None = None
    python: str = "python"
    trains: bool = True
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    address: str | None = None
    ssh: tuple[str, ...] = ("ssh",)
    task_digits: int = 1

    @classmethod
    def of(cls, description: JobDescription, job: Path, hosts: Hosts = NO_HOSTS) -> "Script":
        """`hosts`: where ranks run, if no scheduler says it."""
        return cls(
            name=description.name,
            launch=description.launch,
            command=tuple(description.command),
            directory=description.directory,
            job=job,
            python=sys.executable,
            trains=description.kind == "train",
            environment=tuple(description.launch.plain_env.items()),
            secrets=description.launch.secrets,
            hosts=hosts.names,
            address=hosts.address,
            ssh=hosts.ssh,
        )

    @property
    def template(self) -> str:
        """The name of ours."""
        launcher = self.launch.launcher
        if self.launch.supervise:
            return f"{launcher if launcher in ('slurm', 'pbs') else 'here'}_supervised.sh.jinja"
        return f"{launcher}_{self.launch.chosen_starter}.sh.jinja"


def render(script: Script, template: Path | None = None) -> str:
    """The text, from our template or a user's file. Raises `LaunchError`, which names the template and the line."""
    if template is None:
        return _render(_ours(), script.template, script)
    text = read_text(template, error=LaunchError, max_bytes=_MAX_TEMPLATE_BYTES)
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({_OWN_NAME: text}), _packaged()])
    try:
        return _render(safe_environment(loader, sandboxed=True), _OWN_NAME, script)
    except jinja2.TemplateSyntaxError as error:
        raise LaunchError(f"{_place(template, error.name)}:{error.lineno}: {shown(error.message)}") from None
    except (jinja2.TemplateError, GlmforgeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        # Whatever a template does wrong is a user's to fix, as in a configuration.
        raise LaunchError(f"{_line_of(template, error)}: {shown(error)}") from None


def slurm_directives(launch: LaunchConfig, name: str = "glmforge") -> str:
    """The #SBATCH lines of a job."""
    return _render(_ours(), "slurm_directives.jinja", Script(name=name, launch=launch))


def _render(environment: jinja2.Environment, name: str, script: Script) -> str:
    """Of plain values: an object would bring its methods, and a template of a stranger's could call them."""
    launch = script.launch
    return environment.get_template(name).render(
        name=script.name,
        launch=launch.model_dump(),
        command=script.command,
        directory=None if script.directory is None else str(script.directory),
        job=None if script.job is None else str(script.job),
        python=script.python,
        trains=script.trains,
        environment=script.environment,
        secrets=script.secrets,
        hosts=script.hosts,
        address=script.address,
        ssh=script.ssh,
        task_digits=script.task_digits,
        least_nodes=least_nodes(launch),
        most_nodes=most_nodes(launch),
        ranks=launch.ranks,
        starter=launch.chosen_starter,
        walltime=None if launch.time is None else hours_minutes_seconds(launch.time),
        pbs_mem=None if launch.mem is None else pbs_amount(launch.mem),
        **_container(script),
    )


def _container(script: Script) -> dict[str, list[str]]:
    """How ranks come into the container: srun's plugin takes images of registries, and all else is Apptainer's."""
    launch = script.launch
    if launch.container is None:
        return {"apptainer": [], "pyxis": []}
    places = [place for place in (script.directory, script.job) if place is not None]
    by_srun = launch.launcher == "slurm" and launch.chosen_starter in ("srun", "torchrun")
    if by_srun and not is_apptainers(launch.container):
        return {"apptainer": [], "pyxis": by_pyxis(launch.container, places)}
    return {"apptainer": in_apptainer(launch.container, places, gpus=launch.gpus_per_node > 0), "pyxis": []}


@cache
def _ours() -> jinja2.Environment:
    return safe_environment(_packaged())


@cache
def _packaged() -> jinja2.BaseLoader:
    return jinja2.PackageLoader("glmforge_ops", "jobs/script/templates")


def _place(template: Path, name: str | None) -> str:
    return shown(template) if name in (None, _OWN_NAME) else f"{shown(template)}: {name}"


def _line_of(template: Path, error: Exception) -> str:
    """Where in the template it happened: jinja's frames carry the template's own lines."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return shown(template) if line is None else f"{shown(template)}:{line}"
