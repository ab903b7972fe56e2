"""May a run go on from a checkpoint that was written under another configuration? Key by key.

What a checkpoint holds is a point on a path: weights and optimizer states that were made in one model by one kind of
optimizer, and a position in an order of samples. A configuration that changes any of these does not go on, it begins
something else, and is refused. Whatever else changes what is learned from this step on is allowed and noted, so that it
stands in the record of the run; what changes only speed, place or reporting is ignored.

The table `RULES` is the whole policy; the guide shows it as it stands here. Phases and sources are distinguished by
their names: in keys their name stands where their number would.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pydantic import ValidationError

from glmforge.checkpoint.format.wording import list_some
from glmforge.config.adapters import table_with
from glmforge.config.parameter_groups import optimizer_states
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.errors import CheckpointError
from glmforge.files import shown


class Verdict(Enum):
    """What becomes of a difference."""

    FREE = "free"
    NOTED = "noted"
    REFUSED = "refused"


class Rule(NamedTuple):
    """`before` the run (for keys of a phase: that phase) has consumed a sample, and `after`."""

    keys: str
    before: Verdict
    after: Verdict
    why: str


FREE, NOTED, REFUSED = Verdict.FREE, Verdict.NOTED, Verdict.REFUSED
_RESET = "'glmforge checkpoint reset-optimizer --config' writes a checkpoint with fresh optimizer states"

RULES = (
    Rule("name", FREE, FREE, "a name"),
    Rule("output_dir", FREE, FREE, "a place"),
    Rule("backend", FREE, FREE, "how steps are executed; losses agree up to rounding"),
    Rule("deepspeed*", FREE, FREE, "how steps are executed; losses agree up to rounding"),
    Rule("seed", NOTED, REFUSED, "it determines the order of samples"),
    Rule("init_from", FREE, FREE, "the weights are the checkpoint's"),
    Rule("init_cache_dir", FREE, FREE, "the weights are the checkpoint's"),
    Rule("stage", REFUSED, REFUSED, "start another stage as a new run with init_from set to this checkpoint"),
    *(Rule(f"{name}.*", NOTED, NOTED, "from this step on") for stage in STAGES.values() for name in stage.sections),
    Rule("model.rope_theta", NOTED, NOTED, "the RoPE base may grow with the context"),
    Rule("model.max_position_embeddings", FREE, FREE, "a limit; no tensor depends on it"),
    Rule("model.initializer_range", FREE, FREE, "the weights are the checkpoint's"),
    Rule("model.*_token_id", FREE, FREE, "only used in exports"),
    Rule("model.*", REFUSED, REFUSED, "the weights have this shape"),
    Rule("data.tokenizer", FREE, FREE, "a path; the tokenizer itself must have the same fingerprint"),
    Rule("data.sources.*.path", FREE, FREE, "a path; consumed data must have the same fingerprint"),
    Rule("data.sources.*.code", FREE, REFUSED, "changes which documents a phase with fim_rate has rearranged"),
    Rule("data.sources*", NOTED, NOTED, "mixture of future samples"),
    Rule("data.held_out*", NOTED, NOTED, "evaluations before and after use different data"),
    Rule("data.*", FREE, FREE, "how the same samples are read"),
    Rule("phases.*.tokens", NOTED, NOTED, "the learning-rate schedule ends elsewhere"),
    Rule("phases.*.steps", NOTED, NOTED, "the learning-rate schedule ends elsewhere"),
    Rule("phases.*.epochs", NOTED, NOTED, "the learning-rate schedule ends elsewhere"),
    Rule("phases.*.batch_size", NOTED, NOTED, "the run continues at the next sample"),
    Rule("phases.*.batch_ramp*", NOTED, NOTED, "the run continues at the next sample"),
    Rule("phases.*.seq_len", NOTED, REFUSED, "samples are numbered by it"),
    Rule("phases.*.packing", NOTED, REFUSED, "samples are numbered by it"),
    Rule("phases.*.document_mask", NOTED, REFUSED, "the phase's samples depend on it"),
    Rule("phases.*.fim_rate", NOTED, REFUSED, "the phase's samples depend on it"),
    Rule("phases.*.*", NOTED, NOTED, "loss weights, balance, mixture, RoPE base: from this step on"),
    Rule("phases*", NOTED, REFUSED, "name and position of a phase determine its order of samples"),
    Rule("lora.init_from", FREE, FREE, "the adapters are the checkpoint's"),
    Rule("lora.dropout", NOTED, NOTED, "from this step on"),
    Rule("lora.lr_ratio", NOTED, NOTED, "from this step on"),
    Rule("lora*", REFUSED, REFUSED, "the adapters were made so"),
    Rule("optim.matrix_optimizer", NOTED, REFUSED, f"the checkpoint has no such optimizer states; {_RESET}"),
    Rule("optim.lm_head", NOTED, REFUSED, f"the checkpoint has no such optimizer states; {_RESET}"),
    Rule("optim.rules", NOTED, REFUSED, f"the checkpoint has no states of another optimizer; {_RESET}"),
    Rule("optim.state_dtype", NOTED, REFUSED, f"the checkpoint has no such optimizer states; {_RESET}"),
    Rule("optim.*", NOTED, NOTED, "learning rate, schedule, warm-up, decay, momentum: from this step on"),
    Rule("regularization.*", NOTED, NOTED, "from this step on"),
    Rule("parallel.*", FREE, FREE, "losses on another layout agree up to rounding"),
    Rule(
        "precision.frozen",
        NOTED,
        REFUSED,
        "frozen weights are stored in this format, and the adapters were trained with its rounding",
    ),
    Rule("precision.*", NOTED, NOTED, "master weights are always fp32"),
    Rule("kernels.*", FREE, FREE, "implementations agree up to rounding"),
    Rule("checkpoint.*", FREE, FREE, "does not affect the computation"),
    Rule("observe.*", FREE, FREE, "does not affect the computation"),
    Rule("fault_tolerance.*", FREE, FREE, "does not affect the computation"),
)


class Difference(NamedTuple):
    """What was one thing and is another, or `ABSENT`. `path` is the key, in parts."""

    path: tuple[str, ...]
    was: object
    now: object

    @property
    def key(self) -> str:
        return ".".join(self.path)

    def __str__(self) -> str:
        return f"{self.key} was {_word(self.was)} and is {_word(self.now)}"


ABSENT = object()


def check_compatible(
    stored: Mapping[str, Any],
    current: Mapping[str, Any],
    samples_consumed: Mapping[str, int],
    *,
    fresh_optimizer: bool = False,
) -> list[str]:
    """One line for every difference that the record of the run should keep.

    `stored` is the checkpoint's configuration, `current` the run's, both as `RunConfig.model_dump(mode="json")` makes
    them; `samples_consumed` is by name of phase. `fresh_optimizer` is for a run that takes over no optimizer state.
    Raises `CheckpointError`, in one line, if the run cannot go on from there.
    """
    judged = judge(stored, current, samples_consumed, fresh_optimizer=fresh_optimizer)
    refused = [f"{d} ({rule_of(d.path).why})" for d, verdict in judged if verdict is REFUSED]
    refused += _misplaced(stored, current, samples_consumed)
    if refused:
        raise CheckpointError(
            f"{list_some(refused, '; ')}; undo that, or start a new run under another name and output_dir"
        )
    return [f"{d}: {rule_of(d.path).why}" for d, verdict in judged if verdict is NOTED]


def judge(
    stored: Mapping[str, Any],
    current: Mapping[str, Any],
    samples_consumed: Mapping[str, int],
    *,
    fresh_optimizer: bool = False,
) -> list[tuple[Difference, Verdict]]:
    """Every difference between two configurations with its verdict; see `check_compatible`."""
    stored, current = _with_defaults(stored), _with_defaults(current)
    if not _is_named_list(stored.get("phases", [])):
        raise CheckpointError(
            "the checkpoint's configuration is damaged: its phases are not a list of named phases; use another "
            "checkpoint"
        )
    begun = {name for name, count in samples_consumed.items() if count}
    keeps_states = fresh_optimizer or _same_states(stored, current)
    judged = []
    for difference in find_differences(stored, current):
        rule = rule_of(difference.path)
        harmless = keeps_states and rule.why.endswith(_RESET)
        consumed = not harmless and _is_consumed(difference.path, stored, begun)
        verdict = rule.after if consumed else rule.before
        # A field that another version does not know says nothing; names and shapes of the tensors will.
        judged.append((difference, NOTED if _is_one_sided(difference) and verdict is REFUSED else verdict))
    return judged


def find_differences(
    stored: Mapping[str, Any], current: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[Difference]:
    """The leaves in which two mappings differ; items of lists go by their `name` if they have one."""
    for name in {**stored, **current}:
        was, now = stored.get(name, ABSENT), current.get(name, ABSENT)
        if was != now:
            yield from _differences_of((*path, str(name)), was, now)


def rule_of(path: tuple[str, ...]) -> Rule:
    """The first rule that matches; what no rule knows, as in a checkpoint of another version, is noted."""
    matching = (rule for rule in RULES if _matches(rule.keys.split("."), path))
    return next(matching, Rule(".".join(path), NOTED, NOTED, "unknown to this version"))


def rules_markdown() -> str:
    """The table as Markdown, for the docs."""
    rows = [f"| `{rule.keys}` | {rule.before.value} | {rule.after.value} | {rule.why} |" for rule in RULES]
    return "\n".join(["| key | before | after | why |", "|---|---|---|---|", *rows, ""])


def _matches(pattern: list[str], path: tuple[str, ...]) -> bool:
    """Part by part, for names may have dots; a `*` at the end also takes all that follows."""
    long_enough = len(path) >= len(pattern) if pattern[-1].endswith("*") else len(path) == len(pattern)
    return long_enough and all(map(fnmatchcase, path, pattern))


def _differences_of(path: tuple[str, ...], was: object, now: object) -> Iterator[Difference]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        yield from find_differences(was, now, path)
    elif _is_named_list(was) and _is_named_list(now):
        before, after = _by_name(was), _by_name(now)
        if [name for name in before if name in after] != [name for name in after if name in before]:
            yield Difference(path, list(before), list(after))
        yield from find_differences(before, after, path)
    else:
        yield Difference(path, was, now)


def _is_named_list(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in value
    )


def _by_name(items: Any) -> dict[str, Mapping[str, Any]]:
    return {item["name"]: item for item in items}


def _is_consumed(path: tuple[str, ...], stored: Mapping[str, Any], begun: set[str]) -> bool:
    """Whether samples have been consumed that the key decides about."""
    if path[0] == "phases":
        return len(path) > 1 and path[1] in begun  # their order is looked at in `_misplaced`
    if path[:2] == ("data", "sources") and path[-1] == "code":
        phases = _by_name(stored.get("phases", []))
        return any(phases.get(name, {}).get("fim_rate") for name in begun)
    return bool(begun)


def _is_one_sided(difference: Difference) -> bool:
    return difference.path[0] == "model" and ABSENT in (difference.was, difference.now)


def _misplaced(stored: Mapping[str, Any], current: Mapping[str, Any], samples: Mapping[str, int]) -> Iterator[str]:
    """Phases that have begun and would be trained in another place, or again."""
    before, after = (list(_by_name(config.get("phases", []))) for config in (stored, current))
    begun = [name for name in after if samples.get(name)]
    for name in begun:
        if name in before and before.index(name) != after.index(name):
            yield (
                f"phases.{name} was phase {before.index(name) + 1} and is phase {after.index(name) + 1} (its order "
                "of samples depends on the position; add new phases at the end)"
            )
    for name in begun[:-1]:
        planned = _num_samples(current["phases"][after.index(name)])
        if planned is not None and planned > samples[name]:
            yield (
                f"phases.{name} ended after {samples[name]:,} samples and would now end after {planned:,}, but phase "
                f"'{begun[-1]}' has begun since"
            )


def _num_samples(phase: Mapping[str, Any]) -> int | None:
    try:
        return PhaseConfig.model_validate(dict(phase)).num_samples
    except ValidationError:
        return None


def _same_states(stored: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether the optimizer keeps the same states of the same parameters; False if that is unknown."""
    try:
        runs = [RunConfig.model_validate(dict(config)) for config in (stored, current)]
    except ValidationError:
        return False
    first, second = (optimizer_states(table_with(run.model, run.lora), run.optim) for run in runs)
    return first == second


def _with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the fields that have come into being since it was written."""
    try:
        return RunConfig.model_validate(dict(config)).model_dump(mode="json")
    except ValidationError:  # of another version: compared as it is
        return config


def _word(value: object) -> str:
    if value is ABSENT:
        return "not there"
    if isinstance(value, Mapping):
        return "there"
    return "null" if value is None else shown(value)
