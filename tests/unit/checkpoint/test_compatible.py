from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from glmforge.checkpoint.compatible import FREE, RULES, check_compatible, rule_of
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from helpers.models import tiny_config

SAMPLES = {"first": 80, "second": 8}  # the first phase is done, the second has begun, the third has not


def run_config(**changes: Any) -> dict[str, Any]:
    """A run of three phases; `changes` are `section__field=value`, with names for the items of lists."""
    phase = {"steps": 10, "seq_len": 32, "batch_size": 8}
    base: dict[str, Any] = {
        "name": "run",
        "model": tiny_config(vocab_size=512).model_dump(),
        "data": {
            "tokenizer": "tokenizer",
            "sources": [{"name": "web", "path": "web"}, {"name": "code", "path": "code", "code": True}],
        },
        "phases": [
            {"name": "first", **phase},
            {"name": "second", **phase, "fim_rate": 0.5},
            {"name": "third", **phase},
        ],
    }
    config = RunConfig.model_validate(base).model_dump(mode="json")
    for key, value in changes.items():
        node: Any = config
        *parents, field = key.split("__")
        for parent in parents:
            node = next(item for item in node if item["name"] == parent) if isinstance(node, list) else node[parent]
        node[field] = value
    return config


ALLOWED = {
    "layout": {"parallel__tp": 2},
    "places": {"output_dir": "elsewhere", "data__sources__web__path": "moved", "data__tokenizer": "moved"},
    "reading": {"data__num_workers": 4, "data__prefetch": 8},
    "reports": {"observe__log_every": 7, "checkpoint__every_steps": 3, "fault_tolerance__hang_timeout_s": None},
    "a limit": {"model__max_position_embeddings": 4096},
    "exports": {"model__pad_token_id": 3},
    "length as before, said otherwise": {"init_from": "elsewhere"},
}
NOTED = {
    "rate": ({"optim__lr": 1e-3}, "optim.lr was 0.00025 and is 0.001: learning rate"),
    "schedule": ({"optim__schedule": "wsd"}, "optim.schedule was cosine and is wsd"),
    "longer": ({"phases__third__steps": 20}, "phases.third.steps was 10 and is 20: the learning-rate schedule ends"),
    "batch": ({"phases__second__batch_size": 16}, "phases.second.batch_size was 8 and is 16"),
    "ramp": (
        {"phases__second__batch_ramp": {"start": 4, "increment": 4, "tokens": 512}},
        "phases.second.batch_ramp was null and is there",
    ),
    "weights": ({"data__sources__web__weight": 3.0}, "data.sources.web.weight was 1.0 and is 3.0: mixture of future"),
    "mixture": ({"phases__second__sources": {"web": 1.0}}, "phases.second.sources was null and is there"),
    "later seq_len": ({"phases__third__seq_len": 16}, "phases.third.seq_len was 32 and is 16"),
    "rule of rates": (
        {"optim__rules": [{"match": "*.gate.weight", "lr_scale": 0.5}]},
        "optim.rules was [] and is [{",
    ),
}
REFUSED = {
    "model": ({"model__hidden_size": 128}, r"model\.hidden_size was 48 and is 128 \(the weights have this shape"),
    "optimizer": ({"optim__matrix_optimizer": "adamw"}, r"matrix_optimizer was muon and is adamw .*reset-optimizer"),
    "type of states": ({"optim__state_dtype": "bf16"}, r"state_dtype was fp32 and is bf16 .*reset-optimizer"),
    "optimizer of some": (
        {"optim__rules": [{"match": "*.gate.weight", "optimizer": "adamw"}]},
        r"optim\.rules was \[\] .*reset-optimizer",
    ),
    "frozen": ({"optim__rules": [{"match": "*.gate.weight", "lr_scale": 0.0}]}, r"optim\.rules was"),
    "seed": ({"seed": 1}, r"seed was 0 and is 1 \(it determines the order of samples"),
    "seq_len": ({"phases__second__seq_len": 16}, r"phases\.second\.seq_len was 32 and is 16"),
    "fim": ({"phases__second__fim_rate": 0.2}, r"phases\.second\.fim_rate was 0\.5 and is 0\.2"),
    "code": ({"data__sources__web__code": True}, r"data\.sources\.web\.code was False and is True"),
    "name": ({"phases__second__name": "other"}, r"phases\.second was there and is not there"),
    "longer, but followed": (
        {"phases__first__steps": 11},
        r"phases\.first ended after 80 samples and would now end after 88, but phase 'second' has begun since",
    ),
    "rounded up, but followed": (
        {"phases__first__batch_size": 5, "phases__first__steps": 17},
        "would now end after 85",
    ),
}


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=ALLOWED)
def test_what_no_result_depends_on_is_free(changes: dict[str, Any]) -> None:
    assert check_compatible(run_config(), run_config(**changes), SAMPLES) == []


