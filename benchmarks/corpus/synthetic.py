"""Verified problems: how fast 100,000 are made, how different they are, and whether anything is wrong with them.

    python benchmarks/corpus/synthetic.py                       # minutes; writes benchmarks/results/data_synthetic.json
    python benchmarks/corpus/synthetic.py --data ../shared/data # where eval/gsm8k-*.jsonl and eval/math*.jsonl lie
    python benchmarks/corpus/synthetic.py --quick               # a trial, writes nothing

Speed is that of `make_problems`, everything included: making, verifying, searching for evaluation items,
deduplicating, writing documents and conversations, fsync. It runs in a process of its own with two workers; CPU
seconds are user and system of that process and its children. Compiled loops are in numba's cache by a trial run
before. Expected before it was measured: 25 to 40 CPU seconds, hence under a minute of wall time on two free cores.

What was written is then looked at again by means that share nothing with the run: every record is read back and
verified once more, questions are compared as text, and all runs of 13 words (lower case; letters and digits, Chinese
characters one by one) are compared with those of GSM8K and MATH as Python sets.

reasoning-gym (Apache-2.0), a collection of such generators, takes part if it can be imported: a dozen of its
arithmetic, algebra and logic tasks, made and scored by its own scorer; it has no solutions to verify. It is looked
for after all other packages in a directory that is named:

    python -m venv /some/dir && /some/dir/bin/pip install reasoning-gym
    python benchmarks/corpus/synthetic.py --peer /some/dir/lib/python3.11/site-packages
"""

import argparse
import importlib.metadata
import json
import lzma
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from record import write_result

CODE = ["src/glmforge_corpus/synthesise", "src/glmforge_corpus/pipeline", "src/glmforge/verify"]
SETS = ("gsm8k-train.jsonl", "gsm8k-test.jsonl", "math-test.jsonl", "math_500.jsonl")
_WORDS = re.compile(r"[\u3400-\u9fff]|[a-z0-9]+")
RUN = 13


def make(count: int, out: str, data: str, workers: int) -> None:
    """In a process of its own: make the problems, and print what it took."""
    from glmforge_corpus.synthesise.make import make_problems
    from glmforge_corpus.synthesise.stage import Problems

    against = [{"name": name, "path": Path(data) / "eval" / name} for name in SETS]
    wall = time.perf_counter()
    report = make_problems(Problems.model_validate({"count": count, "against": against}), Path(out), workers=workers)
    wall = time.perf_counter() - wall
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(u.ru_utime + u.ru_stime for u in used)
    print(
        json.dumps(
            {"wall_seconds": wall, "cpu_seconds": cpu, "peak_rss_MB": max(u.ru_maxrss for u in used) / 1e3} | report
        )
    )


def run_make(count: int, out: Path, data: Path, workers: int) -> dict[str, Any]:
    arguments = [sys.executable, __file__, "--make", str(count), str(out), str(data), str(workers)]
    load = os.getloadavg()[0]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    result["load_before"] = load
    return result


def records(out: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((out / "messages").iterdir()):
        with path.open() as file:
            yield from map(json.loads, file)


def grams(text: str) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.lower())
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def examine(out: Path, data: Path) -> dict[str, Any]:
    """Look at everything that was written."""
    from glmforge_corpus.synthesise.check import why_wrong

    forbidden: set[tuple[str, ...]] = set()
    for name in SETS:
        for line in (data / "eval" / name).open():
            item = json.loads(line)
            for text in (item.get("question") or item.get("problem"), item.get("solution") or item.get("answer")):
                forbidden |= grams(text)
    wrong, contaminated, seen = Counter[str](), 0, set[str]()
    count, started = 0, time.process_time()
    for record in records(out):
        reason = why_wrong(record)
        if reason:
            wrong[reason] += 1
        count += 1
    verify_seconds = time.process_time() - started
    for record in records(out):
        seen.add(" ".join(record["question"].lower().split()))
        text = "\n".join(m.get("reasoning_content", "") + "\n" + m["content"] for m in record["messages"])
        contaminated += bool(grams(text) & forbidden)
    return {
        "records": count,
        "refused_by_checker": dict(wrong),
        "verify_microseconds_per_problem": 1e6 * verify_seconds / count,
        "different_questions": len(seen),
        f"with_{RUN}_words_of_an_evaluation_item": contaminated,
    }


