"""A model opened for ranks is the one that a single process opens; the way of ranks is taken by one process here."""

from pathlib import Path

import pytest
import torch

from glmforge.errors import GlmforgeError
from glmforge.generate.config import EngineConfig
from glmforge.generate.params import SamplingParams
from glmforge.recipes.train import train
from helpers.evaluation import write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")
from glmforge.evaluate.open_model import OpenModel, open_model, weights_digest

CONFIG = EngineConfig(cache_bytes=1 << 22)


@pytest.fixture(scope="module", params=["export", "run"])
def source(request: pytest.FixtureRequest, tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("opened") / request.param
    if request.param == "export":
        return write_export(tiny_data, directory)
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]))
    return directory


def facts(opened: OpenModel) -> tuple[dict[str, object], list[float]]:
    ((sample,),) = opened.engine.generate([[5, 6, 7]], SamplingParams(max_new_tokens=4, logprobs=0))
    return opened.identity, [one.logprob for one in sample.logprobs]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_identity_and_answers_are_those_of_one_process(source: Path, dtype: torch.dtype | None) -> None:
    found = []
    for parallel in ([], ["dp_shard=1,ep=1"]):
        with open_model(str(source), CONFIG, dtype=dtype, parallel=parallel) as opened:
            found.append(facts(opened))
    (identity, logprobs), (other, other_logprobs) = found
    assert other == identity
    assert other_logprobs == pytest.approx(logprobs, abs=1e-4 if dtype is None else 1e-6)


def test_identity_tells_weights_apart(tiny_data: TinyData, tmp_path: Path) -> None:
    path = str(write_export(tiny_data, tmp_path / "export"))
    with open_model(path, CONFIG) as opened:
        first = facts(opened)[0]
        opened.engine.runner.model.lm_head.weight.data.mul_(1.01)  # type: ignore[attr-defined]
        weights = opened.engine.runner.model.state_dict()  # type: ignore[attr-defined]
    assert first["weights"] != weights_digest(weights)
    with open_model(path, CONFIG, dtype=torch.bfloat16) as opened:
        assert first["weights"] != opened.identity["weights"]


@pytest.mark.parametrize(
    ("given", "parallel", "words"),
    [
        ("", ["tp=2"], "parallel.tp: 2 does not divide the 1 processes"),
        ("", ["tq=2"], "parallel.tq: unknown key"),
        ("", ["tp"], "=3e-4"),
        ("/nowhere", ["tp=1"], "no such"),
    ],
)
def test_what_cannot_be_opened(
    tiny_data: TinyData, tmp_path: Path, given: str, parallel: list[str], words: str
) -> None:
    path = given or str(write_export(tiny_data, tmp_path / "export"))
    with pytest.raises(GlmforgeError, match=words) as error, open_model(path, CONFIG, parallel=parallel):
        pass
    assert "\n" not in str(error.value)
    assert "init_from" not in str(error.value)
