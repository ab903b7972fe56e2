"""Problems: the same for the same key, verified by the checker, rendered as the chat template does."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.chat_template.template import render
from glmforge.errors import ConfigError
from glmforge.verify.reward import reward
from glmforge_corpus.cli import synthesise as command
from glmforge_corpus.synthesise import check
from glmforge_corpus.synthesise.check import why_wrong
from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.generate import FAMILIES, make_problem
from glmforge_corpus.synthesise.problem import LEVELS

SLOTS = [(family, level) for family in FAMILIES for level in LEVELS]


@pytest.mark.parametrize(("family", "level"), SLOTS)
def test_problems_are_verified_by_the_independent_checker(family, level):
    wrong = {}
    for index in range(40):
        problem = make_problem(7, family, level, index)
        reason = why_wrong(problem.record())
        if reason:
            wrong[problem.id] = reason
    assert not wrong


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_template_exists_in_both_languages(family, language):
    seen = set()
    for level in LEVELS:
        for index in range(50):
            problem = make_problem(0, family, level, index, (language,))
            assert problem.language == language
            assert (
                bool(re.search("[\u4e00-\u9fff]", problem.draft.question)) is (language == "zh")
                or problem.template == "calls"
            )
            assert why_wrong(problem.record()) is None
            seen.add(problem.template)
    assert seen == set(FAMILIES[family])


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "tools"])
def test_every_reply_shows_how_the_answer_comes(family):
    for level in LEVELS:
        for index in range(20):
            *_, assistant = make_problem(3, family, level, index).messages
            assert assistant["reasoning_content"].strip()
            assert len(assistant["content"].splitlines()) >= 2


def test_level_five_of_several_stages_asks_for_the_beginning():
    found = [make_problem(0, "word_problems", 5, index, ("en",)) for index in range(300)]
    composed = [problem for problem in found if problem.template in {"bakery", "trip", "wages", "tank", "library"}]
    assert len(composed) >= 20
    for problem in composed:
        record = problem.record()
        first = re.split(r"(?<=[.])\s", record["question"])[0]
        assert not re.search(r"\d", first)
        assert why_wrong(record | {"answer": str(int(record["answer"]) + 1)})


@given(st.integers(0, 2**62), st.sampled_from(SLOTS), st.integers(0, 2**40))
@settings(max_examples=80, deadline=None)
def test_any_key_makes_the_same_right_problem_again(seed, slot, index):
    problem = make_problem(seed, *slot, index)
    assert problem.record() == make_problem(seed, *slot, index).record()
    assert why_wrong(problem.record()) is None
    assert json.loads(json.dumps(problem.record())) == problem.record()


def test_a_problem_is_pinned():
    """A change here changes every data set that was ever made from a seed."""
    problem = make_problem(0, "arithmetic", 1, 0)
    assert problem.draft.question == PINNED_QUESTION
    assert problem.draft.answer == PINNED_ANSWER


PINNED_QUESTION = "What has to stand in place of the box so that $\\square - 13 = 1$ is true?"
PINNED_ANSWER = "14"


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_what_the_template_renders(family):
    for index in range(20):
        problem = make_problem(3, family, 5, index)
        assert problem.text() == render(problem.messages, problem.draft.tools)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "tools"])
def test_the_reply_earns_its_reward_and_another_answer_does_not(family):
    for index in range(40):
        record = make_problem(5, family, 1 + index % 5, index).record()
        reply = f"<think>{record['messages'][-1]['reasoning_content']}</think>{record['messages'][-1]['content']}"
        assert reward(record["verifier"], reply) == 1.0
        assert reward(record["verifier"], f"<think>hm</think>\\boxed{{{other_answer(record['answer'])}}}") == 0.0


def test_tool_calls_earn_a_reward_in_glm_format_only():
    record = make_problem(1, "tools", 3, 0).record()
    right = record["messages"][1]["tool_calls"]
    text = render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": right}])
    text = text.rpartition("<|assistant|>")[2]
    assert reward(record["verifier"], text) == 1.0
    assert reward(record["verifier"], text.replace("</tool_call>", "", 1)) == 0.0
    assert reward(record["verifier"], json.dumps(record["verifier"]["calls"])) == 0.0


def other_answer(answer):
    """An answer of the same look that is another."""
    if answer in ("A", "B", "C"):
        return {"A": "B", "B": "C", "C": "A"}[answer]
    digits = [i for i, c in enumerate(answer) if c.isdigit()]
    if digits:
        i = digits[-1]
        changed = answer[:i] + str((int(answer[i]) + 3) % 10) + answer[i + 1 :]
        return changed if not changed.endswith("/0") else changed[:-1] + "1"
    parts = answer.split(", ")
    if len(parts) > 1 and len(set(parts)) > 1:
        return ", ".join([*parts[1:], parts[0]])
    swapped = {"knight": "knave", "knave": "knight", "骑士": "无赖", "无赖": "骑士"}
    return ", ".join(swapped.get(part, part + "x") for part in parts)


@pytest.mark.parametrize(("family", "level"), [slot for slot in SLOTS if slot[0] != "tools"])
def test_a_wrong_answer_is_rejected_although_the_whole_record_agrees_on_it(family, level):
    """Planted consistently: in the answer, the verifier and the reply, so that only solving the question shows it."""
    for index in range(40):
        record = copy.deepcopy(make_problem(11, family, level, index).record())
        wrong = other_answer(record["answer"])
        record["answer"] = record["verifier"]["answer"] = wrong
        record["messages"][-1]["content"] = f"The answer is $\\boxed{{{wrong}}}$."
        assert why_wrong(record) is not None, record


@pytest.mark.parametrize("family", ["arithmetic", "number_theory", "word_problems", "algebra"])
def test_a_wrong_number_in_any_step_is_rejected(family):
    checked = 0
    for index in range(60):
        record = make_problem(13, family, 1 + index % 5, index).record()
        reasoning = record["messages"][-1]["reasoning_content"]
        for found in re.finditer(r"= (-?\d+)\$", reasoning):
            spoiled = copy.deepcopy(record)
            spoiled["messages"][-1]["reasoning_content"] = (
                reasoning[: found.start(1)] + str(int(found[1]) + 1) + reasoning[found.end(1) :]
            )
            assert why_wrong(spoiled) is not None, spoiled
            checked += 1
    assert checked > 60


@pytest.mark.parametrize("family", ["logic", "programs", "tables"])
def test_a_missing_step_is_rejected(family):
    for index in range(60):
        record = make_problem(17, family, 2 + index % 4, index).record()
        lines = record["messages"][-1]["reasoning_content"].splitlines()
        if record["template"] in ("entailment", "aggregate", "group") or len(lines) < 2:
            continue  # a lone row, or a redundant derivation, may be left out without harm
        record["messages"][-1]["reasoning_content"] = "\n".join(lines[1:])
        assert why_wrong(record) is not None, record


@pytest.mark.parametrize("template", ["knights_and_knaves", "seating", "entailment", "syllogism"])
def test_a_proof_line_that_cites_another_premise_is_rejected(template):
    rejected = tried = 0
    for index in range(200):
        record = make_problem(19, "logic", 3, index).record()
        reasoning = record["messages"][-1]["reasoning_content"]
        if record["template"] != template or not re.search(r"\(\d\)", reasoning):
            continue
        count = len(re.findall(r"^\(\d+\)", record["question"], re.MULTILINE))
        shifted = re.sub(r"\((\d+)\)", lambda m, n=count: f"({int(m[1]) % n + 1})", reasoning)
        record["messages"][-1]["reasoning_content"] = shifted
        tried += 1
        rejected += why_wrong(record) is not None
    # by chance the next premise may do as well: two clues can break the same case
    assert tried >= 10
    assert rejected >= 0.9 * tried


SPOIL_TOOLS = {
    "another argument": lambda r: r["messages"][1]["tool_calls"][0]["function"]["arguments"].update(date="2031-01-01"),
    "another tool": lambda r: r["messages"][1]["tool_calls"][0]["function"].update(name="send_mail"),
    "a tool that is not offered": lambda r: r["tools"].clear(),
    "a call too few": lambda r: r["messages"][1]["tool_calls"].pop(),
    "verifier differs": lambda r: r["verifier"]["calls"].pop(),
    "reply without the result": lambda r: r["messages"][-1].update(content="Done."),
    "a result too few": lambda r: r["messages"].pop(2),
}


@pytest.mark.parametrize("spoil", SPOIL_TOOLS.values(), ids=SPOIL_TOOLS.keys())
@pytest.mark.parametrize("level", [1, 2, 3, 5])
def test_spoiled_tool_calls_are_rejected(spoil, level):
    tried = 0
    for index in range(30):
        record = copy.deepcopy(make_problem(23, "tools", level, index).record())
        if record["template"] != "calls":
            continue
        spoil(record)
        tried += 1
        assert why_wrong(record) is not None, record
    assert tried


def test_a_wrong_tool_result_is_rejected():
    for index in range(200):
        record = copy.deepcopy(make_problem(29, "tools", 1, index).record())
        if record["verifier"]["calls"][0]["name"] not in ("calculate", "days_between"):
            continue
        result = json.loads(record["messages"][2]["content"])
        key = next(iter(result))
        record["messages"][2]["content"] = json.dumps({key: result[key] + 1})
        record["messages"][-1]["content"] = record["messages"][-1]["content"].replace(
            str(result[key]), str(result[key] + 1)
        )
        assert "result" in str(why_wrong(record))


@pytest.mark.parametrize("family", FAMILIES)
def test_higher_levels_are_longer(family):
    """Levels mean something: what has to be written down grows from level 1 to level 5."""

    def length(level):
        made = [make_problem(0, family, level, i, ("en",)) for i in range(150)]
        return sum(len(p.messages[-1]["reasoning_content"]) + len(p.draft.question) for p in made)

    assert length(5) > 1.15 * length(1)


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="choose from arithmetic"):
        make_problem(0, "arithmetics", 1, 0)
    with pytest.raises(ConfigError, match="must be from 1 to 5"):
        make_problem(0, "arithmetic", 6, 0)


def test_draws_are_in_range_and_do_not_repeat_items():
    draw = Draw(1, "a")
    assert {draw.below(3) for _ in range(200)} == {0, 1, 2}
    assert {draw.integer(-1, 1) for _ in range(200)} == {-1, 0, 1}
    assert {draw.nonzero(2) for _ in range(200)} == {-2, -1, 1, 2}
    assert sorted(draw.sample(range(6), 6)) == list(range(6))
    assert Draw(1, "a").integer(0, 10**9) == Draw(1, "a").integer(0, 10**9) != Draw(2, "a").integer(0, 10**9)


def test_the_checker_imports_nothing_of_the_generators():
    for path in Path(check.__file__).parent.glob("*.py"):
        imported = re.findall(r"^(?:from|import) (\S+)", path.read_text(), re.MULTILINE)
        ours = {name for name in imported if name.startswith("glmforge")}
        assert all(".synthesise.check" in name or name == "glmforge.verify.answers" for name in ours), (path, ours)


def test_the_command_names_all_families():
    assert command.FAMILIES.split(",") == list(FAMILIES)