def diversity(out: Path, data: Path) -> dict[str, Any]:
    """How different the problems are: patterns, answers, compressibility; GSM8K's own questions beside them."""
    all_records = list(records(out))
    patterns = {re.sub(r"\d+(?:[.,:]\d+)*", "0", record["question"].lower()) for record in all_records}
    gsm8k = [json.loads(line)["question"] for line in (data / "eval" / SETS[0]).open()]
    english = [record["question"] for record in all_records if record["language"] == "en"]
    step = len(english) // len(gsm8k) or 1
    families: dict[str, Any] = {}
    for family in sorted({record["family"] for record in all_records}):
        mine = [record for record in all_records if record["family"] == family]
        answers = Counter(record["answer"] for record in mine)
        probabilities = [n / len(mine) for n in answers.values()]
        families[family] = {
            "problems": len(mine),
            "templates": len({record["template"] for record in mine}),
            "without_numbers": len({re.sub(r"\d+(?:[.,:]\d+)*", "0", r["question"].lower()) for r in mine}),
            "different_answers": len(answers),
            "most_frequent_answers": [[a[:20], n] for a, n in answers.most_common(3)],
            "answer_entropy_bits": -sum(p * math.log2(p) for p in probabilities),
            "compression_ratio_of_questions": ratio([record["question"] for record in mine]),
            "mean_characters": {
                level: round(
                    statistics.fmean(len(r["messages"][-1]["reasoning_content"]) for r in mine if r["level"] == level)
                )
                for level in sorted({record["level"] for record in mine})
            },
        }
    sample = english[::step][: len(gsm8k)]
    assistants = [[m for m in record["messages"] if m["role"] == "assistant"] for record in all_records]
    return {
        "number_blanked_forms_per_1000": {
            f"{len(gsm8k)} English questions of all families": forms(sample),
            **{
                family: forms([r["question"] for r in all_records if r["family"] == family][:1000])
                for family in sorted({record["family"] for record in all_records})
            },
            f"{len(gsm8k)} questions of GSM8K": forms(gsm8k),
        },
        "compression_ratio_xz": {"ours": xz_ratio(sample), "GSM8K": xz_ratio(gsm8k)},
        "share_with_reasoning": sum(
            all(turn.get("reasoning_content", "").strip() for turn in turns) for turns in assistants
        )
        / len(assistants),
        "replies_of_the_bare_answer": sum(
            bool(re.fullmatch(r"\$?\\boxed\{[^\n]*\}\$?", turns[-1]["content"].strip())) for turns in assistants
        ),
        "templates": len({(record["family"], record["template"]) for record in all_records}),
        "questions_different_without_numbers": len(patterns),
        "compression_ratio": {
            f"{len(gsm8k)} English questions of all families": ratio(english[::step][: len(gsm8k)]),
            f"{len(gsm8k)} questions of GSM8K": ratio(gsm8k),
        },
        "families": families,
    }


def forms(texts: list[str]) -> int:
    """Different questions once numbers are blanked, per 1,000 questions."""
    return round(1000 * len({re.sub(r"\d+(?:[.,:]\d+)*", "0", text.lower()) for text in texts}) / len(texts))


def xz_ratio(texts: list[str]) -> float:
    """Size over compressed size (xz, preset 9)."""
    data = "\n".join(texts).encode()
    return round(len(data) / len(lzma.compress(data, preset=9)), 2)


def ratio(texts: list[str]) -> float:
    """Size over compressed size (Zstandard, level 19)."""
    data = "\n".join(texts).encode()
    return round(len(data) / len(zstandard.compress(data, 19)), 2)


