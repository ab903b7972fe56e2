"""GPUs: that all are there, are the same everywhere, and neither broken, slowed down nor taken."""

from collections.abc import Callable, Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.equal import compare_facts
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, together, warning

_GIB = 1 << 30
_SLOWED = {0x08: "hardware slowdown", 0x40: "hardware, by temperature", 0x80: "hardware, by the power supply"}
_HOT = {0x20: "software, by temperature"}
_BUSY = 90
_SHOWN_PIDS = 50


def count(facts: Facts, context: Context) -> Outcome:
    """As many as the cluster says, and none that fell off its bus."""
    expected, gpus, error = context.cluster.gpus_per_node, facts.each("gpus"), facts.text("error")
    lost = [index for index, gpu in enumerate(gpus) if gpu.flag("lost")]
    threshold = f"{expected} GPUs (gpus_per_node)"
    if lost:
        names = ", ".join(f"GPU {index}" for index in lost[:8])
        return failed(f"{names} cannot be reached on the bus", threshold, "drain the node, power it off and on again")
    if len(gpus) == expected:
        return passed(f"{len(gpus)} GPUs", threshold) if expected else skipped("the cluster has no GPUs")
    found = f"{len(gpus)} of {expected} GPUs" + (f" ({error})" if error else "")
    mend = "compare 'lspci -d 10de:' with 'nvidia-smi -L'; or correct gpus_per_node in cluster.yaml"
    return failed(found, threshold, mend)


