"""The benchmarks: tasks of lm-evaluation-harness, on local data where we know their files.

Prompts, few-shot examples and filters of the well-known ones are the harness's own, so that scores compare with
published ones. Ours are the source of the data, and what judges mathematics (`verify.mathematics`) and programs
(`verify.sandbox`). Any other task of the harness, and any task file, runs too: its data come from the hub.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml  # the index of all tasks takes ten seconds; this reads one

from glmforge.config.explain import suggest
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import function_calls, scorers
from glmforge.evaluate.benchmarks.local_data import Fields, Row, Source, digest_of, read_archive, read_rows
from glmforge.extras import needed_for
from glmforge.files import shown

datasets.disable_progress_bars()
_STOCK = Path(lm_eval.__file__).parent / "tasks"
_METRICS = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
_NEXT_STATEMENT = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@dataclass(frozen=True)
class Benchmark:
    """What is asked, and how it is scored.

    Attributes:
        name: as on the command line.
        tasks: of the harness; their items are one list.
        metric, filter: the score among what the tasks measure, and after which of their filters.
        chance: what guessing scores; None if unknown.
        subject, level, cluster: fields of a document, "" for none: for tables, and for items that are not independent.
        data: digest of the data.
        is_scored: False where replies are only collected, for a judge elsewhere.
    """

    name: str
    tasks: tuple[ConfigurableTask, ...]
    metric: str
    filter: str = "none"
    chance: float | None = None
    subject: str = ""
    level: str = ""
    cluster: str = ""
    data: str = ""
    is_scored: bool = True


Maker = Callable[[str, Path | None], Benchmark]
"""Makes the benchmark of a name from the files in a directory (None if none is given)."""


def known_names() -> list[str]:
    """The benchmarks whose files we know."""
    return list(_KNOWN)


def open_benchmark(name: str, data: Path | None = None) -> Benchmark:
    """A benchmark by name, or the task in a YAML file.

    Args:
        data: directory with the benchmarks' files.

    Raises:
        DataError: its data are missing or damaged.
        GlmforgeError: there is no such benchmark, or its task cannot be made.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if name in _KNOWN:
        return _KNOWN[name](name, data)
    if name.endswith((".yaml", ".yml")):  # it may name functions: it is code, and runs as the user
        if not Path(name).is_file():
            raise GlmforgeError(f"{shown(name)}: no such file; give a task file of lm-evaluation-harness")
        return _loaded(name, TaskManager(include_defaults=False))
    manager = TaskManager()
    if name not in manager.all_tasks:
        raise GlmforgeError(f"unknown benchmark '{name}': {suggest(name, known_names())}")
    return _loaded(name, manager)


def questions_of(benchmark: Benchmark) -> list[str]:
    """The questions of all items without instructions and examples, in the order of the items' numbers."""
    found = []
    for task in benchmark.tasks:
        for doc in task.eval_docs:
            own = (doc[name] for name in ("question", "problem", "prompt") if isinstance(doc.get(name), str))
            found.append(str(next(own, None) or task.doc_to_text(doc)))
    return found


def _loaded(name: str, manager: TaskManager) -> Benchmark:
    try:
        tasks = tuple(manager.load([name])["tasks"].values())
    except Exception as error:  # noqa: BLE001 - the file's own code, its syntax, the hub: anything
        message = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise GlmforgeError(f"benchmark {shown(name)}: {message}") from None
    filters = [one.name for one in getattr(tasks[0], "_filters", [])] or ["none"]
    return Benchmark(Path(name).stem, tasks, next(iter(tasks[0].aggregation())), filter=filters[0])


# Tasks on rows of ours.


def _task(
    config: Mapping[str, Any], splits: Mapping[str, list[Row]], kind: type[ConfigurableTask] = ConfigurableTask
) -> ConfigurableTask:
    def dataset(**_: object) -> dict[str, datasets.Dataset]:
        return {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}

    kept = {key: value for key, value in config.items() if key not in ("tag", "group")}
    # `metadata` and `dataset_kwargs` are arguments of the function above.
    source = {"dataset_path": None, "dataset_name": None, "dataset_kwargs": None, "custom_dataset": dataset}
    return kind(config=kept | source)


def _stock(path: str, *, functions: bool = True) -> dict[str, Any]:
    """The harness's file of a task; without the functions that it names where their modules cannot be imported."""
    return load_yaml(_STOCK / path, resolve_func=functions)


def _own(prompt: str, target: str, num_tokens: int, score: Callable[..., object], *until: str) -> dict[str, Any]:
    """A task of our own: no examples, answered greedily."""
    return {
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": prompt,
        "doc_to_target": target,
        "generation_kwargs": {"until": list(until), "max_gen_toks": num_tokens, "do_sample": False},
        "num_fewshot": 0,
        "metric_list": _METRICS,
        "process_results": score,
        "metadata": {"version": 1.0},
    }