def reasoning_gym_rate(count: int) -> dict[str, Any] | None:
    """Problems per CPU second of reasoning-gym, if it is there."""
    try:
        import reasoning_gym
    except ImportError:
        return None
    names = (
        "basic_arithmetic", "fraction_simplification", "gcd", "lcm", "chain_sum", "simple_equations",
        "polynomial_equations", "syllogism", "knights_knaves", "propositional_logic", "number_sequence",
        "base_conversion",
    )  # fmt: skip
    rates = {}
    for name in names:
        dataset = reasoning_gym.create_dataset(name, size=count, seed=0)
        _ = [dataset[i] for i in range(20)]
        started = time.process_time()
        for i in range(count):
            entry = dataset[i]
            dataset.score_answer(entry["answer"], entry)
        rates[name] = count / (time.process_time() - started)
    return {
        "version": importlib.metadata.version("reasoning-gym"),
        "per_cpu_second": {name: round(rate) for name, rate in rates.items()},
        "all_in_turn": round(len(rates) / sum(1 / rate for rate in rates.values())),
    }


def our_rate(count: int) -> dict[str, Any]:
    """Problems per CPU second of making and verifying alone, in memory, by family."""
    from glmforge_corpus.synthesise.check import why_wrong
    from glmforge_corpus.synthesise.generate import FAMILIES, make_problem

    rates = {}
    for family in FAMILIES:
        for level in range(1, 6):
            why_wrong(make_problem(1, family, level, 0).record())
        started = time.process_time()
        for i in range(count):
            why_wrong(make_problem(0, family, 1 + i % 5, i).record())
        rates[family] = count / (time.process_time() - started)
    return {
        "per_cpu_second": {name: round(rate) for name, rate in rates.items()},
        "all_in_turn": round(len(rates) / sum(1 / rate for rate in rates.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--peer", type=Path, help="site-packages that have reasoning-gym")
    parser.add_argument("--repeats", type=int, default=3, help="runs of 100,000 problems")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--make", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        count, out, data, workers = arguments.make
        make(int(count), out, data, int(workers))
        return
    if arguments.peer:
        sys.path.append(str(arguments.peer))
    missing = [name for name in SETS if not (arguments.data / "eval" / name).is_file()]
    if missing:
        sys.exit(f"{arguments.data / 'eval' / missing[0]}: not there: name the directory with --data")
    count, repeats = (4000, 1) if arguments.quick else (100_000, arguments.repeats)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run_make(2000, directory / "warm", arguments.data, 1)
        runs = []
        for repeat in range(repeats):
            runs.append(run_make(count, directory / str(repeat), arguments.data, 2))
            print(json.dumps({k: runs[-1][k] for k in ("wall_seconds", "cpu_seconds", "load_before")}), file=sys.stderr)
        examined = examine(directory / "0", arguments.data)
        spread = diversity(directory / "0", arguments.data)
        size = sum(
            path.stat().st_size for kind in ("messages", "documents") for path in (directory / "0" / kind).iterdir()
        )
    ours, peer = our_rate(300 if arguments.quick else 3000), reasoning_gym_rate(50 if arguments.quick else 1000)
    report = {
        k: v
        for k, v in runs[0].items()
        if k not in ("templates", "options", "wall_seconds", "cpu_seconds", "load_before")
    }
    result = {
        "count": count,
        "workers": 2,
        "wall_seconds": {"runs": [r["wall_seconds"] for r in runs], "min": min(r["wall_seconds"] for r in runs)},
        "cpu_seconds": {
            "runs": [r["cpu_seconds"] for r in runs],
            "min": min(r["cpu_seconds"] for r in runs),
            "median": statistics.median(r["cpu_seconds"] for r in runs),
        },
        "load_average_before": [r["load_before"] for r in runs],
        "report": report,
        "published_MB": size / 1e6,
        "examined_again": examined,
        "diversity": spread,
        "made_and_verified_in_memory": ours,
        "reasoning_gym": peer,
    }
    if not arguments.quick:
        write_result("data_synthetic", result, code=CODE, libraries=("pyarrow", "numba", "orjson", "xxhash"))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
