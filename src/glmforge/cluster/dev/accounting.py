"""A database and slurmdbd of a development cluster's own, so that sacct answers.

The database listens on the head's loopback with a password made for it; without namespaces that is this machine's.
"""

import secrets
import subprocess

from glmforge.cluster.dev.options import HEAD
from glmforge.cluster.dev.packages import find
from glmforge.cluster.dev.places import Places, user_name
from glmforge.cluster.dev.slurm_files import CLUSTER_NAME, DATABASE, slurmdbd_conf
from glmforge.cluster.dev.state import ClusterState
from glmforge.errors import HostError

ACCOUNT = "dev"
_INSTALL_LIMIT_S = 120

_MY_CNF = """[mariadbd]
user={user}
datadir={directory}/data
socket={directory}/socket
pid-file={directory}/pid
bind-address=127.0.0.1
port={port}
skip-name-resolve
init-file={directory}/init.sql
innodb-buffer-pool-size=64M
innodb-log-file-size=16M
innodb-lock-wait-timeout=900
innodb-flush-log-at-trx-commit=0
"""
_INIT_SQL = """CREATE DATABASE IF NOT EXISTS {database};
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON {database}.* TO 'slurm'@'127.0.0.1';
"""


def make_database(places: Places, state: ClusterState) -> None:
    """Files of the database and of slurmdbd. Raises `HostError`."""
    directory = places / "accounting"
    directory.mkdir(mode=0o700)
    password = secrets.token_hex(16)
    port = state.hosts[HEAD].ports.get("mariadbd", 3306)
    settings = directory / "my.cnf"
    settings.write_text(_MY_CNF.format(user=user_name(), directory=directory, port=port))
    for file, text in (
        (directory / "init.sql", _INIT_SQL.format(database=DATABASE, password=password)),
        (places.slurm_conf.with_name("slurmdbd.conf"), slurmdbd_conf(places, state, password)),
    ):
        file.touch(mode=0o600)
        file.write_text(text)
    command = [
        find("mariadb-install-db") or "mariadb-install-db",
        "--no-defaults",
        f"--user={user_name()}",
        f"--datadir={directory}/data",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise HostError(f"mariadb-install-db fails: {said[-1] if said else 'no reason given'}")


REGISTRATION = (
    ("sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER_NAME),
    ("sacctmgr", "-i", "-Q", "add", "account", ACCOUNT),
)
"""What slurmdbd has to be told before the controller starts; then the user."""


def user_registration() -> tuple[str, ...]:
    return ("sacctmgr", "-i", "-Q", "add", "user", user_name(), f"account={ACCOUNT}")