def _one_file(
    files: tuple[str, ...],
    url: str,
    fields: Fields,
    config: Callable[[], dict[str, Any]],
    metric: str = "right",
    row: Callable[[Row], Row] = lambda row: row,
    **more: Any,
) -> Maker:
    """A benchmark of one task, whose items are the rows of a file, each changed by `row`; `more` is of `Benchmark`."""

    def make(name: str, data: Path | None) -> Benchmark:
        rows = [row(one) for one in read_rows(Source(files, url).find(data, name), fields)]
        task = _task(config() | {"task": name, "test_split": "test"}, {"test": rows})
        return Benchmark(name, (task,), metric, data=digest_of(rows), **({"chance": 0.0} | more))

    return make


def _mathematics() -> dict[str, Any]:
    """The harness's four-shot prompt (Lewkowycz et al., 2022); answers are judged by math-verify."""
    changes = {"process_docs": None, "process_results": scorers.mathematics, "training_split": None}
    return _stock("minerva_math/minerva_math_algebra.yaml") | changes | {"doc_to_target": "{{solution}}"}


def _aime() -> dict[str, Any]:
    text = {"doc_to_text": "Question: {{problem}}\nAnswer:", "doc_to_target": "{{answer}}"}
    changes = {"training_split": None, "fewshot_split": None, "process_results": scorers.mathematics}
    return _stock("aime/aime24.yaml") | text | changes


def _ifeval() -> dict[str, Any]:
    """Instructions that a program can check; the harness's checks, which divide sentences by NLTK."""
    with needed_for("ifeval"):
        import immutabledict  # noqa: F401
        import langdetect  # noqa: F401
        import nltk
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        raise DataError("ifeval: NLTK's sentences are missing: python -m nltk.downloader punkt_tab") from None
    return _stock("ifeval/ifeval.yaml")


def _mmlu(name: str, data: Path | None) -> Benchmark:
    path = Source(("mmlu.zip",), "https://people.eecs.berkeley.edu/~hendrycks/data.tar").find(data, name)
    splits: dict[str, dict[str, list[Row]]] = {"test": {}, "dev": {}}
    for member, lines in read_archive(path):
        if (found := re.fullmatch(r"(?:.*/)?(test|dev)/([^/]+)_\1\.csv", member)) is not None:
            split, subject = found.groups()
            splits[split][subject] = [_mmlu_row(line, f"{path}: {member}", subject) for line in lines]
    if not splits["test"] or splits["test"].keys() != splits["dev"].keys():
        raise DataError(f"{path}: expected test/*_test.csv and dev/*_dev.csv of the same subjects")
    config = _stock("mmlu/default/_default_template_yaml") | {"num_fewshot": 5}
    about = "The following are multiple choice questions (with answers) about {}.\n\n"
    tasks = tuple(
        _task(
            config | {"task": f"mmlu_{subject}", "description": about.format(subject.replace("_", " "))},
            {"test": rows, "dev": splits["dev"][subject]},
        )
        for subject, rows in sorted(splits["test"].items())
    )
    return Benchmark(name, tasks, "acc", chance=0.25, subject="subject", data=digest_of([dict(splits)]))


def _mmlu_row(line: list[str], where: str, subject: str) -> Row:
    if len(line) != 6 or line[5] not in ("A", "B", "C", "D"):
        raise DataError(f"{where}: expected question, four choices and A, B, C or D, not {shown(str(line))}")
    return {"question": line[0], "choices": line[1:5], "answer": "ABCD".index(line[5]), "subject": subject}


def _gsm8k(name: str, data: Path | None) -> Benchmark:
    url, fields = "https://github.com/openai/grade-school-math", {"question": str, "answer": str}
    test, train = (
        read_rows(Source((f"gsm8k-{split}.jsonl", f"gsm8k/{split}.jsonl"), url).find(data, name), fields)
        for split in ("test", "train")
    )
    task = _task(_stock("gsm8k/gsm8k.yaml"), {"test": test, "train": train})
    return Benchmark(name, (task,), "exact_match", filter="flexible-extract", chance=0.0, data=digest_of(test))


