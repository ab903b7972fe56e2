"""Arguments of Megatron-LM's `pretrain_gpt.py` from a run's file, and a run's file from such arguments.

Megatron trains one phase at a time: one sequence length, one mixture, one RoPE base. Arguments that mean the same as a
key stand in `megatron_arguments.tsv`; what has another form on the other side is converted here, each way. What the
arguments cannot express is found by reading them back: whatever is then different in the run is reported, so that no
key is lost in silence. Arguments that have no counterpart are reported in the same way.
"""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.config.load import load_config
from glmforge.config.megatron_words import Argument, Arguments, known_arguments, parse_arguments
from glmforge.config.model import MAX_LAYERS
from glmforge.config.phase import PhaseConfig
from glmforge.config.pipeline import balanced_split, stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.config.tree import dump, quick_value
from glmforge.errors import ConfigError

_LAYER_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_NEEDED = (
    *("--num-experts", "--num-layers", "--hidden-size", "--num-attention-heads", "--moe-ffn-hidden-size"),
    *("--seq-length", "--tensor-model-parallel-size", "--pipeline-model-parallel-size"),
    "--make-vocab-size-divisible-by",
)
_LAST_GLM_TOKEN = 151_338  # the largest default of model.eos_token_id; Megatron asks the tokenizer for them


class FromMegatron(NamedTuple):
    """A run read from arguments: checked, as YAML, what was not read, and what does not change what is learnt."""

    config: RunConfig
    text: str
    not_read: list[str]
    speed_only: list[str]


def to_arguments(config: RunConfig, phase_name: str | None = None) -> tuple[list[str], list[str]]:
    """The words of the command line for a phase (default: the first), and lines on what they do not say of the run."""
    phase = next((each for each in config.phases if phase_name in (None, each.name)), None)
    if phase is None:
        names = ", ".join(each.name for each in config.phases)
        raise ConfigError(f"phase '{phase_name}': not in this run; choose one of {names}")
    if config.stage not in ("pretrain", "midtrain") or config.lora is not None:
        what = "lora" if config.lora is not None else f"stage '{config.stage}'"
        raise ConfigError(f"{what}: pretrain_gpt.py only trains whole models on next tokens")
    flat, options = _flat(config, phase), dict[str, Any]()
    for name, row in known_arguments().items():
        key, values = _use(row)
        if row.use[:1] in "=+" and row.use:
            options[name] = row.use[1:] or True
        elif key in flat and (config.optim.matrix_optimizer == "muon" or "--muon" not in name):
            value = next((theirs for theirs, ours in values.items() if ours == flat[key]), flat[key])
            options[name] = None if value == "" or (row.choices and value not in row.choices.split(",")) else value
    options |= _schedule_options(config, phase) | _data_options(config, phase) | _other_options(config, phase)
    words: list[str] = []
    for name, value in options.items():
        if value is not None and value is not False:
            listed = value if isinstance(value, list) else [value]
            words += [name, *([] if known_arguments()[name].type == "flag" else map(str, listed))]
    back = from_arguments(words, "the arguments").config
    return words, _differences(config, phase, flat, _flat(back, back.phases[0]))


def from_arguments(words: Sequence[str], source: str, overrides: Sequence[str] = ()) -> FromMegatron:
    """The run that the arguments describe, changed by `overrides` (key.sub=value). Raises `ConfigError`."""
    given, flat, not_read = parse_arguments(words, source), dict[str, Any](), list[str]()
    muon = "muon" in given.value("--optimizer")
    for name, row in known_arguments().items():
        key, values = _use(row)
        value = given.value(name) if key or row.use[:1] == "=" or (row.use and name in given) else None
        if row.use[:1] == "=" and str(value) != (row.use[1:] or "True"):
            not_read.append(f"{name}: is {value} here, but glmforge always has {row.use[1:] or 'it'}")
        elif key and (muon or "--muon" not in name):
            value = values.get("" if value is None or value is False else str(value), value)
            if flat.setdefault(key, value) != value:
                not_read.append(f"{name}: goes with other arguments for {key}, which are given otherwise")
    for name in _NEEDED:
        if (given.value(name) or 0) < 1:
            raise ConfigError(
                f"{source}: {name}: missing, or less than 1; glmforge trains GLM Mixture-of-Experts models"
            )
    for read in (_read_model, _read_schedule, _read_data, _read_engine):
        flat |= read(given, flat, not_read)
    not_read += [f"{name}: no counterpart" for name in given.unused()]
    speed = [name for name in given if known_arguments()[name].use.startswith(("speed", "+"))]
    tree: dict[str, Any] = {}
    for key, value in (flat | ({"optim.lm_head": "adamw"} if muon else {})).items():
        section, _, name = key.rpartition(".")
        if value is not None or key in ("optim.grad_clip", "model.pad_token_id"):
            (tree.setdefault(section, {}) if section else tree)[name] = value
    tree["phases"] = [tree.pop("phase")]
    text = dump({name: tree[name] for name in RunConfig.model_fields if name in tree})
    try:
        return FromMegatron(load_config(text, overrides), text, not_read, speed)
    except ConfigError as error:
        raise ConfigError(f"{source}: as a run: {'; '.join(f'{error}'.splitlines())}") from None


