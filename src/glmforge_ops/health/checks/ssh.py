"""ssh between nodes, which mpirun, DeepSpeed's launcher and staging need; and the permissions of keys."""

from collections.abc import Mapping

from glmforge.runtime.ssh import UNREACHABLE, explain_unreachable
from glmforge_ops.health.checks.action import ask_nodes, judge_each, name_of, ring
from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_LIMIT_S = 20.0
_OWN = "have nodes use what 'glmforge cluster setup' has made: ssh.command (or --ssh) 'ssh -F OUT/ssh/config'"


def keys(facts: Facts, context: Context) -> Outcome:
    """No private key that others can read; nothing that others can write and ssh trusts."""
    if not facts.flag("there"):
        return skipped("there is no ~/.ssh")
    wrong = facts.texts("open")
    if wrong:
        mend = f"chmod go-rwx {wrong[0]}; others may have it already: make a new key if it is one"
        return failed(f"{', '.join(wrong)}: open to others", "of this user alone", mend)
    return passed("as they should be", "of this user alone")


def nodes(session: Session) -> Mapping[str, Outcome]:
    """From each node to the next one in the list, by the cluster's `ssh`."""
    following = ring(session.hosts)
    if not following:
        return dict.fromkeys(session.hosts, skipped("takes two nodes"))
    told = ask_nodes(session, "ssh", "reach", {h: {"to": name_of(to)} for h, to in following.items()}, _LIMIT_S)
    return judge_each(told, lambda host, facts: _judge(facts, name_of(following[host])))


def _judge(facts: Facts, to: str) -> Outcome:
    status = facts.number("status")
    if status == 0:
        return passed(f"reaches {to}", "reaches the next node")
    said = facts.text("said") or ""
    if status == UNREACHABLE:
        meaning, mend = explain_unreachable(said)
        mend = _OWN if "glmforge cluster setup" in mend else mend
        return failed(f"ssh to {to}: {meaning}", "reaches the next node", mend)
    return failed(
        f"ssh to {to}: {said or f'status {status}'}", "reaches the next node", "apt-get install openssh-client"
    )


CHECKS = (
    Check("ssh.keys", "permissions of ssh's files", Level.STANDARD, "ssh", judge=keys),
    Check("ssh.nodes", "each node reaches the next one by ssh", Level.STANDARD, act=nodes),
)
