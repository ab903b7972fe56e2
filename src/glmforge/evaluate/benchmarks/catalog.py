"""The benchmarks: tasks of lm-evaluation-harness, on local data where we know their files.

Prompts, few-shot examples and filters of the well-known ones are the harness's own, so that scores compare with
published ones; what is ours is where the data come from, and who judges mathematics (`verify.mathematics`) and programs
(`verify.sandbox`). Any other task of the harness, and any task file, runs too: its data come from the hub.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
from glmforge.evaluate.benchmarks.local_data import Row, Source, digest_of, read_archive, read_rows
from glmforge.extras import needed_for
from glmforge.files import shown

_STOCK = Path(lm_eval.__file__).parent / "tasks"

Doc = Mapping[str, Any]


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


@dataclass(frozen=True)
class _Known:
    """How a benchmark is made from its files.

    Attributes:
        make: from the data directory (None if none is given).
        is_proven: it has been run on its real data here.
    """

    make: Callable[[Path | None], Benchmark]
    is_proven: bool


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
        return _KNOWN[name].make(data)
    if name.endswith((".yaml", ".yml")):
        return _from_file(Path(name))
    return _from_harness(name)


def is_proven(name: str) -> bool:
    """Whether a known benchmark has been run on its real data by those who wrote it here."""
    return _KNOWN[name].is_proven


def questions_of(benchmark: Benchmark) -> list[str]:
    """The questions of all items without instructions and examples, in the order of the items' numbers."""
    found = []
    for task in benchmark.tasks:
        for doc in task.eval_docs:
            own = (doc[name] for name in ("question", "problem", "prompt") if isinstance(doc.get(name), str))
            found.append(str(next(own, None) or task.doc_to_text(doc)))
    return found


def _task(
    config: dict[str, Any],
    splits: Mapping[str, list[Row]],
    kind: type[ConfigurableTask] = ConfigurableTask,
    **changes: object,
) -> ConfigurableTask:
    """A task on these rows."""

    def dataset(**_: object) -> dict[str, datasets.Dataset]:
        return {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}

    config = {key: value for key, value in config.items() if key not in ("tag", "group")}
    metadata = config.get("metadata")
    # `metadata` and `dataset_kwargs` are arguments of the function above; the version is all that is kept of them.
    config |= {"dataset_path": None, "dataset_name": None, "dataset_kwargs": None, "custom_dataset": dataset} | changes
    return kind(config=config | {"metadata": metadata})


def _stock(path: str, *, functions: bool = True) -> dict[str, Any]:
    """A task's file, without the functions that it names where their modules cannot be imported."""
    return load_yaml(_STOCK / path, resolve_func=functions)


def _mmlu(data: Path | None) -> Benchmark:
    path = Source(("mmlu.zip",), "https://people.eecs.berkeley.edu/~hendrycks/data.tar").find(data, "mmlu")
    splits: dict[str, dict[str, list[Row]]] = {"test": {}, "dev": {}}
    for name, lines in read_archive(path):
        split, _, subject = name.removesuffix(".csv").rpartition("/")
        split = split.rpartition("/")[2]
        if split in splits and subject.endswith(f"_{split}"):
            subject = subject.removesuffix(f"_{split}")
            splits[split][subject] = [_mmlu_row(line, f"{path}: {name}", subject) for line in lines]
    if not splits["test"] or splits["test"].keys() != splits["dev"].keys():
        raise DataError(f"{path}: expected test/*_test.csv and dev/*_dev.csv of the same subjects")
    config = _stock("mmlu/default/_default_template_yaml")
    tasks = tuple(
        _task(
            config,
            {"test": rows, "dev": splits["dev"][subject]},
            task=f"mmlu_{subject}",
            num_fewshot=5,
            description="The following are multiple choice questions (with answers) about "
            f"{subject.replace('_', ' ')}.\n\n",
        )
        for subject, rows in sorted(splits["test"].items())
    )
    return Benchmark(
        "mmlu",
        tasks,
        "acc",
        chance=0.25,
        subject="subject",
        data=digest_of([dict(splits)]),
    )


def _mmlu_row(line: list[str], where: str, subject: str) -> Row:
    if len(line) != 6 or line[5] not in ("A", "B", "C", "D"):
        raise DataError(f"{where}: expected question, four choices and A, B, C or D, not {shown(str(line))}")
    return {"question": line[0], "choices": line[1:5], "answer": "ABCD".index(line[5]), "subject": subject}


_GSM8K = "https://github.com/openai/grade-school-math"


def _gsm8k(data: Path | None) -> Benchmark:
    fields = {"question": str, "answer": str}
    test = read_rows(Source(("gsm8k-test.jsonl", "gsm8k/test.jsonl"), _GSM8K).find(data, "gsm8k"), fields)
    train = read_rows(Source(("gsm8k-train.jsonl", "gsm8k/train.jsonl"), _GSM8K).find(data, "gsm8k"), fields)
    task = _task(_stock("gsm8k/gsm8k.yaml"), {"test": test, "train": train})
    return Benchmark("gsm8k", (task,), "exact_match", filter="flexible-extract", chance=0.0, data=digest_of(test))


