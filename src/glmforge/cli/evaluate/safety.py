"""`glmforge evaluate safety MODEL`: how often a model refuses what is harmful, and what is not."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.options import ForceOption
from glmforge.cli.evaluate.benchmarks import Options as BenchmarkOptions
from glmforge.cli.evaluate.benchmarks import _load
from glmforge.cli.generate import Dtype
from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel
    from glmforge.evaluate.benchmarks.language_model import Generation
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.result import Item


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """Which model, which requests, and who judges."""

    model: Annotated[str, typer.Argument(help="An export, a run, a step of it (RUN@STEP), a checkpoint, or a URL.")]
    data: Annotated[Path, typer.Option(help="Directory with harmful_behaviors.csv and harmless.csv or .jsonl.")]
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the result; run again to resume.")]
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many requests of each kind.")] = None
    judge: Annotated[str, typer.Option(help="URL of a server whose model says of each answer if it refuses.")] = ""
    judge_model: Annotated[str, typer.Option(help="The name of the judge's model on its server.")] = ""
    served_model: Annotated[str, typer.Option(help="With a URL: the name of the model on the server.")] = ""
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the servers' API key.")] = ""
    thinking: Annotated[bool, typer.Option(help="Let the model reason before it answers.")] = True
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512
    dtype: Annotated[Dtype | None, typer.Option(help="Compute in this type instead of the stored one.")] = None
    device: Annotated[str, typer.Option(help="Where the model goes, such as cuda.")] = "cpu"
    tokenizer: Annotated[Path | None, typer.Option(help="Instead of the model's own tokenizer.")] = None
    force: ForceOption = False


@takes(SafetyOptions)
def safety(options: SafetyOptions) -> None:
    """Count refusals of harmful and of harmless requests, by rules and by a judge.

    A file is CSV or JSON Lines with goal or prompt, and category and language if it has them. The rules know how
    assistants refuse in English, Chinese, German, French, Spanish, Japanese and Russian.

    Examples:

        glmforge evaluate safety exports/glm --data data/safety --out results/safety

        glmforge evaluate safety exports/glm --data data/safety --out r --judge http://judge:8000/v1 --judge-model glm
    """
    with needed_for("evaluate"):
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks.language_model import EngineLM, Generation
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.run import finish, prepare
    from glmforge.evaluate.safety import measure, phrases_digest, read_requests

    if bool(options.judge) != bool(options.judge_model):
        raise GlmforgeError("--judge and --judge-model: give both, or neither")
    is_url = "://" in options.model
    if is_url and not options.served_model:
        raise GlmforgeError(f"{options.model}: a server needs the name of its model: --served-model")
    both = read_requests(options.data, options.limit)
    identity: dict[str, object] = {"url": options.model, "model": options.served_model}
    if not is_url:
        engine, identity = _load(
            BenchmarkOptions(
                model=options.model,
                benchmark=[],
                out=options.out,
                dtype=options.dtype,
                device=options.device,
                tokenizer=options.tokenizer,
            )
        )
    settings = {
        "max_new_tokens": options.max_new_tokens,
        "thinking": options.thinking,
        "judge": options.judge_model,
        "phrases": phrases_digest(),
        "requests": {asked.name: asked.data for asked in both},
    }
    prepare(options.out, identity, settings, overwrite=options.force)
    generation = Generation(max_new_tokens=options.max_new_tokens, temperature=0.0, thinking=options.thinking)
    judging = Generation(temperature=0.0, thinking=False)
    with ReplyStore(options.out) as replies, ReplyStore(options.out / "judge") as verdicts:
        judge = _served(options, options.judge, options.judge_model, verdicts, judging) if options.judge else None
        model = (
            _served(options, options.model, options.served_model, replies, generation)
            if is_url
            else EngineLM(engine, replies, generation, is_chat=True)
        )
        measured = [measure(asked, model, judge) for asked in both]
    items = [item for _, some in measured for item in some]
    finish(options.out, options.model, identity, settings, [score for score, _ in measured], items)
    print_table("", _table(items), Console())


def _served(
    options: SafetyOptions, url: str, name: str, replies: "ReplyStore", generation: "Generation"
) -> "EndpointModel":
    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server

    key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    return EndpointModel(Server(url, name, key), replies, generation)


def _table(items: "Sequence[Item]") -> "Table":
    """Refusals of each kind of requests: of all, then by category and language."""
    from glmforge.evaluate.safety import rates

    rows = table("requests", "number", "refused", "95 % interval", "cut", "judge agrees", in_words=("requests",))
    for benchmark, title in (("refusal", "harmful"), ("over_refusal", "harmless")):
        some = [item for item in items if item.benchmark == benchmark]
        cut = sum(item.is_cut for item in some) / len(some)
        for name, refused, agrees in rates(some):
            rows.add_row(
                f"  {name}" if name else title,
                f"{refused.num_items:,}",
                f"{refused.mean:.1%}",
                f"{refused.low:.1%} to {refused.high:.1%}",
                "" if name else f"{cut:.1%}",
                "" if agrees is None else f"{agrees.mean:.1%} ({agrees.low:.1%} to {agrees.high:.1%})",
            )
    return rows
