"""The shipped local curriculum through all its phases, each cut to a few steps."""

import runpy
from pathlib import Path

import pytest

from glmforge.config import RunConfig, load_config
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.demo import standard_library
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.recipes.train import train
from glmforge.report.schedule import plan_schedule

ROOT = Path(__file__).parents[3]
STEPS = (6, 3, 2, 2, 2)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The configuration with its example's data, of every fourth document, short phases, and the same batches."""
    directory = tmp_path_factory.mktemp("curriculum")
    data = directory / "data"
    documents = list(standard_library_documents())[::4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standard_library, "standard_library_documents", lambda: documents)
        runpy.run_path(str(ROOT / "examples/curriculum/make_data.py"))["make_data"](data)
    shipped = load_config(ROOT / "configs/curriculum_local.yaml")
    lengths = [
        word
        for index, steps in enumerate(STEPS)
        for word in (f"phases.{index}.tokens=null", f"phases.{index}.steps={steps}")
    ]
    lists = {"sources": shipped.data.sources, "held_out": shipped.data.held_out}
    paths = [
        f"data.{field}.{index}.path={data / source.path.name}"
        for field, sources in lists.items()
        for index, source in enumerate(sources)
    ]
    return load_config(
        ROOT / "configs/curriculum_local.yaml",
        [
            *lengths,
            *paths,
            f"data.tokenizer={data / 'tokenizer'}",
            f"output_dir={directory / 'run'}",
            "data.num_workers=0",
            "phases.0.batch_ramp.tokens=9000",
            "phases.0.batch_size=12",
            "optim.warmup_tokens=4000",
            "observe.evaluate_every=8",
            "observe.evaluate_tokens=2048",
            "observe.progress=false",
            "observe.tensorboard=false",
            "checkpoint.ephemeral_every_steps=5",
        ],
    )


def test_it_goes_through_every_phase_as_planned(config: RunConfig) -> None:
    schedule = plan_schedule(config)
    assert schedule.missing == []
    state = train(config)
    assert (state.step, state.tokens) == (sum(STEPS), schedule.tokens)
    records = read_jsonl(RunDirectory(config.output_dir).metrics)
    assert [record["phase"] for record in records] == [
        phase.name for phase, steps in zip(config.phases, STEPS, strict=True) for _ in range(steps)
    ]
    lasts = [[r for r in records if r["phase"] == phase.name][-1] for phase in config.phases]
    assert [record["tokens"] for record in lasts] == [phase.stop for phase in schedule.phases]
    # The same function at the same tokens.
    assert [record["lr"] for record in lasts] == pytest.approx([phase.last_lr for phase in schedule.phases], rel=1e-12)
    assert records[-1]["loss"] < records[0]["loss"]