def _use(row: Argument) -> tuple[str, dict[str, Any]]:
    """The key that an argument is for, and the values that are called otherwise, theirs to ours."""
    key, _, pairs = row.use.partition(":")
    if not key or key[0] in "=+" or key == "speed":
        return "", {}
    split = (pair.partition("=") for pair in pairs.split("|") if pair)
    return key, {theirs: quick_value(ours) for theirs, _, ours in split}


def _read_model(given: Arguments, flat: Mapping[str, Any], not_read: list[str]) -> dict[str, Any]:
    vocab, size = given.value("--padded-vocab-size"), given.value("--vocab-size")
    multiple = given.value("--make-vocab-size-divisible-by") * flat["parallel.tp"]
    if vocab is None and size is None:
        raise ConfigError("--padded-vocab-size: missing; Megatron takes it from the tokenizer: add this argument")
    vocab = vocab or -(-size // multiple) * multiple
    shared, width = given.value("--moe-shared-expert-intermediate-size"), flat["model.moe_intermediate_size"]
    if not shared or shared % width:
        raise ConfigError(f"--moe-shared-expert-intermediate-size: {shared} is not a multiple of {width}, as in a GLM")
    return {
        "model.vocab_size": vocab,
        "model.first_k_dense_replace": _dense_layers(given.value("--moe-layer-freq")),
        "model.n_shared_experts": shared // width,
        "model.head_dim": flat["model.head_dim"] or flat["model.hidden_size"] // flat["model.num_attention_heads"],
        "phase.router_bias_rate": flat["phase.router_bias_rate"] if flat["phase.balance"] == "bias" else 0.0,
        **({} if vocab > _LAST_GLM_TOKEN else {"model.eos_token_id": [], "model.pad_token_id": None}),
    }


def _dense_layers(pattern: str) -> int:
    """Leading dense layers of `--moe-layer-freq`, such as ([0]*1+[1]*45); 1: none."""
    text = pattern.replace(" ", "")
    terms = list(_LAYER_TERM.finditer(text)) if len(text) < 100 else []
    layers = [int(bit) for one in terms for bit in one[1].split(",") * int(one[2] or 1)]
    if _LAYER_TERM.sub("", text).strip("()+1") or layers != sorted(layers) or not (layers or text == "1"):
        raise ConfigError(f"--moe-layer-freq: {pattern[:80]!r}: GLM has dense layers first: ([0]*3+[1]*89)")
    return layers.count(0)


def _schedule_options(config: RunConfig, phase: PhaseConfig) -> dict[str, Any]:
    """In iterations where batches have one size and the warm-up is in steps, else in samples."""
    optim, ramp = config.optim, phase.batch_ramp
    in_samples = ramp is not None or optim.warmup_tokens is not None
    unit, per = ("samples", phase.seq_len) if in_samples else ("iters", phase.tokens_per_step)
    warmup, total = optim.warmup_tokens or config.tokens_after(optim.warmup_steps or 0), config.num_tokens / per
    return {
        f"--train-{unit}": phase.num_samples if in_samples else phase.num_steps,
        f"--lr-decay-{unit}": math.ceil(total),
        f"--lr-warmup-{unit}": math.ceil(warmup / per),
        f"--lr-wsd-decay-{unit}": round(optim.decay_share * total) if optim.schedule == "wsd" else None,
        "--lr-wsd-decay-style": "linear" if optim.schedule == "wsd" else None,
        "--rampup-batch-size": [ramp.start, ramp.increment, math.ceil(ramp.tokens / phase.seq_len)] if ramp else None,
        "--adam-beta1": optim.betas[0],
        "--adam-beta2": optim.betas[1],
        "--use-distributed-optimizer": optim.matrix_optimizer != "muon",  # Megatron's Muon does without
    }


def _read_schedule(given: Arguments, flat: Mapping[str, Any], not_read: list[str]) -> dict[str, Any]:
    unit, per = ("iters", 1) if given.value("--train-samples") is None else ("samples", flat["phase.seq_len"])
    total = given.value(f"--train-{unit}")
    if not total:
        raise ConfigError("--train-iters or --train-samples: missing; add one to the arguments")
    decay, fraction = given.value(f"--lr-decay-{unit}") or total, given.value("--lr-warmup-fraction")
    if decay != total:
        not_read.append(f"--lr-decay-{unit} {decay}: glmforge decays over the whole run, {total} here")
    share, shape = given.value(f"--lr-wsd-decay-{unit}"), given.value("--lr-wsd-decay-style")
    if flat["optim.schedule"] == "wsd" and shape != "linear":
        not_read.append(f"--lr-wsd-decay-style {shape}: wsd decays in a straight line in glmforge")
    ramp, warmup = given.value("--rampup-batch-size"), given.value(f"--lr-warmup-{unit}")
    warmup = warmup if fraction is None else round(min(max(fraction, 0.0), 1.0) * decay)
    return {
        "phase.name": "pretrain",
        f"phase.{'steps' if unit == 'iters' else 'tokens'}": total * per,
        "phase.batch_ramp": ramp and {"start": ramp[0], "increment": ramp[1], "tokens": ramp[2] * per},
        "optim.decay_share": share / decay if share and decay > 0 else None,
        f"optim.warmup_{'steps' if unit == 'iters' else 'tokens'}": per * warmup or None,
        "optim.betas": [given.value("--adam-beta1"), given.value("--adam-beta2")],
    }


def _data_options(config: RunConfig, phase: PhaseConfig) -> dict[str, Any]:
    paths = {source.name: source.path for source in config.data.sources}
    if chats := [source.name for source in config.data.sources if source.is_conversations]:
        raise ConfigError(f"data.sources: '{chats[0]}' is a file of conversations; pretrain_gpt.py reads token shards")
    training = [part for name, weight in config.source_weights(phase).items() for part in (weight, paths[name])]
    if not config.data.held_out:
        return {"--data-path": training, "--split": "1,0,0"}
    return {"--train-data-path": training, "--valid-data-path": [each.path for each in config.data.held_out]}


def _read_data(given: Arguments, flat: Mapping[str, Any], not_read: list[str]) -> dict[str, Any]:
    training, split = given.value("--data-path"), given.value("--split")
    if training and not re.fullmatch(r"[\d.]+(, *0)*", split or ""):
        not_read.append(f"--split {split}: set text aside with 'glmforge data tokenize --held-out' instead")
    training, held_out = training or given.value("--train-data-path") or [], given.value("--valid-data-path") or []
    return {"data.sources": _sources(training), "data.held_out": _sources(held_out)}


def _sources(words: Sequence[str]) -> list[dict[str, Any]]:
    """Prefixes, or weights and prefixes by turns. A source is called as its file, numbered where that is taken."""
    weighted = len(words) % 2 == 0 and all(re.fullmatch(r"[\d.eE+-]+", word) for word in words[::2])
    paths = words[1::2] if weighted else words
    names = [Path(path).name.removesuffix("-held-out") for path in paths]
    names = [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names)]
    rows = zip(names, paths, words[::2] if weighted else "1" * len(paths), strict=True)
    return [{"name": name, "path": path, "weight": quick_value(weight)} for name, path, weight in rows]


