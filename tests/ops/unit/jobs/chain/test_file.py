"""Chains' files: stages, what they name of each other, and what is refused before anything is written."""

import sys
from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.jobs.chain.file import read_stages

MIDTRAIN = """
name: mid
stage: midtrain
data: {sources: [{name: text, path: shards}]}
phases: [{name: main, steps: 4, seq_len: 32, batch_size: 2}]
"""
CHAIN = """
name: life
launch: {launcher: slurm, partition: train, env: {A: "1"}}
stages:
  evaluate:
    needs: [mid]
    command: glmforge evaluate needles ${mid.run} --out ${evaluate.outputs.needles}
    outputs: {needles: "${evaluate.job}/needles.jsonl"}
  corpus:
    command: make-corpus --out ${corpus.outputs.shards}
    outputs: {shards: data/web}
  pretrain:
    needs: [corpus]
    config: demo
    overrides: {output_dir: out/pretrain, data.sources.0.path: "${corpus.outputs.shards}"}
    launch: {nodes: 2, env: {B: "2"}}
  mid:
    needs: [pretrain]
    config: mid.yaml
    overrides: ["init_from=${pretrain.run}", output_dir=out/pretrain-2]
"""


@pytest.fixture
def stages_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mid.yaml").write_text(MIDTRAIN)

    def read(text=CHAIN):
        Path("chain.yaml").write_text(text)
        return [job for _, job in read_stages(Path("chain.yaml"), tmp_path / "jobs", tmp_path)[1]]

    return read


def test_stages_come_in_an_order_in_which_they_can_run(stages_of, tmp_path):
    corpus, pretrain, mid, evaluate = (job.description for job in stages_of())
    assert [stage.name for stage in (corpus, pretrain, mid, evaluate)] == [
        "life-corpus",
        "life-pretrain",
        "life-mid",
        "life-evaluate",
    ]
    assert {stage.part_of for stage in (corpus, pretrain, mid, evaluate)} == {"life"}
    assert corpus.command == ["make-corpus", "--out", str(tmp_path / "data/web")]
    assert pretrain.run == tmp_path / "out/pretrain"
    needles = str(tmp_path / "jobs/life-evaluate/needles.jsonl")
    start = [sys.executable, "-m", "glmforge", "evaluate", "needles"]
    assert evaluate.command == [*start, str(tmp_path / "out/pretrain-2"), "--out", needles]


def test_a_run_that_is_not_there_yet_brings_model_and_tokenizer(stages_of, tmp_path):
    _, pretrain, mid, _ = stages_of()
    assert pretrain.config.data.sources[0].path == tmp_path / "data/web"
    assert mid.config.init_from == tmp_path / "out/pretrain"
    assert mid.config.model == pretrain.config.model
    assert mid.config.data.tokenizer == tmp_path / "out/pretrain/tokenizer"
    assert "glmforge-chain" not in mid.config.model_dump_json()


def test_a_run_whose_directory_begins_like_another_one(stages_of, tmp_path):
    late = """
  late:
    needs: [mid]
    config: mid.yaml
    overrides: ["init_from=${mid.run}", output_dir=out/late]
"""
    stage = {job.directory.name: job for job in stages_of(CHAIN + late)}["life-late"]
    assert stage.config.init_from == tmp_path / "out/pretrain-2"
    assert stage.config.data.tokenizer == tmp_path / "out/pretrain-2/tokenizer"


def test_options_of_a_stage_lie_over_the_common_ones(stages_of):
    corpus, pretrain, *_ = (job.description.launch for job in stages_of())
    assert (corpus.nodes, corpus.env) == (1, {"A": "1"})
    assert (pretrain.nodes, pretrain.env, pretrain.partition) == (2, {"A": "1", "B": "2"}, "train")


def test_options_may_name_what_a_stage_needs(stages_of, tmp_path):
    _, pretrain, *_ = stages_of(CHAIN.replace('env: {B: "2"}', 'env: {B: "${corpus.outputs.shards}"}'))
    assert pretrain.description.launch.env["B"] == str(tmp_path / "data/web")


def test_a_secret_has_one_value(stages_of, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "before")
    text = CHAIN.replace('{A: "1"}', '{HF_TOKEN: "one"}')
    assert {job.description.launch.env["HF_TOKEN"] for job in stages_of(text)} == {"***"}
    with pytest.raises(ConfigError, match=r"stage pretrain: launch.env.HF_TOKEN: other stages give this secret"):
        stages_of(text.replace('env: {B: "2"}', 'env: {HF_TOKEN: "two"}'))


