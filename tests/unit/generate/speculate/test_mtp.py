"""What the MTP layer says from the pages of the cache is what it says in one pass over the whole text."""

import pytest
import torch
from torch import Tensor

from glmforge.errors import GlmforgeError
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.step import StepTokens
from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.block import LayerTokens
from glmforge.model.inputs import DocumentAttention, ModelInputs
from helpers.models import randomize_, tiny_config


class Listening(WholeModel):
    """Remembers the logits of every draft, by what the layer had read last."""

    def __init__(self, model: GlmMoe) -> None:
        super().__init__(model, with_mtp=True)
        self.heard: list[tuple[int, int, Tensor]] = []

    def draft(self, tokens: StepTokens, rows: list[int]) -> Tensor:
        logits_LV = super().draft(tokens, rows)
        wanted_L = tokens.wanted_L
        said_LV = logits_LV.clone()  # the sampler overwrites them
        last = zip(tokens.positions_T[wanted_L].tolist(), tokens.ids_T[wanted_L].tolist(), said_LV, strict=True)
        self.heard += last
        return logits_LV


def drafts_of(model: GlmMoe, tokens: list[int], drafts: list[int]) -> list[tuple[int, int, Tensor]]:
    """The position and the token that the layer reads last, and its logits, for each of the drafts behind `tokens`."""
    states: list[Tensor] = []
    with torch.no_grad():
        inputs = ModelInputs.whole(torch.tensor([tokens]))
        model(inputs, head=lambda h_TD, heads, depth: states.extend(h_TD), with_mtp=False)
        states, ids, said = states[:-1], tokens[1:], []
        for draft in drafts:
            documents = Documents.from_lengths([len(ids)])
            layer_tokens = LayerTokens(model.rope(documents.positions_T), DocumentAttention(documents))
            (output,) = model.mtp_layers[0](torch.stack(states), model.embed(torch.tensor(ids)), tokens=[layer_tokens])
            said.append((len(ids) - 1, ids[-1], model.lm_head(output.x_TD[-1])))
            states.append(output.x_TD[-1])
            ids.append(draft)
    return said


@pytest.mark.parametrize("options", [{}, {"max_step_tokens": 12, "page_size": 2}, {"num_drafts": 1}], ids=str)
@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_drafts_of_the_whole_text(model: GlmMoe, options: dict[str, int], num_samples: int, dtype: torch.dtype) -> None:
    """The drafts of a random model are wrong: what they left in the pages is written over."""
    if dtype == torch.float32:
        model = GlmMoe(model.config).eval()
        randomize_(model)
    runner = Listening(model)
    assert runner.is_native == (dtype == torch.float32)
    given = {"cache_bytes": 1 << 22, "page_size": 4, "drafter": "mtp", "num_drafts": 3, "share_prefixes": False}
    engine = Engine(runner, EngineConfig(**(given | options)))
    params = SamplingParams(max_new_tokens=6, temperature=num_samples - 1.0, seed=0, num_samples=num_samples)
    engine.add(list(range(100, 119)), params)
    engine.add([3, 1, 4, 1, 5], params)
    num_compared = 0
    while not engine.is_idle:
        engine.step()
        for sequence in engine.scheduler.running:
            for position, token, logits_V in drafts_of(model, sequence.tokens, sequence.drafts):
                same = [heard for at, read, heard in runner.heard if (at, read) == (position, token)]
                # At least the routers compute in fp32; another token read at any place makes differences of about 0.1.
                assert any(torch.allclose(heard, logits_V.to(heard), rtol=0, atol=1e-4) for heard in same)
                num_compared += 1
        runner.heard.clear()
    assert num_compared >= 8


def test_runner_without_room_for_it(model: GlmMoe) -> None:
    with pytest.raises(GlmforgeError, match="drafter: 'mtp' needs a runner that keeps"):
        Engine(WholeModel(model), EngineConfig(drafter="mtp"))


def test_model_without_it() -> None:
    with pytest.raises(GlmforgeError, match="needs an MTP layer, which the model lacks"):
        WholeModel(GlmMoe(tiny_config(num_nextn_predict_layers=0)), with_mtp=True)