def model(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """The same on all nodes; how many there are is another check's question."""
    mend = "take the node out of this cluster, or describe it as another one; the others have {expected}"
    return compare_facts(nodes, _models, "model of GPU", mend, absent="no GPU was found")


def _models(facts: Facts) -> str | None:
    names = {gpu.text("name") or "?" for gpu in _present(facts)}
    return " and ".join(sorted(names)) or None


def ecc(gpu: Facts, context: Context) -> Outcome:
    """No uncorrected error since the driver was loaded, and ECC on."""
    threshold = "0 uncorrected errors"
    is_on, errors = gpu.flag("ecc"), gpu.count("ecc_uncorrected")
    if errors:
        mend = "drain the node and reset the GPU; if it comes again, run 'dcgmi diag -r 3' and have it replaced"
        return failed(f"{errors} uncorrected memory errors", threshold, mend)
    if is_on is False:
        return warning("ECC is off", "ECC on", "'nvidia-smi -e 1', then reset the GPU")
    return skipped("ECC is not told") if errors is None else passed("0", threshold)


def remapped_rows(gpu: Facts, context: Context) -> Outcome:
    """Rows of memory that were replaced by spare ones: none that waits for a reset, none that could not be."""
    pending, is_failed, rows = gpu.flag("rows_pending"), gpu.flag("rows_failed"), gpu.count("rows_uncorrectable")
    limit = context.thresholds.get("gpu-remapped-rows")
    threshold = f"none pending or failed, fewer than {limit.value:g} for uncorrectable errors"
    if is_failed:
        return failed("a row could not be remapped", threshold, "have the GPU replaced: it has no spare rows left")
    if pending:
        return failed("a remapped row waits for a reset", threshold, "drain the node, then 'nvidia-smi --gpu-reset'")
    if rows is not None and rows >= limit.value:
        return warning(f"{rows} rows remapped", threshold, "run 'dcgmi diag -r 3'; have it replaced if that fails")
    return skipped("not told") if rows is None else passed(f"{rows}", threshold)


def throttle(gpu: Facts, context: Context) -> Outcome:
    """Not slowed down by hardware or heat. The power cap of a busy GPU is its normal work."""
    reasons = gpu.count("throttle")
    if reasons is None:
        return skipped("the driver does not tell why clocks are low")
    hard = [name for bit, name in _SLOWED.items() if reasons & bit]
    if hard:
        mend = "check power supplies, their cables and cooling; 'nvidia-smi -q -d PERFORMANCE' tells more"
        return failed(f"slowed down by {' and '.join(hard)}", "not slowed down", mend)
    hot = [name for bit, name in _HOT.items() if reasons & bit]
    if hot:
        return failed(f"slowed down by {hot[0]}", "not slowed down", "check fans, filters and the air that comes in")
    return passed("none", "not slowed down")


def clocks(gpu: Facts, context: Context) -> Outcome:
    """Application clocks as they were made, and a busy GPU near its highest."""
    set_to, default = gpu.number("clock_application", 0), gpu.number("clock_default", 0)
    if set_to is not None and default is not None and set_to < default:
        value, threshold = f"application clock {set_to:g} MHz", f"at least the default, {default:g} MHz"
        return warning(value, threshold, "'nvidia-smi --reset-applications-clocks' and '--reset-gpu-clocks'")
    now, highest, busy = gpu.number("clock", 0), gpu.number("clock_max", 0), gpu.number("utilization", 0)
    if now is None or highest is None or busy is None:
        return skipped("clocks are not told")
    share = context.thresholds.get("gpu-busy-clock").value
    threshold = f"at least {share:.0%} of {highest:g} MHz when busy"
    if busy >= _BUSY and now < share * highest:
        mend = "look at 'nvidia-smi -q -d CLOCK,POWER': a lower power limit or locked clocks ('--reset-gpu-clocks')"
        return warning(f"{now:g} MHz at {busy:g} % use", threshold, mend)
    return passed(f"{now:g} MHz", threshold)


def temperature(gpu: Facts, context: Context) -> Outcome:
    """Below what it slows down at, with a margin; its memory, too, which the GPU's own sensor does not show."""
    name = gpu.text("name") or ""
    core, memory = gpu.number("temperature", -50), gpu.number("temperature_memory", -50)
    slowdown = gpu.number("temperature_slowdown", 0)
    limit = context.thresholds.get("gpu-temperature", name).value
    limit = min(limit, slowdown - context.thresholds.get("gpu-temperature-margin").value) if slowdown else limit
    memory_limit = context.thresholds.get("gpu-memory-temperature", name).value
    mend = "check fans, filters, the air that comes in, and what the rack's neighbours blow out"
    if core is not None and core > limit:
        return warning(f"{core:g} C", f"at most {limit:g} C", mend)
    if memory is not None and memory > memory_limit:
        return warning(f"memory {memory:g} C", f"at most {memory_limit:g} C", mend)
    return skipped("not told") if core is None else passed(f"{core:g} C", f"at most {limit:g} C")


def power(gpu: Facts, context: Context) -> Outcome:
    """The power limit is not below the card's own."""
    limit, default = gpu.number("power_limit", 0), gpu.number("power_default", 0)
    if limit is None or default is None:
        return skipped("power limits are not told")
    threshold = f"at least the card's own, {default:g} W"
    if limit < default:
        mend = f"'nvidia-smi -pl {default:g}', unless it was lowered on purpose"
        return warning(f"limited to {limit:g} W", threshold, mend)
    return passed(f"{limit:g} W", threshold)


def persistence(gpu: Facts, context: Context) -> Outcome:
    """Without it the driver unloads when nobody uses the GPU: every start takes seconds, and settings are lost."""
    is_on = gpu.flag("persistence")
    if is_on is None:
        return skipped("not told")
    mend = "start nvidia-persistenced, or 'nvidia-smi -pm 1'"
    return passed("on", "on") if is_on else warning("off", "on", mend)


def processes(gpu: Facts, context: Context) -> Outcome:
    """Nothing of an ended job holds the GPU. A process whose launcher lives is a job's, and told as such."""
    threshold = "no process of an ended job"
    found = gpu.each("processes")
    stale = [each for each in found if each.flag("orphan")]
    if stale:
        pids = " ".join(str(each.count("pid")) for each in stale[:_SHOWN_PIDS])
        value = f"held by what is left of an ended job: {stale[0].text('command')} (pid {pids})"
        return failed(value, threshold, f"end it: kill {pids}")
    used, limit = gpu.number("memory_used", 0), context.thresholds.get("gpu-memory-held")
    if not found and used is not None and used > limit.value * _GIB:
        value = f"{used / _GIB:.1f} GiB are taken, and no process is named"
        mend = "'fuser -v /dev/nvidia*' as root names it; if nothing does, 'nvidia-smi --gpu-reset'"
        return failed(value, f"at most {limit.value:g} GiB without a process", mend)
    if used is None:
        return skipped("not told")
    return passed(f"in use by pid {found[0].count('pid')}" if found else "free", threshold)


def _present(facts: Facts) -> list[Facts]:
    return [gpu for gpu in facts.each("gpus") if not gpu.flag("lost")]


def _of_each(judge: Callable[[Facts, Context], Outcome]) -> Callable[[Facts, Context], Outcome]:
    """A judge of a node from one of a GPU."""

    def judge_all(facts: Facts, context: Context) -> Outcome:
        outcomes = {
            f"GPU {index}": judge(gpu, context) for index, gpu in enumerate(facts.each("gpus")) if not gpu.flag("lost")
        }
        if not outcomes:
            return skipped("no GPU was found")
        values = list(dict.fromkeys(outcome.value for outcome in outcomes.values()))
        return together(outcomes, values[0] if len(values) == 1 else f"{values[0]} ... {values[-1]}")

    return judge_all


def _check(name: str, about: str, judge: Callable[[Facts, Context], Outcome]) -> Check:
    return Check(f"gpu.{name}", about, Level.QUICK, "gpu", judge=_of_each(judge))


CHECKS = (
    Check("gpu.count", "GPUs of a node, none of them lost", Level.QUICK, "gpu", judge=count),
    Check("gpu.model", "the same model of GPU on all nodes", Level.QUICK, "gpu", compare=model),
    _check("ecc", "uncorrected memory errors, ECC on", ecc),
    _check("remapped-rows", "rows of GPU memory that were or must be replaced", remapped_rows),
    _check("throttle", "clocks lowered by heat or lack of power", throttle),
    _check("clocks", "clocks that somebody lowered", clocks),
    _check("temperature", "temperature of the GPU and of its memory", temperature),
    _check("power", "power limit against the card's own", power),
    _check("persistence", "persistence mode", persistence),
    _check("processes", "what ended jobs left on a GPU", processes),
)