def _math(data: Path | None) -> Benchmark:
    fields = {"problem": str, "solution": str, "level": str, "type": str}
    path = Source(("math-test.jsonl", "math/test.jsonl"), "https://github.com/hendrycks/math").find(data, "math")
    return _mathematics("math", read_rows(path, fields), subject="type", level="level")


def _math500(data: Path | None) -> Benchmark:
    fields = {"problem": str, "solution": str, "answer": str}
    source = Source(("math_500.jsonl", "math500.jsonl"), "https://huggingface.co/datasets/HuggingFaceH4/MATH-500")
    return _mathematics("math500", read_rows(source.find(data, "math500"), fields), subject="subject", level="level")


def _mathematics(name: str, rows: list[Row], subject: str, level: str) -> Benchmark:
    """The harness's four-shot prompt (Lewkowycz et al., 2022); answers are judged by math-verify."""
    config = _stock("minerva_math/minerva_math_algebra.yaml")
    changes: dict[str, Any] = {"process_docs": None, "process_results": scorers.mathematics, "training_split": None}
    task = _task(config, {"test": rows}, task=name, doc_to_target="{{solution}}", **changes)
    return Benchmark(name, (task,), "right", chance=0.0, subject=subject, level=level, data=digest_of(rows))


def _aime(year: str, data: Path | None) -> Benchmark:
    name = f"aime{year}"
    source = Source((f"{name}.jsonl",), "https://artofproblemsolving.com/wiki/index.php/AIME_Problems_and_Solutions")
    rows = read_rows(source.find(data, name), {"problem": str, "answer": (str, int)})
    rows = [row | {"answer": str(row["answer"])} for row in rows]
    task = _task(
        _stock("aime/aime24.yaml"),
        {"test": rows},
        task=name,
        test_split="test",
        training_split=None,
        fewshot_split=None,
        doc_to_text="Question: {{problem}}\nAnswer:",
        doc_to_target="{{answer}}",
        process_results=scorers.mathematics,
    )
    return Benchmark(name, (task,), "right", chance=0.0, data=digest_of(rows))


def _humaneval(data: Path | None) -> Benchmark:
    fields = {"task_id": str, "prompt": str, "test": str, "entry_point": str}
    source = Source(("HumanEval.jsonl.gz", "HumanEval.jsonl"), "https://github.com/openai/human-eval")
    rows = read_rows(source.find(data, "humaneval"), fields)
    config = _written("humaneval", "{{prompt}}", "{{test}}\ncheck({{entry_point}})", 1024, scorers.humaneval)
    config["generation_kwargs"]["until"] = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
    return Benchmark("humaneval", (_task(config, {"test": rows}),), "right", chance=0.0, data=digest_of(rows))


def _written(name: str, prompt: str, target: str, tokens: int, score: Callable[..., object]) -> dict[str, Any]:
    """A task of our own: no examples, answered greedily."""
    return {
        "task": name,
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": prompt,
        "doc_to_target": target,
        "generation_kwargs": {"until": [], "max_gen_toks": tokens, "do_sample": False},
        "num_fewshot": 0,
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "process_results": score,
        "metadata": {"version": 1.0},
    }


def _mbpp(data: Path | None) -> Benchmark:
    """The authors' test split is 11 to 510; the harness's three examples are 2 to 4."""
    source = Source(("mbpp.jsonl",), "https://github.com/google-research/google-research/tree/master/mbpp")
    fields = {"task_id": int, "text": str, "code": str, "test_list": list, "test_setup_code": str}
    path = source.find(data, "mbpp")
    rows = {row["task_id"]: {name: row[name] for name in fields} for row in read_rows(path, fields)}
    test = [row for number, row in rows.items() if 11 <= number <= 510]
    if not {2, 3, 4} <= rows.keys() or not test or any(len(row["test_list"]) < 3 for row in test):
        raise DataError(f"{path}: expected tasks 2 to 4 and 11 to 510, with three tests each")
    task = _task(
        _stock("mbpp/mbpp.yaml", functions=False),
        {"test": test},
        unsafe_code=False,  # the harness would run programs in this process; our judge has a sandbox
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        fewshot_config={"sampler": "first_n", "samples": [rows[n] | {"is_fewshot": True} for n in (2, 3, 4)]},
        process_results=scorers.mbpp,
    )
    return Benchmark("mbpp", (task,), "right", chance=0.0, data=digest_of(test))


