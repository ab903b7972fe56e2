import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config import dump_config, load_config
from glmforge.config.load import load_model_config
from glmforge.config.presets import preset_names
from glmforge.config.tree import dump, parse, to_value
from glmforge.errors import ConfigError

RUN = """
name: base
model: tiny
data: {tokenizer: tok, sources: [{name: a, path: a}]}
phases: [{name: p, steps: 2, seq_len: 32, batch_size: 4}]
optim:
  lr: 1e-3
  min_lr: 0
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_of(source: str | Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("2.5E-4", 2.5e-4),
        ("3.", 3.0),
        ("15e12", 15 * 10**12),
        ("14_625e9", 14_625 * 10**9),
        ("012", 12),
        ("4.0", 4.0),
        ("true", True),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("e5", "e5"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read = to_value(parse(text, "text"))
    assert read == value
    assert type(read) is type(value)


@settings(deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63) + 1, 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_dump_and_parse_are_inverse(value: object) -> None:
    assert to_value(parse(dump(value), "text")) == value


def test_extends_merges_mappings_and_replaces_lists(tmp_path: Path) -> None:
    write(tmp_path / "bases/base.yaml", RUN)
    write(tmp_path / "bases/fast.yaml", "extends: base.yaml\noptim: {lr: 5e-3, grad_clip: null}\nseed: 1\n")
    write(tmp_path / "other.yaml", "seed: 2\nparallel: {compile: true}\n")
    top = "extends: [bases/fast.yaml, other.yaml]\nphases: [{name: q, steps: 9, seq_len: 8, batch_size: 2}]\n"
    config = load_config(write(tmp_path / "run.yaml", top))
    assert (config.name, config.seed) == ("base", 2)
    assert (config.optim.lr, config.optim.min_lr, config.optim.grad_clip) == (5e-3, 0, None)
    assert config.parallel.compile
    assert [phase.name for phase in config.phases] == ["q"]


def test_a_packaged_run_can_be_extended_by_name(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "run.yaml", "extends: demo\nname: mine\noutput_dir: out\n"))
    assert config == load_config("demo", ["name=mine", "output_dir=out"])


def test_cycles_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "extends: b.yaml\n")
    write(tmp_path / "b.yaml", "extends: a.yaml\n")
    assert "extends itself" in error_of(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("model", "layers", "hidden"),
    [
        ("model: demo", 4, 160),
        ("model: {preset: demo}", 4, 160),
        ("model: {num_hidden_layers: 5}", 5, 96),
        ("model: {preset: demo, num_hidden_layers: 5}", 5, 160),
    ],
)
def test_a_model_changes_fields_or_starts_from_another_preset(
    tmp_path: Path, model: str, layers: int, hidden: int
) -> None:
    base = RUN.replace("model: tiny", "model: {preset: tiny, num_hidden_layers: 9, hidden_size: 96}")
    write(tmp_path / "base.yaml", base)
    config = load_config(write(tmp_path / "run.yaml", f"extends: base.yaml\n{model}\n"))
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (layers, hidden)


def test_a_run_has_model_and_tokenizer_of_the_weights_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    air = load_model_config("glm45_air_106b")
    write(tmp_path / "demo/config.json", json.dumps({"model_type": "glm4_moe"} | air.model_dump(exclude={"heads"})))
    write(tmp_path / "old/config.yaml", RUN)
    (tmp_path / "old/tokenizer").mkdir()
    given = RUN.replace("model: tiny\n", "").replace("tokenizer: tok, ", "") + "init_from: demo\n"
    config = load_config(given)  # the directory, not the preset of that name
    assert (config.model, config.data.tokenizer) == (air, Path("demo"))
    of_step = load_config(given, ["init_from=old@40"])
    assert (of_step.model, of_step.data.tokenizer) == (load_model_config("tiny"), Path("old/tokenizer"))
    named = load_config(given, ["model=tiny", "data.tokenizer=tok", "init_from=elsewhere"])
    assert (named.model, named.data.tokenizer) == (load_model_config("tiny"), Path("tok"))
    assert error_of(given, "init_from=none") == "override 'init_from=none': init_from: none: no such directory"
    assert "init_from: old/tokenizer: holds neither config.json" in error_of(given, "init_from=old/tokenizer")


def test_overrides_reach_everything() -> None:
    config = load_config(
        RUN,
        [
            *("optim.lr=3e-4", "optim.grad_clip=null", "phases.0.steps=10", "model=demo", "model.num_hidden_layers=6"),
            *("checkpoint.every_steps=5", "data.sources=[{name: b, path: x=y}]", "name='007'"),
        ],
    )
    assert (config.optim.lr, config.optim.grad_clip, config.phases[0].steps) == (3e-4, None, 10)
    assert (config.model.num_hidden_layers, config.model.vocab_size) == (6, 8192)
    assert config.checkpoint.every_steps == 5
    assert config.data.sources[0].path == Path("x=y")
    assert config.name == "007"


def test_an_override_does_not_leak_through_an_alias() -> None:
    text = RUN.replace("phases: [", "phases: [&p ").replace("}]", "}, *p]", 2).replace("}, *p]", "}]", 1)
    config = load_config(text, ["phases.1.name=second", "phases.1.steps=5"])
    assert [(phase.name, phase.steps) for phase in config.phases] == [("p", 2), ("second", 5)]


@settings(deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e300), st.text(min_size=1))
def test_round_trip_is_exact(lr: float, name: str) -> None:
    config = load_config(RUN)
    optim = config.optim.model_copy(update={"lr": lr})
    phase = config.phases[0].model_copy(update={"name": name})
    config = config.model_copy(update={"optim": optim, "phases": [phase]})
    assert load_config(dump_config(config)) == config


def test_an_error_points_at_the_file_and_line_that_is_wrong(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", RUN)
    run = write(tmp_path / "run.yaml", "extends: base.yaml\n\noptim:\n  schedul: linear\n")
    assert error_of(run) == f"{run}:4: optim.schedul: unknown key; did you mean 'schedule'?"
    write(base, RUN.replace("lr: 1e-3", "lr: fast"))
    write(run, "extends: base.yaml\n")
    assert error_of(run) == f"{base}:7: optim.lr: should be a valid number, not 'fast'"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.schedul=x", "optim.schedul: unknown key; did you mean 'schedule'?"),
        ("grad_clip=1", "grad_clip: unknown key; did you mean 'optim.grad_clip'?"),
        ("phases.0.seqlen=1", "phases.0.seqlen: unknown key; did you mean 'seq_len'?"),
        ("model.hidden_dim=8", "model.hidden_dim: unknown key; did you mean 'hidden_size'?"),
        ("phases.3.steps=1", "'3' is not an index of this list of"),
        ("phases.first.steps=1", "'first' is not an index of this list of"),
        ("optim.lr", "must have the form dotted.key=value, such as optim.lr=3e-4"),
        ("=3", "must have the form dotted.key=value, such as optim.lr=3e-4"),
        ("optim..lr=3", "must have the form dotted.key=value, such as optim.lr=3e-4"),
        ("optim.lr=", "value is missing; write"),
        ("optim.betas=[0.9", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("model=demoo", "model: no model preset or file named 'demoo': did you mean"),
        ("model.preset=3", "model.preset: must be a name or a path, not 3"),
    ],
)
def test_wrong_overrides(override: str, message: str) -> None:
    error = error_of(RUN, override)
    assert error.startswith(f"override '{override}'")
    assert message in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "configuration:1: expected a mapping of keys to"),
        ("\n", "configuration: is empty"),
        ("name: a\nname: b\n", "configuration:2: the key 'name' appears twice"),
        ("optim:\n  3: x\n", "configuration:2: a key must be a name, not 3: quote it"),
        ("? [a]\n: x\n", "configuration:1: a key must be a name, not a collection"),
        ("a: [\n", "configuration:2: not valid YAML"),
        ("a: &x [*x]\n", "configuration:1: an alias refers to a value that contains it"),
        (
            "seed: !!python/name:os.system x\n",
            "configuration:1: 'x' cannot be read as tag:yaml.org,2002:python/",
        ),
        (
            "seed: !!int x\n",
            "configuration:1: 'x' cannot be read as",
        ),
        ("data: !!set {a}\n", "configuration:1: tag:yaml.org,2002:set is not an allowed YAML tag; remove it"),
        ("extends: 3\n", "configuration:1: extends: must be a file"),
        ("extends: missing.yaml\n", "configuration:1: extends: missing.yaml: no such file"),
        ("extends: demoo\n", "no run preset or file named 'demoo': did you mean"),
        ("model: tiny\n", "configuration:1: missing, without a default: name, data, phases"),
        ("extend: demo\n", "configuration:1: extend: unknown key; did you mean 'extends'?"),
        ("model: {presett: demo}\n", "configuration:1: model.presett: unknown key; did you mean 'preset'?"),
        (
            "seed: 1\nmodel: {n_group: 1}\n",
            "configuration:2: model: missing, without a default: vocab_size, ",
        ),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    assert message in error_of(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    presets = ", ".join(preset_names("run"))
    assert error_of(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file. Run presets: {presets}"
    (tmp_path / "latin.yaml").write_bytes("name: caf\xe9\n".encode("latin-1"))
    assert error_of(tmp_path / "latin.yaml") == f"{tmp_path}/latin.yaml: cannot be read: not UTF-8 text (byte 9)"
    missing = f"{tmp_path}/config.yaml: cannot be read: No such file or directory"
    assert error_of(tmp_path) == missing
