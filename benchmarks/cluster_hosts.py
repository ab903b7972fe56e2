"""Setup's dry run and the quick checks on many hosts: seconds, processor time per host on each side, and memory.

    python benchmarks/cluster_hosts.py                        # 1,024 hosts without ssh's cost, 128 with a real server
    python benchmarks/cluster_hosts.py --hosts 1024 --real-hosts 1024

Two kinds of hosts, since on one machine the servers' work would hide ours:

- `plain`: in ssh's place a program that hands the script to a shell here. What is measured is our own work, and that of
  the nodes' Python.
- `recorded` (checks only): in ssh's place a program that prints what a node has answered once. What is measured is our
  own work alone.
- `ssh`: one real sshd that answers at as many addresses of the loopback. Its processor time is measured apart: on a
  cluster it is spread over the nodes. Login shells there find an empty home: what this machine's own start files do
  (pyenv's take longer than everything else) is no node's.

Beside these stand the dry run that connects to nothing, and `parts`: the processor time of one host on each side, for
a connection that runs nothing, for one that starts Python, and for what setup and the quick checks send.

`hosts_per_minute` is what was measured, with both sides on this machine's cores. `asking_per_minute` is reckoned: what
its cores would reach if they did nothing but the asking side's work. Writes benchmarks/results/cluster_hosts.json.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import ROOT, write_result

_PLAIN = """#!/bin/sh
case " $* " in *" -G "*)
  for host; do :; done
  printf 'hostname %s\\nport 22\\nuserknownhostsfile {known}\\n' "$host"
  exit ;;
esac
while [ "$1" != -- ]; do shift; done
shift 2
exec sh -c "$*"
"""
_SERVER = """Port {port}
ListenAddress 0.0.0.0
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
AllowUsers *@127.*
MaxStartups 2000
UseDNS no
PidFile none
SetEnv HOME={directory}
"""
_CLIENT = """Host 127.*
  Port {port}
  IdentityFile {directory}/key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
  LogLevel ERROR
"""
_PYTHON = "/usr/bin/python3"  # what a node has
_TIMES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1024)
    parser.add_argument("--real-hosts", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glmforge-hosts-") as name:
        directory = Path(name)
        plain, recorded = str(_plain_ssh(directory, given.hosts)), str(_recorded_ssh(directory))
        rows = [
            _measure(directory, "offline", given.hosts, given.at_once, "ssh", "--offline"),
            _measure(directory, "plain", given.hosts, given.at_once, plain),
        ]
        checks = [
            _measure_check(directory, "recorded", given.hosts, given.at_once, recorded),
            _measure_check(directory, "plain", given.real_hosts, given.at_once, plain),
        ]
        with _server(directory, given.real_hosts) as (pid, command):
            parts = _measure_parts(directory, pid, command)
            for kex in ("default", "curve25519-sha256"):
                ssh = command if kex == "default" else f"{command} -o KexAlgorithms={kex}"
                before = _processor_seconds(pid)
                row = _measure(directory, f"ssh, key exchange {kex}", given.real_hosts, given.at_once, ssh)
                rows.append(_with_server(row, _processor_seconds(pid) - before))
            before = _processor_seconds(pid)
            row = _measure_check(directory, "ssh, key exchange default", given.real_hosts, given.at_once, command)
            checks.append(_with_server(row, _processor_seconds(pid) - before))
    for row in (*rows, *checks):
        print(row)
    write_result(
        "cluster_hosts",
        {"at_once": given.at_once, "parts": parts, "dry_runs": rows, "quick_checks": checks},
        code=["src/glmforge_ops/setup", "src/glmforge_ops/hosts", "src/glmforge_ops/health/checks"],
        out=given.out,
    )


def _with_server(row: dict[str, Any], server_seconds: float) -> dict[str, Any]:
    """With what the server took, and hosts per minute."""
    hosts, cores = row["hosts"], len(os.sched_getaffinity(0))
    return row | {
        "server_ms_per_host": round(1000 * server_seconds / hosts, 1),
        "hosts_per_minute": round(60 * hosts / row["seconds"]),
        "asking_per_minute": round(60 * cores * hosts / row["processor_seconds"]),
    }


def _measure_parts(directory: Path, pid: int, command: str) -> list[dict[str, Any]]:
    """Milliseconds of processor time of a host, one connection after the other."""
    from glmforge.runtime.ssh import Ssh
    from glmforge_ops.setup.ask import PROGRAM as SETUP

    script, sent = _quick_checks(directory)
    facts = SETUP.sent({"facts": {"paths": [str(ROOT)], "python": _PYTHON}})
    kinds = {
        "connection alone": ("true", b""),
        "Python": (f"exec {_PYTHON} -I -S -c pass", b""),
        "setup's facts": (SETUP.script("node"), facts),
        "quick checks": (script, sent),
    }
    return [{"kind": kind, **_measure_part(pid, Ssh.of_command(command), *each)} for kind, each in kinds.items()]


def _measure_part(pid: int, ssh: Any, script: str, sent: bytes) -> dict[str, float]:
    server, before = _processor_seconds(pid), resource.getrusage(resource.RUSAGE_CHILDREN)
    for host in _names(_TIMES):
        subprocess.run(ssh.to_shell(host, script), input=sent, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    time.sleep(0.5)  # until sshd has waited for the last one's
    return {
        "client_ms": round(1000 * client / _TIMES, 1),
        "server_ms": round(1000 * (_processor_seconds(pid) - server) / _TIMES, 1),
    }


def _measure(directory: Path, kind: str, hosts: int, at_once: int, ssh: str, *more: str) -> dict[str, Any]:
    """One dry run."""
    out = ("--type", "manual", "--dry-run", "--nodes", str(hosts), "--out", str(directory / "cluster"))
    file = _cluster(directory, hosts, at_once, ssh)
    row, said = _run("setup", str(file), *out, *more)
    if "authorized_keys" not in said or "error:" in said:
        raise SystemExit(f"{kind}: the dry run went wrong:\n{said[-3000:]}")
    return {"kind": kind, "hosts": hosts, **row, "ms_per_host": round(1000 * row["processor_seconds"] / hosts, 1)}


def _measure_check(directory: Path, kind: str, hosts: int, at_once: int, ssh: str) -> dict[str, Any]:
    """One check at level quick."""
    findings = directory / "findings.json"
    file = _cluster(directory, hosts, at_once, ssh)
    row, said = _run("check", str(file), "--level", "quick", "--json", str(findings))
    reached = json.loads(findings.read_text())["checks"]["reach.ssh"]
    if {outcome["status"] for outcome in reached.values()} != {"pass"}:
        raise SystemExit(f"{kind}: not all hosts were reached:\n{said[:3000]}")
    return {"kind": kind, "hosts": hosts, **row, "ms_per_host": round(1000 * row["processor_seconds"] / hosts, 1)}


def _cluster(directory: Path, hosts: int, at_once: int, ssh: str) -> Path:
    file = directory / "cluster.yaml"
    nodes = ", ".join(f"'{name}'" for name in _names(hosts))
    file.write_text(
        f"nodes: [{nodes}]\ngpus_per_node: 8\nlocal_path: {directory}\npython: {_PYTHON}\n"
        f"ssh: {{command: '{ssh}', at_once: {at_once}}}\n"
    )
    return file


def _run(*arguments: str) -> tuple[dict[str, Any], str]:
    """A command of the group in its own process. Processor time includes its ssh clients, not the servers."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "glmforge", "cluster", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, _, used = os.wait4(process.pid, 0)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "peak_mb": round(used.ru_maxrss / 1024, 1),
    }
    return row, said


