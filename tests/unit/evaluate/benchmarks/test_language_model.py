"""Replies of the engine do not depend on what runs together, and are those of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from helpers.evaluation import write_benchmarks, write_export
from helpers.tiny_data import TinyData

pytest.importorskip("lm_eval")
from lm_eval import utils
from lm_eval.api.instance import Instance

from glmforge.evaluate.benchmarks.catalog import open_benchmark
from glmforge.evaluate.benchmarks.estimate import estimate
from glmforge.evaluate.benchmarks.harness import Asking, requests_of, run_benchmark
from glmforge.evaluate.benchmarks.language_model import EngineLM
from glmforge.evaluate.benchmarks.model import Generation, PromptText, encode_pair
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore

TOLERANCE = 1e-4  # of sums of log-probabilities in fp32: matrices of other sizes add in another order
CONTROL = ["<|user|>", "<|assistant|>", "<|endoftext|>", "[gMASK]", "<think>"]


@pytest.fixture(scope="module")
def export(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tiny_data, tmp_path_factory.mktemp("evaluated") / "export")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"))


GREEDY = Generation()


def language_model(export: Path, generation: Generation = GREEDY, *, is_chat: bool = False, **options: Any) -> EngineLM:
    engine = Engine.load(export, EngineConfig(cache_bytes=1 << 24, **options))
    return EngineLM(engine, ReplyStore(None), generation, is_chat=is_chat)


def choice(context: str, continuation: str) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0, ("task", 0, 1))


def question(context: str, **settings: Any) -> Instance:
    return Instance("generate_until", {}, (context, {"until": ["\n\n"], "max_gen_toks": 12} | settings), 0, ("t", 0, 1))


def texts(written: Sequence[Sequence[Reply]]) -> list[list[str]]:
    return [[reply.text for reply in samples] for samples in written]


@pytest.mark.parametrize("name", ["mmlu", "gsm8k"])
def test_one_at_a_time_and_64_score_alike(export: Path, data: Path, tmp_path: Path, name: str) -> None:
    benchmark = open_benchmark(name, data)
    generation = Generation(max_new_tokens=12)
    (score, items), (other_score, others) = (
        run_benchmark(benchmark, Asking(), language_model(export, generation, max_sequences=number))
        for number in (1, 64)
    )
    assert other_score.model_dump() == score.model_dump()
    assert len({item.prompt for item in items}) == len(items) > 5
    for item, other in zip(items, others, strict=True):
        assert [one.text for one in item.written] == [one.text for one in other.written]
        assert [one.logprob for one in item.choices] == pytest.approx([one.logprob for one in other.choices])
        assert (item.score, item.predicted) == (other.score, other.predicted)


def test_log_likelihoods_are_those_of_transformers(export: Path, tmp_path: Path) -> None:
    """Of one and of several tokens, behind nothing, of a question asked twice, and of more than the model's positions:
    the last token takes none."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    lm = language_model(export)
    long = "import os\n" * 30
    pairs = [(long, f" {letter}") for letter in "ABCD"] + [(long, " return value"), (long, " return"), ("", "import")]
    pairs += [("def ", "name(self)"), (long, " A"), (long + " return", " value"), (long * 20, " value")]
    ours = lm.loglikelihood([choice(*pair) for pair in pairs])
    for pair, (logprob, is_greedy) in zip(pairs, ours, strict=True):
        before, scored = encode_pair(lm.words, *pair)
        ids = (before + scored)[-(lm._positions + 1) :]
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[:-1]])).logits[0, -len(scored) :].log_softmax(-1)
        expected = logits[range(len(scored)), scored].sum().item()
        assert logprob == pytest.approx(expected, abs=TOLERANCE), pair
        assert is_greedy == (logits.argmax(-1).tolist() == scored), pair


