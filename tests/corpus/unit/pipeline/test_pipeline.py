"""Pipeline files: what is read, and what is refused in which words."""

import pytest

from glmforge.config.tree import dump
from glmforge.errors import ConfigError, DataError
from glmforge_corpus.pipeline import registry
from glmforge_corpus.pipeline.executors import make_executor
from glmforge_corpus.pipeline.pipeline import dump_pipeline, load_pipeline, parse_pipeline, pipeline_of

FILE = """\
output: out
seed: 3
stages:
  - numbers: {shards: 2}
  - clean: [shout, shout: {refuse: ["!"]}]
executors:
  slurm: {partition: cpu}
"""


@pytest.fixture(autouse=True)
def _stages(monkeypatch):
    monkeypatch.setitem(registry.STAGES, "numbers", "helpers.corpus:Numbers")
    monkeypatch.setitem(registry.BLOCKS, "shout", "helpers.corpus:Shout")


def test_a_file(tmp_path):
    (tmp_path / "p.yaml").write_text(FILE)
    pipeline = load_pipeline(tmp_path / "p.yaml", ["stages.0.numbers.shards=5", "executors.local.workers=2"])
    assert [stage.kind for stage in pipeline.stages] == ["numbers", "clean"]
    assert pipeline.stages[0].shards == 5
    assert [block.refuse for block in pipeline.stages[1].blocks] == [(), ("!",)]
    assert (pipeline.seed, pipeline.executors.local.workers, pipeline.executors.slurm.partition) == (3, 2, "cpu")
    again = parse_pipeline(dump(dump_pipeline(pipeline)))
    assert again == pipeline


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("output: out\n", ""), r"missing, without a default: output"),
        (("seed: 3", "sede: 3"), r"p:2: sede: unknown key; did you mean 'seed'\?"),
        (("numbers:", "nombers:"), r"p:4: unknown stage 'nombers': did you mean 'numbers'\?"),
        (("shards: 2", "shard: 2"), r"p:4: numbers: shard: unknown key; did you mean 'shards'\?"),
        (("shards: 2", "shards: many"), r"p:4: numbers: shards: should be a valid integer, not 'many'"),
        (("[shout,", "[shoot,"), r"p:5: unknown block 'shoot': did you mean 'shout'\?"),
        (("refuse:", "refusal:"), r"p:5: shout: refusal: unknown key; did you mean 'refuse'\?"),
        (('[shout, shout: {refuse: ["!"]}]', "shout"), r"p:5: clean: should be a list of blocks"),
        (("numbers: {shards: 2}", "{numbers: {}, exact: {}}"), r"p:4: a stage should be its name, or one name"),
        (("partition: cpu", "partitions: cpu"), r"executors.slurm"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        parse_pipeline(FILE.replace(*change), "p")


@pytest.mark.parametrize(
    ("inputs", "lines"),
    [
        ("[]", ["p:3: extract: inputs: should not be empty, not []"]),
        (
            "[{source: s, pth: x}]",
            [
                "p:3: extract: inputs.0: missing, without a default: path",
                "p:3: extract: inputs.0.pth: unknown key; did you mean 'path'?",
            ],
        ),
    ],
)
def test_a_list_with_a_wrong_item_is_not_called_empty(inputs, lines):
    with pytest.raises(ConfigError) as error:
        parse_pipeline(f"output: out\nstages:\n  - extract: {{inputs: {inputs}}}\n", "p")
    assert str(error.value).splitlines() == lines


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "must have the form dotted.key=value, such as output=out2"),
        (".=3", "must have the form"),
        ("seed=", "value is missing; write"),
        ("stages.7=x", "'7' is not an index of this list of 2"),
        ("stages.0.numbers.shard=1", "numbers: shard: unknown key; did you mean 'shards'"),
    ],
)
def test_overrides_that_are_none(override, message):
    with pytest.raises(ConfigError) as error:
        parse_pipeline(FILE, "p", [override])
    assert str(error.value).startswith(f"override '{override}': {message}")


@pytest.mark.parametrize(
    ("shards", "refuse", "seed", "message"),
    [
        ("many", [], 0, "--shards: should be a valid integer, not 'many'"),
        (1, ["a", 3], 0, "--refuse: should be a valid string, not 3"),
        (1, [], -1, "command line: seed: should be greater than or equal to 0, not -1"),
    ],
)
def test_mistakes_are_told_by_the_names_that_keys_go_by(shards, refuse, seed, message):
    stages = [{"numbers": {"shards": shards}}, {"clean": [{"shout": {"refuse": refuse}}]}]
    names = {"numbers.shards": "--shards", "shout.refuse": "--refuse"}
    with pytest.raises(ConfigError) as error:
        pipeline_of({"output": "out", "seed": seed, "stages": stages}, "command line", names)
    assert str(error.value) == message


def test_an_executor_that_is_unknown_or_not_set_up():
    pipeline = parse_pipeline(FILE.replace("  slurm: {partition: cpu}\n", "  local: {workers: 1}\n"), "p")
    with pytest.raises(DataError, match=r"unknown executor 'pbs': there are local, slurm, ray"):
        make_executor("pbs", pipeline.executors)
    with pytest.raises(DataError, match=r"unknown executor 'slrum': did you mean 'slurm'\?"):
        make_executor("slrum", pipeline.executors)
    with pytest.raises(DataError, match=r"executor 'slurm': .* add 'executors.slurm'"):
        make_executor("slurm", pipeline.executors)
