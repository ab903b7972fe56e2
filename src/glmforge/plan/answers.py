"""Five questions before renting GPUs, answered in words from a plan.

Terminal and page print these; scripts read `glmforge.plan.report.as_json`.
"""

from typing import NamedTuple

from glmforge.config.layout import AXES, Layout
from glmforge.observe.units import format_count, format_duration, format_seconds, gigabytes
from glmforge.plan.report import RESERVE, PlanReport
from glmforge.plan.search.search import Fit
from glmforge.plan.time.levers import StepLever
from glmforge.plan.time.step_time import StepTime

_MOST_PARTS = 4


class Answer(NamedTuple):
    """`words` is a line; `details` are further ones."""

    question: str
    words: str
    details: tuple[str, ...] = ()


def answers(report: PlanReport) -> list[Answer]:
    """In the order in which they are asked."""
    found = [_fit(report), _speed(report), _rollout(report), _price(report), _bottleneck(report), _change(report)]
    return [answer for answer in found if answer is not None]


def subject_words(report: PlanReport) -> str:
    """What is planned: "Phase general", "Stage lora in phase general"."""
    phase = f"phase {report.config.phases[0].name}"
    return f"P{phase[1:]}" if report.stage.name == "pretrain" else f"Stage {report.stage.name} in {phase}"


def machine_words(report: PlanReport) -> str:
    """For example "1,024 x H100 SXM, 128 nodes of 8 over ib400"."""
    machine, num_gpus, num_nodes = report.machine, report.layout.world_size, report.num_nodes
    if num_nodes == 1:
        return f"{num_gpus:,} x {machine.accelerator.name}, one node"
    nodes = f"{num_nodes:,} nodes of {machine.ranks_per_node} over {machine.network.name}"
    return f"{num_gpus:,} x {machine.accelerator.name}, {nodes}"


def layout_words(layout: Layout) -> str:
    """Axes of more than one rank, for example "pp 16 x dp_shard 64 x tp 8, ep 32"."""
    axes = " x ".join(f"{axis} {layout.size(axis)}" for axis in AXES if layout.size(axis) > 1)
    experts = f"ep {layout.ep}" if layout.ep > 1 else ""
    return ", ".join(part for part in (axes, experts) if part) or "one rank"


def node_rows(report: PlanReport) -> list[tuple[str, ...]]:
    """Of each way for the weights to lie over the nodes, in the order of `NODE_COLUMNS`."""
    memory = report.machine.accelerator.memory_bytes
    return [
        (
            f"{one.words or 'as it is'} (planned)" if one.is_planned else f"{one.words}",
            layout_words(one.layout),
            gigabytes(one.bytes),
            format_seconds(one.seconds),
            ", ".join(f"{crossing.axis} {gigabytes(crossing.bytes)}" for crossing in one.crossings) or "nothing",
            format_seconds(one.step.seconds),
            f"{verdict(one.peak / memory)}: {gigabytes(one.peak)}",
        )
        for one in report.nodes
    ]


NODE_COLUMNS = ("weights", "layout", "carried", "on the link", "along", "a step", "fits")


def nodes_title(report: PlanReport) -> str:
    """What `node_rows` are of."""
    network = report.machine.network
    adapter = "a node's adapter" if network.is_shared else "a GPU's adapter"
    return f"Between nodes: traffic of {adapter} each way per step, at {network.name}"


def candidate_words(fit: Fit) -> str:
    """Of a layout that a search found: its axes, micro-batches, schedule, recomputation, offloads."""
    layout, parallel = fit.layout, fit.config.parallel
    words = [layout_words(layout), f"micro-batch {layout.micro_batch_size}"]
    words += [parallel.pipeline_schedule] if layout.pp > 1 else []
    words += [f"recompute {parallel.recompute}"] if parallel.recompute != "none" else []
    words += [name for name in ("activation_offload", "cpu_offload") if getattr(parallel, name)]
    return ", ".join(words)


def parts_by_size(parts: dict[str, float]) -> list[tuple[str, float]]:
    """What a step consists of, the largest first; without what takes no time."""
    return sorted(((name, seconds) for name, seconds in parts.items() if seconds), key=lambda part: -part[1])


def verdict(share: float) -> str:
    """Of a share of the device's memory."""
    if share > 1:
        return "no"
    return "hardly" if share > 1 - RESERVE else "yes"


def _fit(report: PlanReport) -> Answer:
    memory, share = report.memory, report.memory_share
    fullest, total = memory.estimate.fullest, report.machine.accelerator.memory_bytes
    words = f"{verdict(share)}: {fullest.peak / 1e9:,.1f} of {total / 1e9:g} GB, {share:.0%}"
    if len(memory.estimate.places) > 1:
        words += f", at pipeline rank {fullest.pp_rank}"
    largest = sorted(fullest.at_peak.items(), key=lambda item: -item[1])[:_MOST_PARTS]
    parts = ", ".join(f"{name} {size / 1e9:,.1f} GB" for name, size in largest if size)
    details = [f"in {fullest.moment}: {parts} ({memory.source})"] if report.rollout else [f"{parts} ({memory.source})"]
    if fullest.held:
        details.append("held throughout: " + ", ".join(f"{name} {size / 1e9:,.1f} GB" for name, size in fullest.held))
    if share > 1 - RESERVE:
        details.append(f"reserve {RESERVE:.0%} for allocator, NCCL and kernel workspaces: at most {1 - RESERVE:.0%}")
    return Answer("Does it fit?", words, tuple(details))


