"""Runs to arguments of Megatron-LM and back; what cannot be expressed is named. Real Megatron: tests/backends."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config.load import load_config
from glmforge.config.megatron import from_arguments, to_arguments
from glmforge.config.megatron_words import known_arguments, words_of_script
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError

RUN = """
name: glm
seed: 5
model: {preset: MODEL, eos_token_id: EOS, pad_token_id: PAD}
data:
  tokenizer: data/tokenizer
  sources: [{name: web, path: data/web, weight: 0.75}, {name: code, path: data/code, weight: 0.25}]
  held_out: [{name: web, path: data/web-held-out}]
phases: [{name: pretrain, steps: 1000, seq_len: 256, batch_size: 64}]
optim: {matrix_optimizer: adamw, warmup_steps: 10}
parallel: {micro_batch_size: 2}
checkpoint: {every_steps: 100, keep_every_steps: 200}
observe: {evaluate_every: 100, evaluate_tokens: 65_536}
"""


def run_of(model: str, *overrides: str) -> RunConfig:
    """A run that Megatron can express. It knows end-of-text tokens from the tokenizer; a large vocabulary has GLM's."""
    is_glm = load_config(RUN.replace("MODEL", model).replace("EOS", "[]").replace("PAD", "null")).model.vocab_size > 1e5
    given = RUN.replace("EOS", "[151329, 151336, 151338]" if is_glm else "[]").replace(
        "PAD", "151329" if is_glm else "null"
    )
    return load_config(given.replace("MODEL", model), overrides)


@pytest.mark.parametrize("model", preset_names("model"))
def test_a_run_of_every_preset_comes_back_equal(model: str) -> None:
    config = run_of(model)
    words, lacking = to_arguments(config)
    assert lacking == []
    assert from_arguments(words, "words").config == config


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "phases.0.steps=null",
            "phases.0.tokens=16_384_000",
            "optim.warmup_steps=null",
            "optim.warmup_tokens=1_638_400",
        ],
        [
            *("phases.0.steps=null", "phases.0.tokens=16_392_192", "optim.warmup_steps=null"),
            *("phases.0.batch_ramp={start: 16, increment: 16, tokens: 3_145_728}", "optim.warmup_tokens=524_288"),
        ],
        ["optim.schedule=wsd", "optim.decay_share=0.25", "optim.grad_clip=null", "optim.betas=[0.8, 0.9]"],
        ["optim.matrix_optimizer=muon", "optim.lm_head=adamw", "optim.muon_momentum=0.9", "optim.muon_nesterov=false"],
        ["phases.0.balance=aux", "phases.0.document_mask=false", "phases.0.capacity_factor=1.5"],
        ["phases.0.mtp_loss_weight=0", "model.num_nextn_predict_layers=0", "precision.compute=fp32"],
        ["model.tie_word_embeddings=true", "model.attention_bias=false", "model.n_group=4", "model.topk_group=1"],
        ["parallel.pp=2", "parallel.pipeline_layers=[1, 2]", "parallel.recompute=full"],
        [
            *("parallel.pp=3", "parallel.pipeline_schedule=interleaved_1f1b"),
            *("model.num_hidden_layers=7", "parallel.pipeline_layers=[1, 2, 1, 1, 1, 1]"),
        ],
        [
            "parallel.tp=2",
            "parallel.cp=2",
            "parallel.context_method=ulysses",
            "parallel.ep=2",
            "parallel.ep_overlap=true",
        ],
        ["parallel.ep=2", "parallel.ep_dispatch=deepep", "parallel.dp_replicate=2", "parallel.sequence_parallel=false"],
        ["parallel.cpu_offload=true", "checkpoint.ephemeral_every_steps=10", "checkpoint.background=false"],
        ["observe.evaluate_every=null", "observe.log_every=7", "checkpoint.every_steps=null", "data.num_workers=3"],
    ],
)
def test_what_has_a_counterpart_comes_back(overrides: list[str]) -> None:
    config = run_of("tiny", *overrides)
    words, lacking = to_arguments(config)
    back = from_arguments(words, "words").config
    # The number of tokens of an evaluation that never happens.
    assert [line for line in lacking if not line.startswith("observe: evaluate_tokens")] == []
    assert back.model_copy(update={"observe": config.observe}) == config


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ([], "--bf16 --qk-layernorm --untie-embeddings-and-output-weights --lr-decay-style cosine --optimizer adam"),
        (
            [],
            "--moe-router-enable-expert-bias --moe-layer-freq ([0]*1+[1]*2) --swiglu",
        ),
        ([], "--train-data-path 0.75 data/web 0.25 data/code --valid-data-path data/web-held-out --rotary-base 10000"),
        (["parallel.cp=2", "parallel.context_method=ulysses"], "--context-parallel-size 2 --cp-comm-type a2a"),
        (["parallel.ep=2", "parallel.ep_dispatch=deepep"], "--moe-token-dispatcher-type flex"),
        (["optim.schedule=wsd"], "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 200"),
        (["optim.matrix_optimizer=muon"], "--optimizer muon --muon-extra-scale-factor 0.2"),
        (["parallel.pp=2", "model.num_nextn_predict_layers=2"], "--pipeline-model-parallel-layout Et*3|mmL"),
        (["optim.grad_clip=null"], "--clip-grad 0.0"),
    ],
)
def test_what_is_written_is_megatrons(overrides: list[str], written: str) -> None:
    """A wrong word on the way there and back would not be seen."""
    words = shlex.join(to_arguments(run_of("tiny", *overrides))[0]).replace("'", "") + " "
    for expected in re.split(r" (?=--)", written):
        assert f"{expected} " in words


