"""Task files of lm-evaluation-harness on a few sums."""

import json
from pathlib import Path

WRITTEN = """
task: sums
output_type: generate_until
doc_to_text: "Question: {{a}} + {{b}}\\nAnswer:"
doc_to_target: " {{c}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match, ignore_punctuation: true}]
"""
CHOSEN = """
task: sums
output_type: multiple_choice
doc_to_text: "{{a}} + {{b}} ="
doc_to_choice: ["three", "four", "five"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def task_file(directory: Path, kind: str, number: int = 6) -> Path:
    """`sums.yaml` and its data; the answers are 3, 4, 5, ..., or the first choice."""
    rows = [{"a": 1, "b": 2 + one, "c": str(3 + one)} for one in range(number)]
    (directory / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = directory / "sums.yaml"
    data = f'{{data_files: {{test: "{directory / "sums.jsonl"}"}}}}'
    task.write_text(f"{kind}dataset_path: json\ndataset_kwargs: {data}\ntest_split: test\n")
    return task