def _speed(report: PlanReport) -> Answer:
    step = report.step
    words = (
        f"{format_seconds(step.seconds)} per step of {format_count(step.tokens)} tokens: "
        f"{format_count(step.tokens_per_second)} tokens/s, MFU {step.utilisation:.1%}"
    )
    return Answer("How fast?", words, (spread_words(step),) if step.factor else ())


def spread_words(step: StepTime) -> str:
    """Between what four of five steps are."""
    factor = step.factor or 1.0
    slow, fast = step.tokens_per_second / factor, step.tokens_per_second * factor
    return (
        f"{format_seconds(step.seconds / factor)} to {format_seconds(step.seconds * factor)}, {format_count(slow)} to "
        f"{format_count(fast)} tokens/s in four of five cases, judging by published runs"
    )


def _rollout(report: PlanReport) -> Answer | None:
    rollout, step = report.rollout, report.step
    if rollout is None:
        return None
    sampling, scoring = rollout.seconds, step.parts.get("scoring", 0.0)
    shares = {"rollout": sampling, "scoring": scoring, "training": step.seconds - sampling - scoring}
    words = ", ".join(
        f"{name} {format_seconds(part)} ({part / step.seconds:.0%})" for name, part in shares.items() if part
    )
    one, batch = rollout.step, report.stage.rollout
    assert batch is not None, "there are rollouts"
    passing = f", gathering {gigabytes(rollout.passing_bytes)} each time" if rollout.passing_bytes else ""
    details = (
        f"gathering weights {format_seconds(rollout.gather)}, prompts {format_seconds(rollout.prefill)}, answers of "
        f"{batch.response_tokens:,} tokens {format_seconds(rollout.generate)}, the longest ({batch.longest:,}) "
        f"{format_seconds(rollout.tail)}; at its best",
        f"a rank samples {one.batch:,} answers at once, {format_seconds(one.seconds)} a token ({one.bottleneck})"
        + passing,
    )
    return Answer("Rollout or training?", words, details)


def _price(report: PlanReport) -> Answer:
    cost = report.cost
    left_out = [f"without {phase.time.name}: {phase.time.problem}" for phase in cost.phases if phase.seconds is None]
    timed = [phase for phase in cost.phases if phase.seconds is not None]
    if not timed:
        return Answer("Cost?", "unknown: no phase has a time", tuple(left_out))
    words = f"{cost.gpu_hours:,.0f} GPU-hours in {format_duration(cost.seconds)}"
    if cost.price is not None:
        words = f"{dollar_words(sum(cost.dollars.values()))}: {words}"
    tokens = format_count(sum(phase.time.tokens for phase in timed), trim=True)
    names = f"all {len(timed)} phases" if len(timed) == len(cost.phases) > 1 else ", ".join(p.time.name for p in timed)
    details = [f"{tokens} tokens of {names}; failures leave {cost.goodput:.1%} of the time"]
    if cost.price is not None:
        price = cost.price
        details.append(f"at ${price.dollars_per_gpu_hour:.2f} for a GPU-hour ({price.date}, {price.source}; --price)")
        if between := cost.dollars_between:
            low, high = map(dollar_words, between)
            details.append(f"{low} to {high} in four of five cases, by the time of a step alone")
    return Answer("Cost?", words, (*details, *left_out))


def dollar_words(dollars: float) -> str:
    """65_923_040 -> '$65.9M'."""
    return f"${format_count(dollars)}"


def _bottleneck(report: PlanReport) -> Answer:
    step = report.step
    first, *others = parts_by_size(step.parts)
    shares = ", ".join(f"{name} {seconds / step.seconds:.0%}" for name, seconds in others[:_MOST_PARTS])
    details = [f"then {shares}"] if shares else []
    if step.bottleneck != "compute":
        details.append(f"after compute, {step.bottleneck} is the main bottleneck")
    return Answer("What takes the time?", f"{first[0]}: {first[1] / step.seconds:.0%} of the step", tuple(details))


def _change(report: PlanReport) -> Answer | None:
    if not report.levers:
        return None
    first, *others = report.levers
    shares = ", ".join(f"{lever.words} {saved_share(report, lever)}" for lever in others[:_MOST_PARTS])
    details = (f"then {shares}", "each alone; the tables and the page list the settings") if others else ()
    return Answer("What would change it?", f"{first.words}: {saved_share(report, first)} of the step", details)


def saved_share(report: PlanReport, lever: StepLever) -> str:
    """What a change takes off a step: "-23%"."""
    return f"-{lever.seconds / report.step.seconds:.0%}"
