"""Benchmarks opened on small files in the authors' forms, asked, and scored: what is right gets 1, what is wrong 0."""

import json
import zipfile

import pytest

pytest.importorskip("lm_eval", reason="needs glmforge[eval]")

from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import catalog
from glmforge.evaluate.benchmarks.catalog import known_names, open_benchmark
from glmforge.evaluate.benchmarks.harness import Asking, run_benchmark
from glmforge.evaluate.run import PREDICTIONS, finish
from glmforge.verify import sandbox
from helpers.evaluation import FakeModel

NEEDS_SANDBOX = {"humaneval", "mbpp"}
QUESTIONS = [{"question": f"{n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(8)]
MATHS = [
    {
        "problem": "1/2 + 0?",
        "solution": "$\\boxed{\\frac{1}{2}}$",
        "answer": "1/2",
        "level": "Level 1",
        "type": "Algebra",
    }
]
PROGRAMS = [
    {
        "task_id": number,
        "text": "Add.",
        "code": "def add(a, b):\r\n  return a + b",
        "test_list": [f"assert add(1, {n}) == {n + 1}" for n in range(3)],
        "test_setup_code": "import math",
        "challenge_test_list": [],
    }
    for number in (2, 3, 4, 11, 511)
]
CALL = {
    "id": "0",
    "question": [[{"role": "user", "content": "Add 1 and 2."}]],
    "function": [
        {
            "name": "add",
            "parameters": {
                "type": "dict",
                "properties": {"type": {"type": "any"}, "a": {"type": "float"}},
                "required": ["a"],
            },
        }
    ],
}


RIGHT_CALL = "\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A directory with a file or more for each benchmark that is known."""
    files = {
        "gsm8k-test.jsonl": lines(QUESTIONS[:2]),
        "gsm8k-train.jsonl": lines(QUESTIONS),
        "math-test.jsonl": lines(MATHS),
        "math_500.jsonl": lines(MATHS),
        "aime24.jsonl": lines([{"problem": "6 * 7?", "answer": 42}]),
        "aime25.jsonl": lines([{"problem": "6 * 7?", "answer": "042"}]),
        "HumanEval.jsonl": lines(
            [
                {
                    "task_id": "0",
                    "prompt": "def one():\n",
                    "test": "def check(f):\n    assert f() == 1",
                    "entry_point": "one",
                    "canonical_solution": "    return 1\n",
                }
            ]
        ),
        "mbpp.jsonl": lines(PROGRAMS),
        "ifeval.jsonl": lines(
            [
                {"key": 1, "prompt": "No comma.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
                {
                    "key": 2,
                    "prompt": "Say yes.",
                    "instruction_id_list": ["keywords:existence"],
                    "kwargs": [{"keywords": ["yes"]}],
                },
            ]
        ),
        "swebench.jsonl": lines([{"instance_id": "a__b-1", "text": "Fix {{ this }}.", "patch": "secret"}]),
    }
    for path in (catalog._STOCK / "bbh/cot_fewshot").glob("[!_]*.yaml"):
        files[f"bbh/{path.stem}.json"] = json.dumps({"examples": [{"input": "not True is", "target": "False"}]})
    for category in catalog.function_calls.CATEGORIES:
        files[f"bfcl/BFCL_v4_{category}.json"] = lines([CALL])
        files[f"bfcl/possible_answer/BFCL_v4_{category}.json"] = lines(
            [{"id": "0", "ground_truth": [{"add": {"a": [3], "type": ["", "x"]}}]}]
        )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "mmlu.zip", "w") as archive:
        for split, number in (("test", 2), ("dev", 5)):
            archive.writestr(f"data/{split}/world_history_{split}.csv", '"One, or two?",1,2,3,4,B\n' * number)
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "find", lambda _: None)  # the harness would load them from the network
    return tmp_path


def answerer(is_right):
    """Says the right answer to everything, or a wrong one."""
    return FakeModel(
        says=lambda request, sample: right_answer(request.doc) if is_right else wrong_answer(request.doc),
        prefers=lambda request: -float((request.idx == request.doc["answer"]) != is_right),
    )


def right_answer(doc):
    right = {
        "solution": lambda: doc["solution"],
        "answer": lambda: f"{doc['answer']} \\boxed{{{doc['answer']}}}",
        "canonical_solution": lambda: doc["canonical_solution"],
        "code": lambda: f"```python\n{doc['code']}\n```",
        "target": lambda: f"So the answer is {doc['target']}.",
        "kwargs": lambda: "yes",
        "possible": lambda: "<think></think>No function fits." if doc["possible"] == "[]" else RIGHT_CALL,
        "instance_id": lambda: "<patch>\ndiff --git a b\n</patch>",
    }
    return next(make for name, make in right.items() if name in doc)()


def wrong_answer(doc):
    return "nothing, <tool_call>add\n</tool_call>" if "possible" in doc else "nothing, or 7"


@pytest.mark.parametrize("name", known_names())
def test_right_and_wrong_answers(name, data, tmp_path):
    if name in NEEDS_SANDBOX and not sandbox._has_sandbox():
        pytest.skip("bubblewrap is not here, or may not run")
    asking = Asking(chat=name == "bfcl")
    for is_right in (True, False):
        score, items = run_benchmark(open_benchmark(name, data), asking, answerer(is_right))
        if name == "swebench":
            assert score.score is score.interval is score.finished_score is None
            assert score.extra == {"wrote_patch": float(is_right)}
            continue
        assert score.score == float(is_right), items[0]
        assert not score.refused
    assert len({item.number for item in items}) == len(items)


@pytest.mark.parametrize("name", known_names())
def test_missing_data_says_what_to_put_where(name, tmp_path):
    for directory in (None, tmp_path):
        with pytest.raises(DataError, match=f"^{name}: .*https://") as refusal:
            open_benchmark(name, directory)
        assert "\n" not in str(refusal.value)


def test_prompts_of_new_benchmarks(data):
    model = answerer(is_right=False)
    run_benchmark(open_benchmark("mbpp", data), Asking(), model)
    run_benchmark(open_benchmark("bbh", data), Asking(limit=1), model)
    run_benchmark(open_benchmark("swebench", data), Asking(), model)
    run_benchmark(open_benchmark("bfcl", data), Asking(chat=True, system="Be brief."), model)
    mbpp, bbh, swebench, bfcl = model.prompts[0], model.prompts[1], model.prompts[2], model.prompts[3]
    assert mbpp.count("[BEGIN]") == 4
    assert mbpp.count("[DONE]") == 3
    assert mbpp.endswith("assert add(1, 2) == 3\n[BEGIN]\n")
    assert bbh.count("\nQ: ") == 4
    assert bbh.endswith("Q: not True is\nA: Let's think step by step.\n")
    assert swebench == "Fix {{ this }}."
    messages, tools = json.loads(bfcl)
    assert [message["role"] for message in messages] == ["system", "user"]
    assert tools[0]["type"] == "function"
    assert tools[0]["function"]["parameters"]["type"] == "object"
    assert tools[0]["function"]["parameters"]["properties"] == {"type": {"type": "string"}, "a": {"type": "number"}}


def test_function_calls_need_the_chat_template(data):
    with pytest.raises(GlmforgeError, match=r"bfcl: .*--chat"):
        run_benchmark(open_benchmark("bfcl", data), Asking(), answerer(is_right=True))


def test_predictions_of_swebench(data, tmp_path):
    score, items = run_benchmark(open_benchmark("swebench", data), Asking(), answerer(is_right=True))
    finish(tmp_path, "exports/glm", {}, {}, [score], items)
    (line,) = (tmp_path / PREDICTIONS).read_text().splitlines()
    assert json.loads(line) == {
        "instance_id": "a__b-1",
        "model_name_or_path": "exports/glm",
        "model_patch": "diff --git a b\n",
    }


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("gsm8k", "gsm8k-test.jsonl", '{"question": "", "answer": NaN}\n', "NaN"),
        ("aime24", "aime24.jsonl", '{"problem": "", "answer": 1.5}\n', "'answer'"),
        ("mbpp", "mbpp.jsonl", lines(PROGRAMS[:3]), "expected tasks 2 to 4 and 11 to 510"),
        ("bbh", "bbh/navigate.json", '{"examples": [{"input": 1}]}', "row 1: field 'input'"),
        ("bfcl", "bfcl/BFCL_v4_multiple.json", lines([CALL | {"question": [[], []]}]), "single turn"),
        ("bfcl", "bfcl/BFCL_v4_multiple.json", lines([CALL | {"id": "1"}]), "has no answer to 1"),
    ],
)
def test_wrong_files(data, name, file, content, message):
    (data / file).write_text(content)
    with pytest.raises(DataError) as refusal:
        open_benchmark(name, data)
    assert message in str(refusal.value)
    assert file.rpartition("/")[2] in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"data/test/x_test.csv": "q,1,2,3,4,B\n"}, "of the same subjects"),
        ({"data/test/x_test.csv": "q,1,2,3,B\n", "data/dev/x_dev.csv": ""}, "expected question, four choices"),
        ({"data/test/x_test.csv": "q,1,2,3,4,E\n" + "q" * 9999, "data/dev/x_dev.csv": ""}, "A, B, C or D"),
        ({"notes.txt": ""}, "of the same subjects"),
    ],
)
def test_wrong_mmlu(tmp_path, members, message):
    with zipfile.ZipFile(tmp_path / "mmlu.zip", "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    with pytest.raises(DataError, match=message) as refusal:
        open_benchmark("mmlu", tmp_path)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_task_files(tmp_path):
    task = tmp_path / "task.yaml"
    for content in (None, "task: [", "task: mine\noutput_type: unknown", "- list", "dataset_path: !function gone.f"):
        if content is not None:
            task.write_text(content)
        with pytest.raises(GlmforgeError, match=r"task\.yaml") as refusal:
            open_benchmark(str(task))
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 600