def _recorded_ssh(directory: Path) -> Path:
    """A program that reads what it is sent and prints what this machine has answered to the quick checks."""
    script, sent = _quick_checks(directory)
    answer, program = directory / "answer", directory / "recorded-ssh"
    answer.write_bytes(subprocess.run(["sh", "-c", script], input=sent, stdout=subprocess.PIPE, check=True).stdout)
    program.write_text(f"#!/bin/sh\ncat > /dev/null\nexec cat {answer}\n")
    program.chmod(0o755)
    return program


def _quick_checks(directory: Path) -> tuple[str, bytes]:
    """What the quick checks run on a node, and what they send there."""
    from glmforge.config.cluster import ClusterConfig
    from glmforge_ops.health.checks.check import Context, Level
    from glmforge_ops.health.checks.examine import PROGRAM, choose_checks, order_for
    from glmforge_ops.health.checks.thresholds import Thresholds

    calls = list(dict.fromkeys(check.gather for check in choose_checks(Level.QUICK) if check.gather is not None))
    context = Context(ClusterConfig(python=_PYTHON, local_path=directory), Thresholds())
    return PROGRAM.script("node"), PROGRAM.sent(order_for(calls, context, 20.0))


def _names(count: int) -> list[str]:
    """Addresses of the loopback, which need no setting up: 127.1.0.1 and following."""
    return [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(count)]


def _plain_ssh(directory: Path, hosts: int) -> Path:
    known, program = directory / "plain_known_hosts", directory / "plain-ssh"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "plain_key")], check=True)
    key = " ".join((directory / "plain_key.pub").read_text().split()[:2])
    known.write_text("".join(f"{name} {key}\n" for name in _names(hosts)))
    program.write_text(_PLAIN.format(known=known))
    program.chmod(0o755)
    return program


@contextmanager
def _server(directory: Path, hosts: int) -> Iterator[tuple[int, str]]:
    """The server's process id, and the command that reaches it under any address of the loopback."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    (directory / "authorized_keys").write_text((directory / "key.pub").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = " ".join((directory / "host_key.pub").read_text().split()[:2])
    (directory / "known_hosts").write_text("".join(f"[{name}]:{port} {key}\n" for name in _names(hosts)))
    (directory / "sshd_config").write_text(_SERVER.format(port=port, directory=directory))
    (directory / "ssh_config").write_text(_CLIENT.format(port=port, directory=directory))
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([program, "-D", "-e", "-f", str(directory / "sshd_config")], stderr=log)
    try:
        while b"Server listening on" not in (directory / "log").read_bytes():
            if server.poll() is not None:
                raise SystemExit(f"sshd ends: {(directory / 'log').read_text()}")
            time.sleep(0.05)
        yield server.pid, shlex.join(["ssh", "-F", str(directory / "ssh_config")])
    finally:
        server.terminate()
        server.wait()


def _processor_seconds(pid: int) -> float:
    """Of a process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
