"""What the GPUs of each node reach together: an all-reduce by NCCL, against what their links can give.

Measured by `glmforge cluster bench` on the node itself, on all nodes at the same time, since the links of one are no
business of the others. Between nodes it takes a job: `cluster bench --find-slow`.
"""

import shlex
from collections.abc import Mapping

from glmforge.errors import HostError
from glmforge.files import parse_json
from glmforge_ops.health.checks.check import Check, Level, Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped
from glmforge_ops.health.checks.thresholds import Threshold
from glmforge_ops.hosts.fanout import Answer

_LIMIT_S = 300
_LIMIT = "allreduce-bus-bandwidth"
_BYTES = "1G"
_MEND = "see nvlink.links, nvlink.topology and pcie.width; then 'glmforge cluster bench' there, with NCCL_DEBUG=INFO"


def bandwidth(session: Session) -> Mapping[str, Outcome]:
    """Bus bandwidth of an all-reduce of 1 GiB, and whether every element of it is right."""
    outcomes: dict[str, Outcome] = {}
    gpus: dict[str, list[str]] = {}
    for host in session.hosts:
        try:
            gpus[host] = _names(session.facts[host].get("gpu"))
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
    several = [host for host, names in gpus.items() if len(names) > 1]
    outcomes |= dict.fromkeys(gpus.keys() - set(several), skipped("fewer than two GPUs were found"))
    python = session.context.cluster.python
    answers = session.fanout.run(several, lambda host: _script(python, len(gpus[host])), _LIMIT_S)
    for host, answer in answers.items():
        outcomes[host] = _judge(answer, session.context.thresholds.find(_LIMIT, gpus[host][0]), gpus[host][0])
    return outcomes


def _names(facts: Facts | None) -> list[str]:
    found = [] if facts is None else facts.each("gpus")
    return [gpu.text("name") or "GPU" for gpu in found if not gpu.flag("lost")]


def _script(python: str, num_gpus: int) -> str:
    command = shlex.join(shlex.split(python))
    bench = f"glmforge cluster bench --local {num_gpus} --backend nccl --collective all_reduce"
    sizes = f"--min-bytes {_BYTES} --max-bytes {_BYTES}"
    return f'f=$(mktemp) && {command} -m {bench} {sizes} --json "$f" >&2; s=$?; cat "$f"; rm -f "$f"; exit $s'


def _judge(answer: Answer, least: Threshold | None, device: str) -> Outcome:
    threshold = "" if least is None else f"at least {least.value:g} {least.unit} ({device})"
    try:
        row = _row(answer)
        busbw, wrong = row.number("busbw"), row.number("wrong")
    except (HostError, FactError) as error:
        reason = answer.reason or str(error)
        return failed(f"did not run: {reason}", threshold, "run 'glmforge cluster bench --local 2' there")
    if wrong:
        return failed(f"{wrong:g} elements of the sum are wrong", "none wrong", "drain the node: its GPUs or links lie")
    if busbw is None or least is None:
        value = "an unknown bandwidth" if busbw is None else f"{busbw:.4g} GB/s"
        return skipped(f"{value}; no limit is known for {device}", f"set thresholds: {_LIMIT}")
    value = f"{busbw:.4g} GB/s"
    return passed(value, threshold) if busbw >= least.value else failed(value, threshold, _MEND)


def _row(answer: Answer) -> Facts:
    """The one row of the result. Raises `HostError` and `FactError`."""
    found = parse_json(answer.stdout.decode(errors="replace"), dict, source=f"{answer.host}'s result", error=HostError)
    rows = Facts(found).each("rows")
    if len(rows) != 1:
        raise FactError(f"rows has {len(rows)} of one")
    return rows[0]


CHECKS = (Check("nccl.bandwidth", "all-reduce among the GPUs of each node", Level.THOROUGH, "gpu", act=bandwidth),)