def test_what_cannot_be_expressed_is_named() -> None:
    _, lacking = to_arguments(load_config(Path(__file__).parents[3] / "configs/pretrain_glm45_355b.yaml"))
    named = {line.split(":")[0]: line for line in lacking}
    for section, keys in {
        "data": ["sources.0.max_epochs 4.0 becomes None", "sources.4.code True becomes False"],
        "optim": ["lm_head 'muon' becomes 'adamw'"],
        "phase": ["fim_rate 0.5 becomes 0.0", "tokens 15000000000000 becomes 15000064229376"],
        "checkpoint": ["local_dir"],
        "fault_tolerance": ["spikes.window 128 becomes None"],
        "phases": ["code_and_reasoning", "long_context_and_agents"],
    }.items():
        for key in keys:
            assert key in named[section]
    assert "model" not in named
    # Ranked by another number of experts: the same arguments, another router.
    _, lacking = to_arguments(run_of("tiny", "model.n_group=4", "model.topk_group=2", "model.num_experts_per_tok=2"))
    assert lacking == ["model.n_group: a group is ranked by its best two experts here, by another number in Megatron"]


def test_only_pre_training_has_arguments() -> None:
    packaged = load_config("demo_sft")
    with pytest.raises(ConfigError, match=r"stage 'sft': pretrain_gpt\.py only trains"):
        to_arguments(packaged)
    with pytest.raises(ConfigError, match="phase 'late': not in this run; choose one of pretrain"):
        to_arguments(run_of("tiny"), "late")


SCRIPT = r"""#!/bin/bash
# --not-an-argument
export CUDA_DEVICE_MAX_CONNECTIONS=1; TP=2
PP=${PP:-2}   # pipeline
HOST=$(hostname)
HIDDEN=512
MODEL_ARGS=(
    --num-layers 4    # layers --neither
    --hidden-size ${HIDDEN} --num-attention-heads 8 --group-query-attention --num-query-groups 2
    --seq-length 1024 --max-position-embeddings 4096 --ffn-hidden-size 1024
    --num-experts 16 --moe-ffn-hidden-size 128 --moe-shared-expert-intermediate-size 128
    --moe-layer-freq '([0]*1+[1]*3)' --moe-router-enable-expert-bias
)
MODEL_ARGS+=(--vocab-size 50257)
TRAIN="--micro-batch-size 1 --global-batch-size 16 --train-iters 100 --lr=3e-4 --lr-warmup-fraction 0.1"
torchrun "${DIST_ARGS[@]}" /opt/Megatron-LM/pretrain_gpt.py "${MODEL_ARGS[@]}" \
    $TRAIN --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --data-path "/data/text" --tokenizer-model /data/tokenizer --use-flash-attn --rl-default-top-p 0.5 "$@" | tee log
"""


