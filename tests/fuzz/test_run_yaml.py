"""Run configurations: a file, what it extends, the model that it names, and overrides of a command line."""

from pathlib import Path

from fuzz.format import Format
from fuzz.suite import check
from fuzz.trees import yaml_mutator
from glmforge.config import load_config, resolve_layout

_RUN = """\
extends: base.yaml
name: fuzzed
seed: 7
model:
  preset: {directory}/model.yaml
  rope_theta: 1e4
data:
  tokenizer: tokens
  sources:
    - {{name: text, path: shards/text, weight: 2}}
    - {{name: code, path: shards/code, code: true}}
  held_out: [{{name: held, path: shards/held}}]
phases:
  - name: main
    tokens: 15e6
    seq_len: 128
    batch_size: 32
    batch_ramp: {{start: 8, increment: 8, tokens: 1e6}}
    sources: {{text: 0.5, code: 1}}
    fim_rate: 0.1
  - {{name: long, steps: 10, seq_len: 256, batch_size: 4, packing: best_fit, rope_theta: 1000000.0}}
observe: {{evaluate_every: 100}}
"""
_BASE = """\
optim:
  lr: 3e-4
  min_lr: 3.0e-05
  warmup_steps: 10
  rules:
    - {match: "*.norm.weight", lr_scale: 0.5}
parallel: {dp_shard: auto, tp: 1, micro_batch_size: 2}
checkpoint: {every_steps: 50}
precision: {compute: bf16}
"""
_MODEL = """\
vocab_size: 512
hidden_size: 48
num_hidden_layers: 4
first_k_dense_replace: 1
intermediate_size: 80
moe_intermediate_size: 32
num_attention_heads: 4
num_key_value_heads: 2
head_dim: 16
use_qk_norm: true
rope_theta: 1e6
max_position_embeddings: 256
n_routed_experts: 8
n_shared_experts: 1
num_experts_per_tok: 2
routed_scaling_factor: 2.5
num_nextn_predict_layers: 1
eos_token_id: [476]
pad_token_id: 476
"""


def write(directory: Path) -> None:
    (directory / "run.yaml").write_text(_RUN.format(directory=directory))
    (directory / "base.yaml").write_text(_BASE)
    (directory / "model.yaml").write_text(_MODEL)


def read(directory: Path) -> object:
    """What `train` and `plan` do before they import torch; `num_steps` walks the batch ramp."""
    config = load_config(directory / "run.yaml")
    return config.num_steps, config.num_tokens, resolve_layout(config, 1)


def bomb(text: str):
    """A bomb in the place of the run's file."""
    return lambda directory: (directory / "run.yaml").write_text(text)


def _aliases(levels: int, form: str) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        items = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {form.format(items)}")
    return "\n".join(lines)


def _merge_aliases(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        items = ", ".join(f"k{n}: *a{level - 1}" for n in range(9))
        lines.append(f"a{level}: &a{level} {{{items}}}")
    return "\n".join(lines)


_BOMBS = {
    "alias_bomb": _aliases(9, "[{}]"),
    "alias_bomb_of_mappings": _merge_aliases(9),
    "aliases_in_fields": "model: &m [x]\nphases: &p [*m, *m, *m, *m]\ndata: &d [*p, *p, *p, *p]\noptim: [*d, *d, *d]",
    "alias_loop": "name: &a [*a]",
    "deep_flow": "name: " + "[" * 10_000,
    "deep_flow_closed": "name: " + "[" * 3_000 + "]" * 3_000,
    "deep_mappings": "name: " + "{a: " * 3_000 + "1" + "}" * 3_000,
    "deep_block": "\n".join(" " * n + "a:" for n in range(1000)),
    "deep_lists": "- " * 20_000 + "a",
    "digits": "seed: " + "9" * 5_000,
    "digits_of_a_float": "seed: " + "9" * 100_000 + ".0",
    "huge_exponent": "seed: 1e308",
    "overflow": "seed: 1e999",
    "overflow_of_steps": "extends: base.yaml\nphases: [{name: a, steps: 1e300, seq_len: 1e300, batch_size: 1e300}]",
    "model_of_zeros": "model: /dev/zero",
    "model_of_stdin": "model: /dev/stdin",
    "model_in_memory": "model: /proc/self/mem",
    "model_is_a_null_byte": 'model: "a\\0b"',
    "model_has_a_long_name": f"model: {'x' * 5000}",
    "extends_zeros": "extends: /dev/zero",
    "extends_long": f"extends: {'x' * 5000}",
    "extends_null_byte": 'extends: "a\\0b"',
    "extends_itself": "extends: run.yaml",
    "extends_many": "extends: [" + "base.yaml, " * 50_000 + "base.yaml]",
    "many_keys": "\n".join(f"key{n}: 1" for n in range(30_000)),
    "many_mistakes": "phases:\n" + "\n".join(f"- {{x{n}: 1}}" for n in range(5_000)),
    "many_documents": "---\na: 1\n" * 10_000,
    "python_object": "name: !!python/object/apply:os.system ['touch /tmp/fuzz-was-here']",
    "python_name": "name: !!python/name:os.system",
    "python_module": "name: !!python/module:antigravity",
    "binary": "name: !!binary " + "A" * 100_000,
    "timestamp": "name: 2001-01-01",
    "merge_key": "base: &b {name: x}\n<<: *b",
    "surrogates": 'name: "\\ud800"',
    "escape_codes": 'name: "\\e[31m\\u2028"\n"\\e[2J": 1',
    "long_scalar": "name: " + "x" * 500_000,
    "tabs": "\tname: x",
    "tag_directive": "%TAG ! tag:yaml.org,2002:python/\n---\nname: !object/apply:os.system [id]",
    "utf_16": "\ufeffname: x",
    "many_steps": "\n".join(
        [
            *_RUN.format(directory=".").splitlines()[:9],
            "phases: [{name: a, tokens: 1e15, seq_len: 1,"
            " batch_size: 1000000000, batch_ramp: {start: 1, increment: 1, tokens: 1e14}}]",
        ]
    ),
}

FORMAT = Format(
    name="run_yaml",
    write=write,
    read=read,
    mutators={"*.yaml": yaml_mutator()},
    bombs={name: bomb(text) for name, text in _BOMBS.items()},
    lines=21,  # one for each mistake, each with its place
)


def test_mutations_and_bombs() -> None:
    check(__name__)