def test_a_dollar_that_is_meant(stages_of):
    *_, evaluate = stages_of(CHAIN.replace("needles ${mid.run}", "needles $${mid.run} $HOME"))
    assert "${mid.run}" in evaluate.description.command
    assert "$HOME" in evaluate.description.command


def test_a_ladder_of_needs_takes_no_time(stages_of):
    rungs = "\n".join(
        f"  a{n}: {{needs: [a{n - 1}, b{n - 1}], command: x}}\n  b{n}: {{needs: [a{n - 1}, b{n - 1}], command: x}}"
        for n in range(1, 49)
    )
    start = "name: ladder\nstages:\n  a0: {command: x}\n  b0: {command: x}\n"
    assert len(stages_of(f"{start}{rungs}\n  end: {{needs: [a48], command: 'x ${{a0.job}}'}}")) == 99


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("needs: [corpus]", "needs: [mid]", "need each other in a circle: "),
        ("needs: [corpus]", "needs: [corpse]", "there is no stage 'corpse'; did you mean 'corpus'?"),
        ("${pretrain.run}", "${pretrian.run}", "${pretrian.run}: unknown, or of a stage that is not in needs; did you"),
        ("${pretrain.run}", "${evaluate.job}", "stage mid: ${evaluate.job}: unknown, or of a stage that is not in"),
        ("needles ${mid.run}", "needles ${mid.run", "stage evaluate: ${mid.run: unknown"),
        ("out/pretrain-2", "out/pretrain", "stage mid: writes to "),
        ("shards: data/web", "shards: out/pretrain", "stage pretrain: writes to "),
        ("config: demo", "config: demox", "stage pretrain: no run preset or file named 'demox'"),
        (
            "output_dir: out/pretrain,",
            "optim.lrr: 1,",
            "stage pretrain: override 'optim.lrr=1': optim.lrr: unknown key",
        ),
        ("nodes: 2", "nodez: 2", "stage pretrain: launch: nodez: unknown key; did you mean 'nodes'?"),
        ("nodes: 2", "launcher: local, nodes: 2", "stage pretrain: launch: nodes: the launcher local runs on one node"),
        ("nodes: 2", "launcher: mpi, nodes: 2", "stage pretrain: launch: a stage that runs from here needs"),
        ("nodes: 2", "dependency: afterok:1", "launch: array and dependency belong to the chain"),
        ("    config: demo\n", "    config: demo\n    command: x\n", "either a config (a training run) or a command"),
        ("    config: demo\n", "", "either a config (a training run) or a command"),
        ("command: make-corpus --out ${corpus.outputs.shards}", 'command: "x \'y"', "cannot be split into words"),
        ("  corpus:", "  Corpus!:", "stages.Corpus!"),
        ("name: life", "name: ../life", "name"),
        ("name: life", f"name: {'x' * 60}", "more than 64 characters"),
    ],
)
def test_wrong_chains_are_one_line(stages_of, old, new, problem):
    assert old in CHAIN
    with pytest.raises(ConfigError) as raised:
        stages_of(CHAIN.replace(old, new))
    assert problem in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 2  # pydantic may find two mistakes


def test_a_stage_that_is_not_needed_may_not_be_named(stages_of):
    """Although it comes before."""
    text = CHAIN.replace("stages:\n", "stages:\n  apart: {command: x}\n").replace("${pretrain.run}", "${apart.job}")
    with pytest.raises(ConfigError, match=r"stage mid: \$\{apart.job\}: unknown"):
        stages_of(text)


def test_two_stages_may_not_write_their_curves_to_one_place(stages_of):
    text = CHAIN.replace("output_dir: out/pretrain,", "output_dir: out/pretrain, observe.tensorboard_dir: tb,")
    with pytest.raises(ConfigError, match=r"stage mid: writes to .*/tb, as stage pretrain does;"):
        stages_of(text.replace("output_dir=out/pretrain-2", "output_dir=out/pretrain-2, observe.tensorboard_dir=tb"))


def test_an_error_names_the_run_and_not_what_stands_in_for_it(stages_of, tmp_path):
    with pytest.raises(ConfigError) as raised:
        stages_of(CHAIN.replace("${pretrain.run}", "${pretrain.run}/none"))
    assert str(tmp_path / "out/pretrain/none") in str(raised.value)
    assert "glmforge-chain" not in str(raised.value)


def test_no_stages(stages_of):
    with pytest.raises(ConfigError, match="stages"):
        stages_of("name: life\nstages: {}\n")