def _bbh(data: Path | None) -> Benchmark:
    """27 tasks with the authors' three worked examples each, which the harness keeps in its task files.

    Its stop string "Q" cuts an answer "(Q)": 7 of the 6,511 items cannot be answered, as in published scores by it.
    """
    splits: dict[str, list[Row]] = {}
    tasks = []
    for path in sorted((_STOCK / "bbh/cot_fewshot").glob("[!_]*.yaml")):
        name = path.stem
        source = Source((f"bbh/{name}.json", f"{name}.json"), "https://github.com/suzgunmirac/BIG-Bench-Hard")
        rows = read_rows(source.find(data, "bbh"), {"input": str, "target": str})
        splits[name] = [{"input": row["input"], "target": row["target"], "subject": name} for row in rows]
        tasks.append(_task(_stock(f"bbh/cot_fewshot/{path.name}"), {"test": splits[name]}))
    return Benchmark(
        "bbh", tuple(tasks), "exact_match", filter="get-answer", subject="subject", data=digest_of([splits])
    )


def _ifeval(data: Path | None) -> Benchmark:
    """Instructions that a program can check; the harness's checks, which cut sentences by NLTK."""
    source = Source(("ifeval.jsonl", "input_data.jsonl"), "https://github.com/google-research/google-research (ifeval)")
    fields = {"key": int, "prompt": str, "instruction_id_list": list, "kwargs": list}
    rows = read_rows(source.find(data, "ifeval"), fields)
    with needed_for("ifeval"):
        import immutabledict  # noqa: F401
        import langdetect  # noqa: F401
        import nltk
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        raise DataError("ifeval: NLTK's sentences are missing: python -m nltk.downloader punkt_tab") from None
    task = _task(_stock("ifeval/ifeval.yaml"), {"train": rows})
    return Benchmark("ifeval", (task,), "prompt_level_strict_acc", chance=0.0, data=digest_of(rows))


def _bfcl(data: Path | None) -> Benchmark:
    """Single-turn Python categories of the Berkeley Function-Calling Leaderboard v4; the score is of all items, where
    the leaderboard's is the mean of its categories."""
    splits = {category: function_calls.rows_of(category, data) for category in function_calls.CATEGORIES}
    tasks = tuple(
        _task(
            _written(f"bfcl_{category}", "{{question}}", "{{possible}}", 1024, scorers.function_calls),
            {"test": rows},
            kind=function_calls.FunctionCallTask,
        )
        for category, rows in splits.items()
    )
    return Benchmark("bfcl", tasks, "right", subject="category", data=digest_of([splits]))


def _swebench(data: Path | None) -> Benchmark:
    """The authors' prompts with the files to change (SWE-bench_oracle, SWE-bench_Lite_oracle). Patches are not judged
    here: that takes a container for each repository."""
    hub = "https://huggingface.co/datasets/princeton-nlp/SWE-bench_Lite_oracle, its test split as JSON Lines"
    rows = read_rows(Source(("swebench.jsonl",), hub).find(data, "swebench"), {"instance_id": str, "text": str})
    rows = [{"instance_id": row["instance_id"], "text": row["text"]} for row in rows]
    task = _task(_written("swebench", "{{text}}", "{{instance_id}}", 4096, scorers.patch), {"test": rows})
    return Benchmark("swebench", (task,), "wrote_patch", data=digest_of(rows), is_scored=False)


_KNOWN: dict[str, _Known] = {
    "mmlu": _Known(_mmlu, is_proven=True),
    "gsm8k": _Known(_gsm8k, is_proven=True),
    "math": _Known(_math, is_proven=True),
    "math500": _Known(_math500, is_proven=True),
    "aime24": _Known(partial(_aime, "24"), is_proven=True),
    "aime25": _Known(partial(_aime, "25"), is_proven=True),
    "humaneval": _Known(_humaneval, is_proven=True),
    "mbpp": _Known(_mbpp, is_proven=True),
    "bbh": _Known(_bbh, is_proven=True),
    "ifeval": _Known(_ifeval, is_proven=False),
    "bfcl": _Known(_bfcl, is_proven=True),
    "swebench": _Known(_swebench, is_proven=False),
}


def _from_file(path: Path) -> Benchmark:
    """A task file of the harness, which may name functions: it is code, and runs as the user."""
    if not path.is_file():
        raise GlmforgeError(f"{shown(path)}: no such file; give a task file of lm-evaluation-harness")
    return _loaded(str(path), TaskManager(include_defaults=False))


def _from_harness(name: str) -> Benchmark:
    manager = TaskManager()
    if name not in manager.all_tasks:
        raise GlmforgeError(f"unknown benchmark '{name}': {suggest(name, known_names())}")
    return _loaded(name, manager)


def _loaded(name: str, manager: TaskManager) -> Benchmark:
    try:
        tasks = tuple(manager.load([name])["tasks"].values())
    except Exception as error:  # noqa: BLE001 - the file's own code, its syntax, the hub: anything
        raise GlmforgeError(f"benchmark {shown(name)}: {_one_line(error)}") from None
    first = tasks[0]
    metric = next(iter(first.aggregation()))
    filters = [one.name for one in getattr(first, "_filters", [])]
    return Benchmark(Path(name).stem, tasks, metric, filter=filters[0] if filters else "none")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