def _stage_layers(config: RunConfig) -> list[int] | None:
    """Decoder layers of each stage in Megatron, which knows plain and interleaved 1F1B."""
    parallel = config.parallel
    stages = parallel.pp * (stages_per_rank(parallel) if parallel.pipeline_schedule == "interleaved_1f1b" else 1)
    given = parallel.pipeline_layers or []
    return None if stages == 1 else given if len(given) == stages else [*balanced_split(config.model, stages)]


def _other_options(config: RunConfig, phase: PhaseConfig) -> dict[str, Any]:
    model, parallel, observe, layers = config.model, config.parallel, config.observe, _stage_layers(config)
    stages = "|".join(f"t*{number}" if number else "" for number in layers or [])
    save, dense = config.checkpoint.dir or config.output_dir / "megatron", model.first_k_dense_replace
    return {
        "--padded-vocab-size": model.vocab_size,
        "--moe-layer-freq": f"([0]*{dense}+[1]*{model.num_hidden_layers - dense})",
        "--moe-shared-expert-intermediate-size": model.n_shared_experts * model.moe_intermediate_size,
        "--rotary-base": round(phase.rope_theta or model.rope_theta),
        "--pipeline-model-parallel-layout": layers and f"E{stages}{'m' * model.num_nextn_predict_layers}L",
        "--recompute-method": "uniform" if parallel.recompute == "full" else None,
        "--recompute-num-layers": 1 if parallel.recompute == "full" else None,
        "--use-precision-aware-optimizer": parallel.cpu_offload,
        "--distributed-timeout-minutes": math.ceil(parallel.process_group_timeout_s / 60),
        "--micro-batch-size": parallel.micro_batch_size or 1,
        "--save": save,
        "--load": save,
        "--save-interval": config.checkpoint.every_steps or phase.num_steps,
        "--use-persistent-ckpt-worker": config.checkpoint.background,
        "--eval-interval": observe.evaluate_every or phase.num_steps,  # 0.16.1 fails without, also with no evaluation
        "--eval-iters": math.ceil(observe.evaluate_tokens / phase.tokens_per_step) if observe.evaluate_every else 0,
    }