@pytest.mark.parametrize(("changes", "note"), NOTED.values(), ids=NOTED)
def test_what_changes_the_training_from_here_on_is_noted(changes: dict[str, Any], note: str) -> None:
    (line,) = check_compatible(run_config(), run_config(**changes), SAMPLES)
    assert line.startswith(note)
    assert "\n" not in line


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_another_run_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{message}.*; undo that, or start a new run") as refused:
        check_compatible(run_config(), run_config(**changes), SAMPLES)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["seed", "phases__first__name"])
def test_before_the_first_sample_only_the_model_must_stay(key: str) -> None:
    assert check_compatible(run_config(), run_config(**{key: 5 if key == "seed" else "other"}), {"first": 0})
    with pytest.raises(CheckpointError, match=r"model\.n_routed_experts"):
        check_compatible(run_config(), run_config(model__n_routed_experts=2), {})


def test_phases_keep_their_place() -> None:
    moved = run_config()
    new = {**moved["phases"][2], "name": "new"}
    assert check_compatible(run_config(), {**moved, "phases": [*moved["phases"], new]}, SAMPLES) == [
        "phases.new was not there and is there: name and position of a phase determine its order of samples"
    ]
    with pytest.raises(
        CheckpointError,
        match=r"phases\.second was phase 2 and is phase 3 .*new phases at the end\); "
        r"undo that, or start",
    ):
        check_compatible(run_config(), {**moved, "phases": [moved["phases"][0], new, *moved["phases"][1:]]}, SAMPLES)
    exchanged = {**moved, "phases": [moved["phases"][1], moved["phases"][0], moved["phases"][2]]}
    with pytest.raises(CheckpointError, match=r"phases\.second was phase 2 and is phase 1"):
        check_compatible(run_config(), exchanged, SAMPLES)
    assert len(check_compatible(run_config(), {**moved, "phases": moved["phases"][:2]}, SAMPLES)) == 1


def test_a_phase_with_a_dot_in_its_name_is_one_phase() -> None:
    before, after = run_config(phases__second__name="mid.32k"), run_config(phases__second__name="other")
    with pytest.raises(CheckpointError, match=r"phases\.mid\.32k was there and is not there"):
        check_compatible(before, after, {"first": 80, "mid.32k": 8})


def test_code_of_a_source_matters_only_after_fill_in_the_middle() -> None:
    assert check_compatible(run_config(), run_config(data__sources__web__code=True), {"first": 8}) == []


def test_fresh_states_may_be_of_another_optimizer() -> None:
    changed = run_config(optim__matrix_optimizer="adamw")
    (note,) = check_compatible(run_config(), changed, SAMPLES, fresh_optimizer=True)
    assert note.startswith("optim.matrix_optimizer was muon and is adamw")
    with pytest.raises(CheckpointError, match="seed"):
        check_compatible(run_config(), {**changed, "seed": 1}, SAMPLES, fresh_optimizer=True)


def test_a_checkpoint_from_before_a_field_existed_has_its_default() -> None:
    old = run_config()
    del old["optim"]["decay_share"]
    del old["observe"]
    del old["model"]["rms_norm_eps"]  # 1e-5 by default, as here
    assert check_compatible(old, run_config(), SAMPLES) == []


def test_fields_that_another_version_knows_are_noted() -> None:
    other = run_config()
    other["optim"]["warp"] = 9
    other["model"]["warp"] = True
    other["gone"] = 1
    assert [line.split(" was")[0] for line in check_compatible(other, run_config(), SAMPLES)] == [
        "model.warp",
        "optim.warp",
        "gone",
    ]


def test_every_field_has_a_rule_and_every_rule_a_field() -> None:
    paths = list(leaves(RunConfig, ()))
    assert len(paths) > 100
    rules = {path: rule_of(path) for path in paths}
    assert [path for path, rule in rules.items() if rule not in RULES] == []
    unused = {rule.keys for rule in RULES} - {rule.keys for rule in rules.values()}
    assert unused == {"name", "phases*"}  # `leaves` leaves out names, and has no whole phases


def leaves(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        inner = [t for t in _types(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        is_list = str(field.annotation).startswith("list")
        for model in inner:
            named = is_list and "name" in model.model_fields
            yield from (
                leaves(model, (*path, name, "x") if named else (*path, name))
                if named or not is_list
                else [(*path, name)]
            )
        if not inner and name != "name":
            yield (*path, name)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _types(inner)


def test_what_speeds_up_or_reports_is_free() -> None:
    for section in ("parallel", "checkpoint", "observe", "fault_tolerance"):
        assert all(rule_of(path).after is FREE for path in leaves(RunConfig, ()) if path[0] == section)