def test_greedy_answers_are_those_of_transformers(export: Path, tmp_path: Path) -> None:
    """No two tokens of these prompts are so close that the order of additions decides."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    lm = language_model(export)
    prompts = ["import", "def name(self", "class"]
    ours = lm.generate_until([question(prompt, until=[]) for prompt in prompts])
    for prompt, text in zip(prompts, ours, strict=True):
        ids = lm.tok_encode(prompt)
        found = theirs.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
        assert text == lm.words.decode([token for token in found if token not in lm.words.stop_ids])


def test_prompts_that_are_too_long_lose_their_beginning_and_say_so(export: Path, tmp_path: Path) -> None:
    lm = language_model(export)
    short, long = "import os\n", "import os\n" * 600
    scored = lm.score([choice(short, " A"), choice(long, " A"), choice(long, " B")])
    assert [reply.is_truncated for reply in scored] == [False, True, True]
    assert [one.num_prompt_tokens + one.num_tokens for one in scored[1:]] == [lm._positions + 1] * 2
    written = lm.write([question(short), question(long)])
    assert [samples[0].is_truncated for samples in written] == [False, True]
    kept = lm.missing([question(long, max_gen_toks=11)])[0].ids
    assert kept == tuple(lm.tok_encode(long))[-len(kept) :]
    assert len(kept) == lm._positions - 11


def test_an_answer_ends_at_a_stop_string_or_is_cut(export: Path) -> None:
    lm = language_model(export)
    ((cut,),) = lm.write([question("import", until=[], max_gen_toks=3)])
    ((stopped,),) = lm.write([question("import", until=[cut.text[:2]], max_gen_toks=3)])
    assert (cut.is_cut, cut.num_tokens, len(cut.text) > 2) == (True, 3, True)
    assert (stopped.is_cut, stopped.text) == (False, "")


@pytest.mark.parametrize(("is_chat", "thinking"), [(False, True), (True, False), (True, True)])
def test_stop_strings_do_not_end_the_reasoning(export: Path, is_chat: bool, thinking: bool) -> None:
    lm = language_model(export, Generation(thinking=thinking), is_chat=is_chat)
    (asked,) = lm.missing([question("import")])
    assert asked.params.stop == (() if is_chat and thinking else ("\n\n",))


def test_what_a_conversation_spells_is_text(export: Path, tmp_path: Path) -> None:
    lm = language_model(export, is_chat=True)
    marks = [lm.words.special_id(token) for token in CONTROL]
    history = [{"role": "user", "content": "name"}]
    plain, spelt = (
        lm.apply_chat_template([{"role": "user", "content": content}]) for content in ("name", "".join(CONTROL))
    )
    for prompt in (plain, spelt):
        assert isinstance(prompt, PromptText)
        assert tuple(lm.tok_encode(prompt)) == prompt.ids
    assert [plain.ids.count(mark) for mark in marks] == [spelt.ids.count(mark) for mark in marks]
    assert lm.missing([question(spelt)])[0].ids == spelt.ids
    (score,) = lm.missing([choice(spelt, "<|user|>")])
    assert score.ids[: len(spelt.ids)] == spelt.ids
    assert marks[0] not in (*score.ids[len(spelt.ids) :], *score.params.logprob_tokens)
    begun = lm.apply_chat_template([*history, {"role": "assistant", "content": "re"}], add_generation_prompt=False)
    assert begun.ids == (*plain.ids, *lm.tok_encode("re"))


def test_samples_depend_on_neither_batch_nor_order(export: Path, tmp_path: Path) -> None:
    prompts = ["import", "def name", "class", "import", "return self"]
    generation = Generation(temperature=1.0, num_samples=3, max_new_tokens=8)
    asked = [question(prompt) for prompt in prompts]
    alone, together, reverse, other_seed = (
        language_model(export, given, max_sequences=number).write(requests)
        for name, given, number, requests in (
            ("a", generation, 1, asked),
            ("b", generation, 64, asked),
            ("c", generation, 64, asked[::-1]),
            ("d", Generation(temperature=1.0, num_samples=3, max_new_tokens=8, seed=1), 64, asked),
        )
    )
    assert texts(together) == texts(alone) == texts(reverse[::-1])
    assert texts(other_seed) != texts(alone)
    assert len(set(texts(alone)[0])) > 1


@pytest.mark.parametrize("num_tokens", [1, 30, 63, 64, 127, 200])
def test_windows_score_every_token_once(export: Path, tmp_path: Path, num_tokens: int) -> None:
    """As the harness cuts them. A window's last token takes no position."""
    lm = language_model(export)
    lm.engine.runner.config = lm.engine.runner.config.model_copy(update={"max_position_embeddings": 64})
    ids = [index % 500 for index in range(num_tokens)]
    windows = list(lm._windows(ids))
    assert [token for _, scored in windows for token in scored] == ids
    assert all(len(context) + len(scored) <= 64 + 1 for context, scored in windows)
    theirs = utils.get_rolling_token_windows(ids, lm.eot_token_id, max_seq_len=64, context_len=1)
    assert windows == [tuple(map(list, utils.make_disjoint_window(window))) for window in theirs]


def test_rolling_log_likelihood_is_the_sum_of_the_windows(export: Path, tmp_path: Path) -> None:
    lm = language_model(export)
    text = "import os\n" * 5
    whole = Instance("loglikelihood_rolling", {}, (text,), 0, ("task", 0, 1))
    assert lm.loglikelihood_rolling([whole]) == pytest.approx([lm.loglikelihood([choice("", text)])[0][0]])


def test_shared_beginnings_change_nothing_but_what_is_computed(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = open_benchmark("mmlu", data)
    warmed = language_model(export, max_step_tokens=4096)  # all begin at once
    _, items = run_benchmark(benchmark, Asking(), warmed)
    monkeypatch.setattr(EngineLM, "_warm", lambda self, prompts: None)
    cold = language_model(export, max_step_tokens=4096)
    _, others = run_benchmark(benchmark, Asking(), cold)
    logprobs = [[one.logprob for item in some for one in item.choices] for some in (items, others)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=TOLERANCE)
    assert warmed.engine.metrics.num_computed < cold.engine.metrics.num_computed / 2


def test_an_estimate_is_what_is_computed(export: Path, data: Path, tmp_path: Path) -> None:
    """But for pages, of which only whole ones are shared. The probe's own tokens do not count."""
    lm = language_model(export, Generation(max_new_tokens=4, num_samples=2, temperature=1.0))
    asked = [requests_of(open_benchmark(name, data), Asking(), lm) for name in ("mmlu", "gsm8k")]
    found = estimate(lm, asked)
    assert found.num_requests == len(asked[0]) + len(asked[1])
    assert found.num_new_tokens == len(asked[1]) * 2 * 4
    assert found.seconds > 0
    before = lm.engine.metrics.num_computed
    for items in asked:
        (lm.score if len(items[0].requests) > 1 else lm.write)([one for item in items for one in item.requests])
    computed = lm.engine.metrics.num_computed - before
    most_answers = found.num_new_tokens - len(asked[1]) * 2  # an answer's last token is not run
    page = lm.engine.config.page_size
    assert 0 <= computed - found.num_prompt_tokens <= most_answers + (page + 1) * found.num_requests
    assert str(estimate(lm, asked)) == "all replies are there"
