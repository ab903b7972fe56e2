"""From documents to questions, from questions to solutions, from solutions to those that are worth training on.

    <out>/
      journal.jsonl     every request and reply (`journal.py`); the run goes on from it
      questions.jsonl   questions that were made from documents
      accepted.jsonl    conversations that passed, ordered by question and sample
      rejected.jsonl    the others, each with its reason
      report.json       counts per reason, costs, what is missing

The files but the journal are written whole at the end, from the journal alone, in the order of the inputs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict
from glmforge.data.documents.document import Document
from glmforge.data.files import write_whole
from glmforge_corpus.pipeline.statistics import dump_json
from glmforge_corpus.synthesise.endpoint.ask import OnProgress, Server, Tally, ask_all
from glmforge_corpus.synthesise.endpoint.inputs import Question, Request, load_template, make_request, parse_questions
from glmforge_corpus.synthesise.endpoint.journal import Journal
from glmforge_corpus.synthesise.endpoint.judge import REASONS, Judgement, Reply, guess_kind, judge, read_reply
from glmforge_corpus.synthesise.problem import question_hash


class Sampling(Strict):
    """The model, and how it samples."""

    model: str = Field(min_length=1, description="the model's name on the server")
    samples: int = Field(default=4, ge=1, description="solutions per question")
    questions: int = Field(default=3, ge=1, description="questions per document")
    temperature: float = Field(default=0.8, ge=0, description="sampling temperature of solutions and questions")
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=8192, ge=1, description="tokens per reply, reasoning included")
    max_document_bytes: int = Field(
        default=16384, ge=100, description="bytes of a document that the model is shown, from its beginning"
    )
    send_seed: bool = Field(default=True, description="send a seed per request; a few servers refuse it")
    question_prompt: YamlPath | None = Field(default=None, description="Jinja file with {{ document }} and {{ count }}")
    solution_prompt: YamlPath | None = Field(default=None, description="Jinja file with {{ question }}")

    def request(self, prompt: str, purpose: str, sample: int) -> Request:
        """The request for one sample."""
        named = {
            "model": self.model,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
        }
        return make_request(prompt, purpose, sample, named, self.send_seed)


def generate(
    items: Iterable[Document] | Iterable[Question],
    out: Path,
    server: Server,
    sampling: Sampling,
    rules: Judgement | None = None,
    *,
    trust_answers: bool = False,
    only_questions: bool = False,
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Ask, judge, and write. Run again after a kill, a cap or failures, it asks for what is missing only.

    Args:
        items: documents to make questions from, or questions.
        out: the directory; one run at a time works in it.
        trust_answers: take the answer that came with a question made from a document for the right one; otherwise
            the solutions vote.
        only_questions: stop when there are questions.

    Returns:
        The report.

    Raises:
        ConfigError: a prompt file does not do; DataError: the server takes no request, or the journal is damaged.
    """
    rules = rules or Judgement()
    solve = load_template(sampling.solution_prompt, "solve.jinja", ("question",))
    make = load_template(sampling.question_prompt, "questions.jinja", ("document",))
    listed = list(items)
    with Journal(out / "journal.jsonl") as journal:
        questions = [item for item in listed if isinstance(item, Question)]
        tallies: dict[str, Tally] = {}
        made = Counter[str]()
        documents = [item for item in listed if isinstance(item, Document)]
        if documents:
            prompts = [make.render(document=_shown(d, sampling), count=sampling.questions) for d in documents]
            requests = [sampling.request(prompt, "questions", 0) for prompt in prompts]
            asked = list(zip(documents, requests, strict=True))
            tallies["questions"] = ask_all(requests, server, journal, progress)
            questions += _made_questions(asked, journal, made, trust_answers)
        if not only_questions:
            solutions = [
                [sampling.request(solve.render(question=q.question), "solution", k) for k in range(sampling.samples)]
                for q in questions
            ]
            if not documents or tallies["questions"].complete:
                tallies["solutions"] = ask_all([r for group in solutions for r in group], server, journal, progress)
            report = _write_solutions(out, questions, solutions, journal, rules, sampling.model)
        else:
            report = {}
        if documents:
            write_whole(out / "questions.jsonl", _lines(asdict(q) for q in questions))
        report |= {
            "documents": len(documents),
            "questions": len(questions),
            "questions_made": dict(made),
            "requests": {name: asdict(tally) | {"complete": tally.complete} for name, tally in tallies.items()},
            "complete": all(tally.complete for tally in tallies.values())
            and (only_questions or "solutions" in tallies),
            "cost": {"spent": round(journal.spent, 6), "cap": server.max_cost, "lost_at_kill": journal.lost_at_kill},
        }
    write_whole(out / "report.json", dump_json(report))
    return report


def _shown(document: Document, sampling: Sampling) -> str:
    return document.text.encode()[: sampling.max_document_bytes].decode(errors="ignore")


def _made_questions(
    asked: Sequence[tuple[Document, Request]], journal: Journal, made: Counter[str], trust_answers: bool
) -> list[Question]:
    """What the replies to documents ask; each question once."""
    questions, seen = [], set[bytes]()
    for document, request in asked:
        reply = _reply(journal, request)
        found = [] if reply is None or reply.finish == "length" else parse_questions(reply.content)
        made["documents without a question"] += not found
        for number, (text, answer) in enumerate(found):
            digest = question_hash(text)
            if digest in seen:
                made["duplicates"] += 1
                continue
            seen.add(digest)
            verifier = {"kind": guess_kind(answer), "answer": answer} if answer and trust_answers else None
            questions.append(Question(f"{document.id}#{number}", text, verifier, document.id))
    return questions


def _reply(journal: Journal, request: Request) -> Reply | None:
    entry = journal.entry(request.key)
    return read_reply(entry["reply"]) if entry is not None and entry["type"] == "done" else None


def _write_solutions(
    out: Path,
    questions: Sequence[Question],
    requests: Sequence[Sequence[Request]],
    journal: Journal,
    rules: Judgement,
    model: str,
) -> dict[str, Any]:
    accepted: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    reasons, solved = Counter[str](), 0
    for question, group in zip(questions, requests, strict=True):
        samples = [k for k, request in enumerate(group) if request.key in journal.finished]
        replies = [_reply(journal, group[k]) for k in samples]
        verdicts, answer = judge(replies, question.question, question.verifier, rules)
        solved += any(verdict is None for verdict in verdicts)
        for k, reply, verdict in zip(samples, replies, verdicts, strict=True):
            record = _record(question, k, reply, answer, model)
            if verdict is None:
                accepted.append(record)
            else:
                reasons[verdict] += 1
                rejected.append(record | {"reason": verdict})
    write_whole(out / "accepted.jsonl", _lines(accepted))
    write_whole(out / "rejected.jsonl", _lines(rejected))
    return {
        "accepted": len(accepted),
        "rejected": {reason: reasons[reason] for reason in REASONS},
        "questions_with_a_solution": solved,
    }


def _record(question: Question, sample: int, reply: Reply | None, answer: str | None, model: str) -> dict[str, Any]:
    assistant = {
        "role": "assistant",
        "reasoning_content": reply.reasoning if reply else "",
        "content": reply.content if reply else "",
    }
    verifier = question.verifier
    if verifier is None and answer is not None:
        verifier = {"kind": guess_kind(answer), "answer": answer, "from": "vote"}
    return {
        "id": f"{question.id}/{sample}",
        "messages": [{"role": "user", "content": question.question}, assistant],
        "question": question.question,
        "answer": answer,
        "verifier": verifier,
        "source": question.source,
        "model": model,
    }


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)