def test_a_shell_script_is_read_with_megatrons_defaults() -> None:
    read = from_arguments(words_of_script(SCRIPT, "job.sh"), "job.sh", ["name=mine"])
    model, parallel, optim = read.config.model, read.config.parallel, read.config.optim
    assert (model.hidden_size, model.head_dim, model.first_k_dense_replace) == (512, 64, 1)
    assert model.vocab_size == 50_432  # a multiple of 128 x 2
    assert (parallel.tp, parallel.pp, parallel.pipeline_layers) == (2, 2, [2, 2])
    assert (read.config.seed, optim.betas, optim.weight_decay, optim.schedule) == (1234, (0.9, 0.999), 0.01, "linear")
    assert (optim.lr, optim.warmup_steps, read.config.phases[0].steps) == (3e-4, 10, 100)
    assert (read.config.name, str(read.config.data.sources[0].path)) == ("mine", "/data/text")
    assert read.speed_only == ["--use-flash-attn"]
    assert "--rl-default-top-p: no counterpart" in read.not_read
    for different in ("--hidden-dropout: is 0.1 here", "--moe-router-score-function: is softmax", "--split None"):
        assert any(line.startswith(different) for line in read.not_read), different


def test_a_command_line_of_its_own_is_read() -> None:
    assert words_of_script("--num-layers 4 --moe-layer-freq '([0]*1+[1]*3)' > log", "-") == [
        *("--num-layers", "4", "--moe-layer-freq", "([0]*1+[1]*3)")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "--num-layer 4 --lrr 2",
            r"unknown arguments: --num-layer \(did you mean --num-layers\?\), 4.*--lrr \(did you",
        ),
        ("--lr fast", "argument --lr: invalid .* value: 'fast'"),
        ("--lr nan", "argument --lr: invalid .* value: 'nan'"),
        ("--num-layers " + "9" * 40, "argument --num-layers: invalid"),
        ("--lr-decay-style never", "--lr-decay-style: invalid choice: 'never'"),
        ("--rampup-batch-size 1 2", "--rampup-batch-size: expected 3 arguments"),
        ("--num-experts 0", "--num-experts: missing, or less than 1"),
        ("--tensor-model-parallel-size 0", "--tensor-model-parallel-size: missing, or less than 1"),
        ("--moe-shared-expert-intermediate-size 100", "100 is not a multiple of 32"),
        ("--moe-layer-freq 2", "GLM has dense layers first"),
        ("--moe-layer-freq ([1]*1+[0]*2)", "GLM has dense layers first"),
        ("--moe-layer-freq " + "[1]*9999+" * 99, "GLM has dense layers first"),
        ("--pipeline-model-parallel-layout E(t|)*9x", "use E, t, m, L and |"),
        ("--lr-decay-style inverse-square-root", "optim.schedule: should be"),
        ("--optimizer sgd", "optim.matrix_optimizer: should be"),
        ("--global-batch-size -1", "batch_size: should be greater than 0"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(change: str, message: str) -> None:
    words, _ = to_arguments(run_of("tiny"))
    with pytest.raises(ConfigError, match=message) as refused:
        from_arguments([*words, *change.split()], "job.sh")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("python pretrain_gpt.py --lr $LR", r"job.sh: \$LR: has no value in the script"),
        ("python pretrain_gpt.py --seed $(date)", "needs the shell"),
        ("python pretrain_gpt.py --lr '1", "cannot be read as a shell script"),
        ("A=$B\nB=$A\npython pretrain_gpt.py $A", "refer to each other too deeply"),
        (
            "\n".join([*(f"V{n + 1}=$V{n}$V{n}$V{n}$V{n}$V{n}$V{n}" for n in range(9)), "V0=" + "a" * 99, "p.py $V9"]),
            "deeply",
        ),
    ],
)
def test_scripts_that_need_a_shell_are_refused(script: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        words_of_script(script, "job.sh")


def test_the_table_names_keys_that_runs_have() -> None:
    config = run_of("tiny")
    tree: dict[str, Any] = config.model_dump() | {"phase": config.phases[0].model_dump()}
    for row in known_arguments().values():
        key = row.use.partition(":")[0]
        if re.fullmatch(r"[a-z_.]+", key) and key != "speed":
            section, _, name = key.rpartition(".")
            assert name in (tree[section] if section else tree), row


def test_the_commands(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace("MODEL", "tiny").replace("EOS", "[]").replace("PAD", "null"))
    there = CliRunner().invoke(app, ["configs", "to-megatron", str(file), "parallel.compile=true"])
    assert there.exit_code == 0
    assert "not expressed: parallel: compile True becomes False" in there.stderr
    (tmp_path / "job.sh").write_text(f"torchrun pretrain_gpt.py {there.stdout.strip()} --log-progress --fim-data")
    back = CliRunner().invoke(app, ["configs", "from-megatron", str(tmp_path / "job.sh")])
    assert back.exit_code == 0
    assert "# not read: --fim-data: no counterpart" in back.stdout
    assert "--log-progress" in back.stdout
    assert load_config(back.stdout) == load_config(file)
