"""A database and slurmdbd of a development cluster's own, so that sacct answers.

The database listens on the head's loopback (without namespaces that is this machine's) and knows one user, with a
password made for it. Its system tables are made from the server's own files: the script that comes with it wants
programs of the client's package, and takes twice as long.
"""

import secrets
import subprocess
from pathlib import Path

from glmforge.errors import HostError
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.packages import find
from glmforge_ops.dev.places import Places, user_name
from glmforge_ops.dev.slurm_files import CLUSTER_NAME, DATABASE, slurmdbd_conf
from glmforge_ops.dev.state import ClusterState

ACCOUNT = "dev"
_MAKE_LIMIT_S = 120
_SHARED = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")

_MY_CNF = """[mariadbd]
user={user}
datadir={directory}/data
socket={directory}/socket
pid-file={directory}/pid
bind-address=127.0.0.1
port={port}
skip-name-resolve
innodb-buffer-pool-size=64M
innodb-log-file-size=16M
innodb-lock-wait-timeout=900
innodb-flush-log-at-trx-commit=0
"""
# Slurm wants the last three; what a power failure would take, the whole cluster does not outlive anyway.
_BEGIN = """CREATE DATABASE mysql;
USE mysql;
SET @auth_root_socket=NULL;
SET @skip_auth_anonymous=1;
"""
_USERS = """DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys';
FLUSH PRIVILEGES;
CREATE DATABASE IF NOT EXISTS {database};
CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON {database}.* TO 'slurm'@'127.0.0.1';
"""

REGISTRATION = (
    ("sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER_NAME),
    ("sacctmgr", "-i", "-Q", "add", "account", ACCOUNT),
)
"""What slurmdbd has to be told before the controller starts."""


def make_database(places: Places, state: ClusterState) -> None:
    """Files of the database and of slurmdbd. Raises `HostError`."""
    directory = places / "accounting"
    (directory / "data").mkdir(mode=0o700, parents=True)
    password = secrets.token_hex(16)
    port = state.hosts[HEAD].ports.get("mariadbd", 3306)
    settings = directory / "my.cnf"
    settings.write_text(_MY_CNF.format(user=user_name(), directory=directory, port=port))
    for file, text in (
        (directory / "users.sql", _USERS.format(database=DATABASE, password=password)),
        (places.slurm_conf.with_name("slurmdbd.conf"), slurmdbd_conf(places, state, password)),
    ):
        file.touch(mode=0o600)
        file.write_text(text)
    command = [find("mariadbd") or "mariadbd", f"--defaults-file={settings}", "--bootstrap"]
    with places.log(HEAD, "database").open("wb") as log:
        done = subprocess.run(
            command, input=_system_tables(), stdout=log, stderr=log, text=True, timeout=_MAKE_LIMIT_S, check=False
        )
    if done.returncode != 0:
        raise HostError(f"the database cannot be made: mariadbd ends with status {done.returncode}; see {log.name}")


def database_command(places: Places) -> list[str]:
    """The server, which makes its user when it starts."""
    directory = places / "accounting"
    return [
        find("mariadbd") or "mariadbd",
        f"--defaults-file={directory / 'my.cnf'}",
        f"--init-file={directory / 'users.sql'}",
    ]


def user_registration() -> tuple[str, ...]:
    """What slurmdbd is told of the user whose jobs are counted."""
    return ("sacctmgr", "-i", "-Q", "add", "user", user_name(), f"account={ACCOUNT}")


def _system_tables() -> str:
    """Statements for a server that has no tables yet; it takes one a line."""
    directory = next((path for path in _SHARED if (path / _SYSTEM_TABLES[0]).exists()), None)
    if directory is None:
        raise HostError(f"mariadbd: no {_SYSTEM_TABLES[0]} in {_SHARED[0]}; install mariadb-server-core again")
    return "\n".join([_BEGIN, *((directory / name).read_text() for name in _SYSTEM_TABLES)])