def _mbpp(name: str, data: Path | None) -> Benchmark:
    """The authors' test split is 11 to 510; the harness's three examples are 2 to 4."""
    fields = {"task_id": int, "text": str, "code": str, "test_list": list, "test_setup_code": str}
    url = "https://github.com/google-research/google-research/tree/master/mbpp"
    path = Source(("mbpp.jsonl",), url).find(data, name)
    rows = {row["task_id"]: {name: row[name] for name in fields} for row in read_rows(path, fields)}
    test = [row for number, row in rows.items() if 11 <= number <= 510]
    if not {2, 3, 4} <= rows.keys() or not test or any(len(row["test_list"]) < 3 for row in test):
        raise DataError(f"{path}: expected tasks 2 to 4 and 11 to 510, with three tests each")
    examples = [rows[number] | {"is_fewshot": True} for number in (2, 3, 4)]
    changes = {
        "unsafe_code": False,  # the harness would run programs in this process; our judge has a sandbox
        "metric_list": _METRICS,
        "fewshot_config": {"sampler": "first_n", "samples": examples},
        "process_results": scorers.mbpp,
    }
    task = _task(_stock("mbpp/mbpp.yaml", functions=False) | changes, {"test": test})
    return Benchmark(name, (task,), "right", chance=0.0, data=digest_of(test))


def _bbh(name: str, data: Path | None) -> Benchmark:
    """27 tasks with the authors' three worked examples each, which the harness keeps in its task files.

    Its stop string "Q" cuts an answer "(Q)": 7 of the 6,511 items cannot be answered, as in published scores by it.
    """
    splits: dict[str, list[Row]] = {}
    tasks = []
    for path in sorted((_STOCK / "bbh/cot_fewshot").glob("[!_]*.yaml")):
        subject = path.stem
        source = Source((f"bbh/{subject}.json", f"{subject}.json"), "https://github.com/suzgunmirac/BIG-Bench-Hard")
        rows = read_rows(source.find(data, name), {"input": str, "target": str})
        splits[subject] = [{"input": row["input"], "target": row["target"], "subject": subject} for row in rows]
        tasks.append(_task(_stock(f"bbh/cot_fewshot/{path.name}"), {"test": splits[subject]}))
    found = digest_of([splits])
    return Benchmark(name, tuple(tasks), "exact_match", filter="get-answer", subject="subject", data=found)


def _bfcl(name: str, data: Path | None) -> Benchmark:
    """Single-turn Python categories of the Berkeley Function-Calling Leaderboard v4. The score is the mean over all
    items; the leaderboard's is the mean over its categories."""
    splits = {category: function_calls.rows_of(category, data) for category in function_calls.CATEGORIES}
    tasks = tuple(
        _task(
            _own("{{question}}", "{{possible}}", 1024, scorers.function_calls) | {"task": f"bfcl_{category}"},
            {"test": rows},
            function_calls.FunctionCallTask,
        )
        for category, rows in splits.items()
    )
    return Benchmark(name, tasks, "right", subject="category", data=digest_of([splits]))


_KNOWN: dict[str, Maker] = {
    "mmlu": _mmlu,
    "gsm8k": _gsm8k,
    "math": _one_file(
        ("math-test.jsonl", "math/test.jsonl"),
        "https://github.com/hendrycks/math",
        {"problem": str, "solution": str, "level": str, "type": str},
        _mathematics,
        subject="type",
        level="level",
    ),
    "math500": _one_file(
        ("math_500.jsonl", "math500.jsonl"),
        "https://huggingface.co/datasets/HuggingFaceH4/MATH-500",
        {"problem": str, "solution": str, "answer": str},
        _mathematics,
        subject="subject",
        level="level",
    ),
    **{
        name: _one_file(
            (f"{name}.jsonl",),
            "https://artofproblemsolving.com/wiki/index.php/AIME_Problems_and_Solutions",
            {"problem": str, "answer": (str, int)},
            _aime,
            row=lambda row: row | {"answer": str(row["answer"])},
        )
        for name in ("aime24", "aime25")
    },
    "humaneval": _one_file(
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
        "https://github.com/openai/human-eval",
        {"task_id": str, "prompt": str, "test": str, "entry_point": str},
        lambda: _own("{{prompt}}", "{{test}}\ncheck({{entry_point}})", 1024, scorers.humaneval, *_NEXT_STATEMENT),
    ),
    "mbpp": _mbpp,
    "bbh": _bbh,
    "ifeval": _one_file(
        ("ifeval.jsonl", "input_data.jsonl"),
        "https://github.com/google-research/google-research (ifeval)",
        {"key": int, "prompt": str, "instruction_id_list": list, "kwargs": list},
        _ifeval,
        "prompt_level_strict_acc",
    ),
    "bfcl": _bfcl,
    # The authors' prompts with the files to change. Patches are not judged here: each repository needs a container.
    "swebench": _one_file(
        ("swebench.jsonl",),
        "https://huggingface.co/datasets/princeton-nlp/SWE-bench_Lite_oracle, its test split as JSON Lines",
        {"instance_id": str, "text": str},
        lambda: _own("{{text}}", "{{instance_id}}", 4096, scorers.patch),
        "wrote_patch",
        row=lambda row: {"instance_id": row["instance_id"], "text": row["text"]},
        chance=None,
        is_scored=False,
    ),
}
