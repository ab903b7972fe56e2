"""Slurm of a development cluster: its files, its database, and its own commands on the head."""

import os
import pwd
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2

from glmforge.errors import HostError
from glmforge_ops.dev.host_processes import entering, environment_of
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.packages import find
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.state import ClusterState

_COMMAND_LIMIT_S = 60
_USABLE = {"IDLE", "ALLOCATED", "MIXED", "COMPLETING"}
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
_BEGIN = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
# What is filled in needs no quotes: paths were checked by `SAFE_PATH`, all else is a number or made here.
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def write_file(places: Places, state: ClusterState, template: str, path: Path, **values: object) -> None:
    """Write a file from `templates` that only this user can read."""
    values |= {"places": places, "state": state, "options": state.options, "head": state.hosts[HEAD], "user": _user()}
    # slurmctld refuses to run under a name that is not its host's.
    controller = HEAD if state.mode == "namespaces" else socket.gethostname().split(".")[0]
    path.touch(mode=0o600)
    path.write_text(_TEMPLATES.get_template(f"{template}.jinja").render(controller=controller, **values))


def write_slurm_files(places: Places, state: ClusterState) -> None:
    """Files of munge, of Slurm, and of the database."""
    options, slurm = state.options, places / "slurm"
    (places / "munge/key").touch(mode=0o600)
    (places / "munge/key").write_bytes(secrets.token_bytes(128))
    write_file(places, state, "slurm.conf", places.slurm_conf)
    gpus = f"Name=gpu File={places / 'gpus'}/nvidia[0-{options.gpus - 1}]" if options.gpus else ""
    (slurm / "gres.conf").write_text("".join(f"NodeName={name} {gpus}\n" for name in options.node_names if gpus))
    # Without this file slurmd looks for cgroups, and ends if there are none.
    (slurm / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    if options.accounting:
        password, accounting = secrets.token_hex(16), places / "accounting"
        write_file(places, state, "slurmdbd.conf", slurm / "slurmdbd.conf", password=password)
        write_file(places, state, "users.sql", accounting / "users.sql", password=password)
        write_file(places, state, "my.cnf", accounting / "my.cnf")
        _make_database(places)


def _make_database(places: Places) -> None:
    """From the server's own files: the script that comes with it needs programs of the client's package."""
    found = [
        path for path in map(Path, ("/usr/share/mysql", "/usr/share/mariadb")) if (path / _SYSTEM_TABLES[0]).exists()
    ]
    if not found:
        raise HostError(f"mariadbd: no {_SYSTEM_TABLES[0]} in /usr/share/mysql; install mariadb-server-core again")
    (places / "accounting/data").mkdir(mode=0o700)
    tables = "\n".join([_BEGIN, *((found[0] / name).read_text() for name in _SYSTEM_TABLES)])
    command = [find("mariadbd") or "mariadbd", f"--defaults-file={places / 'accounting/my.cnf'}", "--bootstrap"]
    with places.log(HEAD, "database").open("wb") as log:
        done = subprocess.run(command, input=tables.encode(), stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        raise HostError(f"cannot create the database: mariadbd ended with status {done.returncode}; see {log.name}")


def daemons_of_head(places: Places, state: ClusterState) -> Iterator[tuple[str, list[str]]]:
    """Daemons and their arguments; each needs the ones before."""
    # --force: it refuses a socket in a directory that others cannot enter.
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={places / 'munge' / file}" for option, file in files.items()]
    yield "munged", ["--foreground", "--force", *munge]
    if state.options.accounting:
        accounting = places / "accounting"
        yield "mariadbd", [f"--defaults-file={accounting / 'my.cnf'}", f"--init-file={accounting / 'users.sql'}"]
        yield "slurmdbd", ["-D"]
    yield "slurmctld", ["-D", "-f", str(places.slurm_conf)]


def register(places: Places, state: ClusterState) -> None:
    """Create cluster, account and user in the accounting database, before the controller starts."""
    for what in (["cluster", "dev"], ["account", "dev"], ["user", _user(), "account=dev"]):
        run_slurm(places, state, "sacctmgr", "-i", "-Q", "add", *what)


def run_slurm(places: Places, state: ClusterState, *command: str) -> str:
    """Output of a Slurm command on the head. Raises `HostError` if it fails."""
    done = try_slurm(places, state, *command)
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())
        raise HostError(f"'{' '.join(command)}' failed: {output or f'status {done.returncode}'}")
    return done.stdout


def try_slurm(places: Places, state: ClusterState, *command: str) -> "subprocess.CompletedProcess[str]":
    """Result of a Slurm command on the head."""
    on_head = entering(state, HEAD, *command, namespaces=["--net", "--uts"])
    variables = environment_of(places)
    try:
        return subprocess.run(
            on_head,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"'{' '.join(command)}' timed out after {_COMMAND_LIMIT_S} s; see {places.logs}") from None


def node_facts(places: Places, state: ClusterState) -> dict[str, dict[str, str]]:
    """Node -> State, SlurmdStartTime, ... of `scontrol show node`; empty while the controller does not answer."""
    lines = try_slurm(places, state, "scontrol", "show", "node", "-o").stdout.splitlines()
    facts = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {fact["NodeName"]: fact for fact in facts if "NodeName" in fact}


def are_usable(places: Places, state: ClusterState, nodes: Sequence[str], since: int) -> bool:
    """Whether Slurm would give these nodes jobs, and knows the slurmd that was started not before `since` (seconds).

    Without the time, Slurm's old state of a node that failed a moment ago would be taken for its return.
    """
    facts = node_facts(places, state)
    return all(name in facts and _is_usable(facts[name], since) for name in nodes)


def _is_usable(fact: dict[str, str], since: int) -> bool:
    try:
        started = time.mktime(time.strptime(fact.get("SlurmdStartTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # "None": not registered yet
        return False
    return set(fact.get("State", "").split("+")) <= _USABLE and started >= since


def _user() -> str:
    """The user of all daemons; a number if there is no account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