def _read_engine(given: Arguments, flat: Mapping[str, Any], not_read: list[str]) -> dict[str, Any]:
    pp, layout = flat["parallel.pp"], given.value("--pipeline-model-parallel-layout")
    layers = None if layout is None else _layers_of(layout)
    virtual = given.value("--num-virtual-stages-per-pipeline-rank") or (len(layers) // pp if layers else 1)
    if layers is None and pp > 1:
        layers = [flat["model.num_hidden_layers"] // (pp * virtual)] * min(pp * virtual, MAX_LAYERS)
    save = Path(given.value("--save") or "megatron")
    if given.value("--load") not in (None, given.value("--save")):
        not_read.append(f"--load {given['--load']}: convert the checkpoint, then set init_from")
    name = re.sub(r"[^\w.-]|^[._-]+", "", (save.parent if save.name == "megatron" else save).name, flags=re.ASCII)
    steps, evaluations = given.value("--save-interval"), given.value("--eval-iters")
    return {
        "name": name or "megatron",
        "model.rope_theta": given.value("--rotary-base"),
        "parallel.pipeline_schedule": "interleaved_1f1b" if virtual > 1 else "1f1b",
        "parallel.pipeline_stages_per_rank": virtual if virtual > 2 else None,
        "parallel.pipeline_layers": layers,
        "parallel.process_group_timeout_s": max(600, 60 * given.value("--distributed-timeout-minutes")),
        "checkpoint.every_steps": None if steps == given.value("--train-iters") else steps,
        "observe.evaluate_every": flat["observe.evaluate_every"] if evaluations else None,
        "observe.evaluate_tokens": evaluations * flat["phase.seq_len"] * (flat["phase.batch_size"] or 0) or None,
    }


def _layers_of(layout: str) -> list[int]:
    """Decoder layers of each stage of a layout such as Et*3|(tt|)*29,m|L."""
    text = layout.replace(",", "")[:1000]
    for pattern in (r"\(([^()]{1,100})\)\*(\d{1,3})", r"(.)\*(\d{1,3})"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)[: 10 * MAX_LAYERS]
    if re.search(r"[^EtmL|]", text):
        raise ConfigError(f"--pipeline-model-parallel-layout: {layout[:80]!r}: use E, t, m, L and |, as Et*3|t*4|t*3mL")
    return [stage.count("t") for stage in text.split("|")]


def _flat(config: RunConfig, phase: PhaseConfig) -> dict[str, Any]:
    """Every value by its dotted key, as in a run of this phase alone; those of the phase begin with `phase`."""
    weights, tree = config.source_weights(phase), config.model_dump(mode="json")
    tree["model"]["rope_theta"] = phase.rope_theta or config.model.rope_theta
    tree["phase"] = phase.model_copy(update={"sources": None, "rope_theta": None}).model_dump(mode="json")
    tree["data"]["sources"] = [
        one | {"weight": weights[one["name"]]} for one in tree["data"]["sources"] if one["name"] in weights
    ]
    return _leaves(tree | {"phases": None}, "") | {"parallel.pipeline_layers": _stage_layers(config)}


def _leaves(tree: Mapping[str, Any], above: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {f"{place}": row for place, row in enumerate(value)}
        found |= _leaves(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return found


def _differences(config: RunConfig, phase: PhaseConfig, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What the arguments do not say of the run, a line for each section."""
    sections: dict[str, list[str]] = {}
    for key in dict.fromkeys((*ours, *theirs)):
        if ours.get(key) != theirs.get(key):
            section, _, name = key.partition(".")
            values = f"{reprlib.repr(ours.get(key))} becomes {reprlib.repr(theirs.get(key))}"
            sections.setdefault(section, []).append(f"{name or section} {values}")
    lines = [f"{section}: {', '.join(keys)}" for section, keys in sections.items()]
    if config.model.n_group > 1 and config.model.num_experts_per_tok != 2 * config.model.topk_group:
        lines.append("model.n_group: a group is ranked by its best two experts here, by another number in Megatron")
    if others := [each.name for each in config.phases if each is not phase]:
        lines.append(f"phases: {', '.join(others)}: not in these arguments; export each with --phase")
    return lines
