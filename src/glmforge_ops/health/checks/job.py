"""A job that really runs: a small model trained over the nodes for some steps, one process on each, with checkpoints.

`recovery` trains again, kills one process as soon as there is a checkpoint, starts the same command again, and wants
the losses of the run that nobody disturbed, bit for bit. Only what the steps after the resume depend on shows in them:
data that changes meanwhile, and that none of these steps reads, does not. Nor should it, since the run is none the
worse for it; whether data is the same on every node, byte for byte, is asked by `data.whole`. Nodes need glmforge at
`python` of cluster.yaml, and a directory that they share.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from glmforge_ops.health.checks.action import Told, ask_nodes, name_of
from glmforge_ops.health.checks.check import Check, Level, Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_PROBE = "job"
_STEPS = 6
_MOST = 64
"""Nodes of one such job; with more, the first ones."""

_SECONDS, _SLACK_S = 300, 60.0
_ENDS = f"{_STEPS} steps, every process ends well"


def job(session: Session) -> Mapping[str, Outcome]:
    """Six steps over all nodes."""
    return _with_data(session, _run_job)


def recovery(session: Session) -> Mapping[str, Outcome]:
    """The same, killed and resumed."""
    return _with_data(session, _run_recovery)


def _with_data(
    session: Session, run: Callable[[Session, list[str], str], Mapping[str, Outcome]]
) -> Mapping[str, Outcome]:
    cluster = session.context.cluster
    shared = cluster.checkpoint_path or cluster.shared_path
    if shared is None:
        return dict.fromkeys(session.hosts, skipped("no shared_path is given", "give it in cluster.yaml"))
    hosts = session.hosts[:_MOST]
    if len(hosts) < 2:
        return dict.fromkeys(session.hosts, skipped("takes two nodes"))
    folder = str(shared / f".glmforge-check-{secrets.token_hex(6)}")
    first = {hosts[0]: {"folder": folder}}
    try:
        told = ask_nodes(session, _PROBE, "prepare", first, _SECONDS)
        reason = _reason(told, hosts[0])
        if reason is not None:
            mend = "see environment.import and checkpoints.write"
            return dict.fromkeys(hosts, skipped("no data for it")) | {hosts[0]: failed(reason, _ENDS, mend)}
        return run(session, hosts, folder)
    finally:
        ask_nodes(session, _PROBE, "remove", first, _SLACK_S)


def _reason(told: Told, host: str) -> str | None:
    if host in told[1]:
        return told[1][host].value
    try:
        return told[0][host].text("reason")
    except FactError as error:
        return str(error)


def _run_job(session: Session, hosts: list[str], folder: str) -> Mapping[str, Outcome]:
    outcomes = _judge_ranks(_train(session, hosts, folder, "whole"))
    if all(not outcome.mend for outcome in outcomes.values()):
        told = ask_nodes(session, _PROBE, "losses", {host: {"folder": folder, "runs": ["whole"]} for host in hosts}, 30)
        return told[1] | _judge_losses({host: _losses(facts, "whole") for host, facts in told[0].items()})
    return outcomes


def _judge_losses(losses: Mapping[str, dict[str, str]]) -> dict[str, Outcome]:
    """Every node reads the same losses in the run's record, of every step."""
    outcomes: dict[str, Outcome] = {}
    right = next(iter(losses.values()), {})
    for host, found in losses.items():
        if len(found) == _STEPS and found == right:
            outcomes[host] = passed(f"{_STEPS} steps over {len(losses)} nodes, loss {found[str(_STEPS)][:8]}", _ENDS)
        else:
            mend = "look at shared.same and at the run's log"
            outcomes[host] = failed(f"the record has {len(found)} steps there, or other losses", _ENDS, mend)
    return outcomes


def _run_recovery(session: Session, hosts: list[str], folder: str) -> Mapping[str, Outcome]:
    whole = _judge_ranks(_train(session, hosts, folder, "whole"))
    if any(outcome.mend for outcome in whole.values()):
        return {host: skipped("the run does not end well even without a kill: see job.runs") for host in hosts}
    victim = len(hosts) - 1
    killed = _train(session, hosts, folder, "broken", victim)
    if not _was_killed(killed, hosts[victim]):
        mend = "look at checkpoints.write, and whether the run began at all: job.runs"
        return dict.fromkeys(hosts, skipped("nothing was killed")) | {
            hosts[victim]: failed("no checkpoint appeared there", "killed after a checkpoint", mend)
        }
    again = _judge_ranks(_train(session, hosts, folder, "broken"))
    if any(outcome.mend for outcome in again.values()):
        return again
    return _compare_runs(session, hosts, folder)


def _compare_runs(session: Session, hosts: list[str], folder: str) -> Mapping[str, Outcome]:
    first = hosts[0]
    told = ask_nodes(session, _PROBE, "losses", {first: {"folder": folder, "runs": ["whole", "broken"]}}, 30)
    threshold = "resumes with the same losses, bit for bit"
    if first in told[1]:
        return dict.fromkeys(hosts, told[1][first])
    whole, resumed = (_losses(told[0][first], run) for run in ("whole", "broken"))
    if len(whole) == _STEPS and whole == resumed:
        return dict.fromkeys(hosts, passed(f"killed on {name_of(hosts[-1])}, resumed, losses equal", threshold))
    differing = next((step for step in whole if whole[step] != resumed.get(step)), "?")
    mend = "look for a node that computes otherwise: versions.*, gpu.ecc; glmforge doctor"
    return dict.fromkeys(hosts, failed(f"other loss at step {differing} after the resume", threshold, mend))


def _train(session: Session, hosts: list[str], folder: str, run: str, victim: int | None = None) -> Told:
    cluster = session.context.cluster
    first = session.facts.get(hosts[0], {}).get("network")
    address = cluster.master_addr or (first.text("address") if first is not None else None) or name_of(hosts[0])
    common: dict[str, Any] = {"folder": folder, "run": run, "world": len(hosts), "steps": _STEPS, "victim": victim}
    common |= {"address": address, "port": cluster.master_port, "seconds": _SECONDS}
    arguments = {host: common | {"rank": rank} for rank, host in enumerate(hosts)}
    return ask_nodes(session, _PROBE, "train", arguments, _SECONDS + _SLACK_S)


def _judge_ranks(told: Told) -> dict[str, Outcome]:
    outcomes = dict(told[1])
    for host, facts in told[0].items():
        try:
            status, said = facts.number("status"), facts.text("said")
        except FactError as error:
            status, said = None, str(error)
        if status != 0 and _is_true(facts, "waited"):
            outcomes[host] = skipped("waited for a process of another node, which ended badly")
            continue
        mend = f"run it by hand there; see network.port, network.names, environment.import. It said: {said}"
        is_good = status == 0
        value = "ended well" if is_good else f"ended with status {status}" if status is not None else "did not end"
        outcomes[host] = passed(value, _ENDS) if is_good else failed(value, _ENDS, mend)
    return outcomes


def _was_killed(told: Told, host: str) -> bool:
    return host in told[0] and _is_true(told[0][host], "killed")


def _is_true(facts: Facts, name: str) -> bool:
    try:
        return facts.flag(name) is True
    except FactError:
        return False


def _losses(facts: Facts, run: str) -> dict[str, str]:
    found = facts.inner(run)
    return {step: found.text(step) or "" for step in found.names()} if found is not None else {}


CHECKS = (
    Check("job.runs", "a small training run over all nodes", Level.THOROUGH, act=job),
    Check("job.recovery", "the same killed and resumed, with equal losses", Level.THOROUGH, act=recovery),
)
