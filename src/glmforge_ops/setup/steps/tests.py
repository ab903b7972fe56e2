"""Step 6: does it work? Each node through the cluster's own key, its GPUs, and its way to the next node.

Nodes are tested in a ring, each with the next one: a node that others cannot reach, or that reaches nobody, is found
by as many connections as there are nodes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from glmforge.files import shown
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.setup.ask import Asker
from glmforge_ops.setup.plan import Problem, Step, problems_by_text
from glmforge_ops.setup.wanted import Wanted, bare

_LIMIT_S = 10
_SSH_PORT = 22


def run_tests(wanted: Wanted, ports: Mapping[str, int], progress: Callable[[int, int], None]) -> Step:
    """The outcome, as a step without changes. `ports`: where each node's ssh server listens, if not at 22."""
    step = Step("Connectivity and GPU tests")
    asker = Asker(_own_fanout(wanted))
    answers, failures = asker.ask(_requests(wanted, ports), progress)
    step.problems += [
        Problem(f"the cluster's own key does not open it: {failure.reason}", failure.mend, (failure.host,))
        for failure in failures
    ]
    step.problems += _judge_ring(wanted, answers)
    step.problems += _judge_gpus(wanted, answers)
    master = answers.get(wanted.master_host or "", {})
    if master.get("bind") is False:
        port = wanted.cluster.master_port
        text, mend = (
            f"port {port} is in use on the master",
            f"ss -ltnp 'sport = :{port}' there, or another --master-port",
        )
        step.problems.append(Problem(text, mend, (wanted.master_host or "",), is_error=False))
    reached = sum(answer["greet"]["reached"] for answer in answers.values() if "greet" in answer)
    step.notes.append(f"{len(answers)} of {len(wanted.names)} nodes answer; {reached} reach the next one")
    return step


def own_ssh(wanted: Wanted) -> Ssh:
    """Through the cluster's own key and host keys, whatever the user's configuration says."""
    program = Ssh.of_command(wanted.cluster.ssh.command).command[0]
    return Ssh((program, "-F", str(wanted.ssh_directory / "config")), connect_timeout_s=_LIMIT_S)


def _own_fanout(wanted: Wanted) -> Fanout:
    return Fanout(own_ssh(wanted), at_once=wanted.cluster.ssh.at_once)


def _requests(wanted: Wanted, ports: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    names = wanted.names
    requests: dict[str, dict[str, Any]] = {}
    for host, following in zip(names, names[1:] + names[:1], strict=True):
        requests[host] = {"gpus": {}}
        if len(names) > 1 and following not in LOCAL:
            port = ports.get(following, _SSH_PORT)
            requests[host]["greet"] = {"name": bare(following), "port": port, "timeout_s": _LIMIT_S}
        if host == wanted.master_host:
            requests[host]["bind"] = wanted.cluster.master_port
    return requests


def _judge_ring(wanted: Wanted, answers: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    following = dict(zip(wanted.names, wanted.names[1:] + wanted.names[:1], strict=True))
    mend = "look at DNS or /etc/hosts, the route and the firewall between the two"
    return [
        Problem(f"does not reach {following[host]}: {shown(answer['greet'].get('reason'))}", mend, (host,))
        for host, answer in answers.items()
        if "greet" in answer and not answer["greet"]["reached"]
    ]


def _judge_gpus(wanted: Wanted, answers: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    want = wanted.cluster.gpus_per_node
    wrong = {}
    for host, answer in answers.items():
        found = answer["gpus"]
        if found["count"] != want:
            wrong[host] = (
                f"{found['count']} GPUs by {found['source']}, not {want}",
                "look at nvidia-smi and dmesg there, or correct --gpus-per-node",
            )
    return problems_by_text(wrong, is_error=False)
