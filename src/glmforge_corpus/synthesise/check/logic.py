"""Logic, verified by reading the sentences back and going through worlds.

The generator decides with clauses, search and rules; here premises become predicates over worlds. Each line of a
proof is checked for itself, so that a right answer with a wrong proof does not pass.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

import re
from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Any

from glmforge_corpus.synthesise.check.formulas import Unreadable

_ITEM = re.compile(r"^\((\d+)\) (.+)$", re.MULTILINE)
_LETTERS = {(True, False): "A", (False, True): "B", (False, False): "C"}

World = dict[str, bool]
Sentence = Callable[[World], bool]


def _items(text: str) -> list[str]:
    return [body for _, body in _ITEM.findall(text)]


def _literal(text: str) -> tuple[str, bool]:
    text = text.strip()
    for prefix in ("it is not the case that ", "并非"):
        if text.startswith(prefix):
            return text.removeprefix(prefix), False
    return text, True


_FORMS = (
    (re.compile(r"^(?:If|如果)(.+?)(?: and also |，并且)(.+?)(?:, then |，那么)(.+)[.。]$"), lambda a, b, c: not (a and b) or c),
    (re.compile(r"^(?:If|如果)(.+?)(?:, then |，那么)(.+)[.。]$"), lambda a, b: not a or b),
    (re.compile(r"^(?:At least one holds: |至少有一个成立：)(.+?)(?:; |；)(.+)[.。]$"), lambda a, b: a or b),
    (re.compile(r"^(?:These never hold together: |不会同时成立：)(.+?)(?:; |；)(.+)[.。]$"), lambda a, b: not (a and b)),
    (re.compile(r"^(?:It is known that )?(.+)[.。]$"), lambda a: a),
)  # fmt: skip


def _sentence(text: str) -> tuple[Sentence, set[str]]:
    """(predicate over worlds, atoms) of a premise."""
    for pattern, combine in _FORMS:
        found = pattern.match(text)
        if found:
            literals = [_literal(part) for part in found.groups()]

            def predicate(
                world: World, literals: list[tuple[str, bool]] = literals, combine: Callable[..., bool] = combine
            ) -> bool:
                return combine(*(world[atom] is sign for atom, sign in literals))

            return predicate, {atom for atom, _ in literals}
    raise Unreadable(f"premise '{text}'")


def entailment(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or a line of its proof, or None."""
    body = question.rpartition("\n")[0]
    premises = [_sentence(text) for text in _items(body)]
    asked = re.search(
        r"(?:What about the statement: |Conclusion to judge: |Is it then the case that |那么对于命题：|判断结论：)(.+)[?？]$",
        body,
    )
    if asked is None:
        raise Unreadable("no conclusion")
    atom, sign = _literal(asked[1])
    atoms = sorted({atom}.union(*(names for _, names in premises)))
    worlds = [dict(zip(atoms, values, strict=True)) for values in product((False, True), repeat=len(atoms))]
    worlds = [world for world in worlds if all(predicate(world) for predicate, _ in premises)]
    must = all(world[atom] is sign for world in worlds)
    never = all(world[atom] is not sign for world in worlds)
    if not worlds or _LETTERS.get((must, never)) != answer:
        return "another answer follows"
    if answer == "C":
        return _models([predicate for predicate, _ in premises], (atom, sign), reasoning)
    return _refutation(premises, (atom, sign), answer, reasoning)


def _worlds_told(reasoning: str) -> list[str]:
    """What the lines "World 1: ..." say."""
    return re.findall(r"^(?:World|情形) \d: (.+)$", reasoning, re.MULTILINE)


def _models(premises: Sequence[Sentence], asked: tuple[str, bool], reasoning: str) -> str | None:
    outcomes = set()
    for line in _worlds_told(reasoning):
        values = {name.strip(): value == "1" for name, value in re.findall(r"([^;]+?) = ([01])", line)}
        try:
            if not all(premise(values) for premise in premises):
                return f"premises do not hold in '{line}'"
            outcomes.add(values[asked[0]] is asked[1])
        except KeyError:
            return f"no whole world: '{line}'"
    return None if outcomes == {True, False} else "both worlds say the same of the conclusion"


def _refutation(
    premises: Sequence[tuple[Sentence, set[str]]], asked: tuple[str, bool], answer: str, reasoning: str
) -> str | None:
    first, *lines, _ = reasoning.splitlines()
    supposed = re.match(r"(?:Suppose: |假设：)(.+)$", first)
    if supposed is None or _literal(supposed[1]) != (asked[0], asked[1] is (answer == "B")):
        return "supposes something else"
    known = dict([_literal(supposed[1])])
    for line in lines:
        found = re.match(r"\((\d+)\) -> (.+)$", line)
        if found is None:
            return f"no step: '{line}'"
        premise, names = premises[int(found[1]) - 1]
        worlds = []
        for values in product((False, True), repeat=len(names)):
            world = dict(zip(sorted(names), values, strict=True))
            if premise(world) and all(known.get(name, value) is value for name, value in world.items()):
                worlds.append(world)
        if found[2] in ("contradiction", "矛盾"):
            return None if not worlds and line == lines[-1] else f"no contradiction: '{line}'"
        atom, sign = _literal(found[2])
        if not worlds or any(world.get(atom) is not sign for world in worlds):
            return f"does not follow: '{line}'"
        known[atom] = sign
    return "the proof has no end"


_CATEGORICAL = re.compile(r"(?:(All|No|Some) (\S+) are (not )?(\S+?)\.|(所有|没有|有的)(\S+?)(都是|不是|是)(\S+?)。)")
_KINDS = {("All", ""): "all", ("No", ""): "no", ("Some", ""): "some", ("Some", "not "): "some_not",
          ("所有", "都是"): "all", ("没有", "是"): "no", ("有的", "是"): "some", ("有的", "不是"): "some_not"}  # fmt: skip
Claim = tuple[str, str, str]


def _claims(text: str) -> list[Claim]:
    found = []
    for quantifier, a, negation, b, word, c, copula, d in _CATEGORICAL.findall(text):
        kind = _KINDS.get((quantifier, negation) if quantifier else (word, copula))
        if kind is None:
            raise Unreadable(f"sentence '{quantifier or word}'")
        found.append((kind, a or c, b or d))
    return found


def _opposite(claim: Claim) -> Claim:
    return {"all": "some_not", "some_not": "all", "no": "some", "some": "no"}[claim[0]], claim[1], claim[2]


def _possible(claims: Sequence[Claim]) -> bool:
    """Whether categorical claims can hold together: each existing thing needs a kind that the others allow."""
    terms = sorted({term for _, a, b in claims for term in (a, b)})
    bit = {term: 1 << i for i, term in enumerate(terms)}
    allowed = [
        kind
        for kind in range(1 << len(terms))
        if not any(
            kind & bit[a] and ((q == "all" and not kind & bit[b]) or (q == "no" and kind & bit[b]))
            for q, a, b in claims
        )
    ]
    return all(
        any(kind & bit[a] and bool(kind & bit[b]) is (q == "some") for kind in allowed)
        for q, a, b in claims
        if q.startswith("some")
    )


def _entails(claims: Sequence[Claim], claim: Claim) -> bool:
    return not _possible([*claims, _opposite(claim)])


def syllogism(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or a line of its proof, or None."""
    *premises, asked = _claims(question.rpartition("\n")[0])
    if _LETTERS.get((_entails(premises, asked), _entails(premises, _opposite(asked)))) != answer or not _possible(
        premises
    ):
        return "another answer follows"
    if answer == "C":
        return _categorical_models(premises, asked, reasoning)
    reached: list[Claim] = []
    for line in reasoning.splitlines():
        cited, _, result = line.partition(" -> ")
        used = [premises[int(k) - 1] for k in re.findall(r"\((\d+)\)", cited)]
        (claim,) = _claims(result)
        if not _entails(used + reached[-1:], claim):
            return f"does not follow: '{line}'"
        reached.append(claim)
    final = asked if answer == "A" else _opposite(asked)
    return None if reached and reached[-1] == final else "the proof ends elsewhere"


def _categorical_models(premises: Sequence[Claim], asked: Claim, reasoning: str) -> str | None:
    outcomes = set()
    for line in _worlds_told(reasoning):
        world = [set(kind.strip().split("+")) for kind in line.split("|")]
        if not all(_true(premise, world) for premise in premises):
            return f"premises do not hold in '{line}'"
        outcomes.add(_true(asked, world))
    return None if outcomes == {True, False} else "both worlds say the same of the conclusion"


def _true(claim: Claim, world: Sequence[set[str]]) -> bool:
    kind, a, b = claim
    joint, apart = any(a in w and b in w for w in world), any(a in w and b not in w for w in world)
    return {"all": not apart, "no": not joint, "some": joint, "some_not": apart}[kind]


_SPEECH = re.compile(r"^(.+?)(?: says: |说：)(.+?)[.。]$")
_CLAIMS: tuple[tuple[re.Pattern[str], Callable[..., bool]], ...] = (
    (re.compile(r"^if (.+) is a knight, then so is (.+)$|^如果(.+)是骑士，那么(.+)也是$"), lambda a, b: b if a else True),
    (re.compile(r"^(.+) and (.+) are of the same kind$|^(.+)和(.+)是同一类人$"), lambda a, b: a is b),
    (re.compile(r"^(.+) and (.+) are of different kinds$|^(.+)和(.+)是不同类的人$"), lambda a, b: a is not b),
    (re.compile(r"^at least one of (.+) and (.+) is a knight$|^(.+)和(.+)中至少有一个是骑士$"), lambda a, b: any((a, b))),
    (re.compile(r"^both (.+) and (.+) are knaves$|^(.+)和(.+)都是无赖$"), lambda a, b: not any((a, b))),
    (re.compile(r"^(.+) is a knight$|^(.+)是骑士$"), lambda a: a),
    (re.compile(r"^(.+) is a knave$|^(.+)是无赖$"), lambda a: not a),
)  # fmt: skip


def _speech(text: str) -> tuple[str, tuple[str, ...], Callable[..., bool]]:
    """(speaker, people spoken of, predicate over their kinds)."""
    found = _SPEECH.match(text)
    if found:
        for pattern, predicate in _CLAIMS:
            said = pattern.match(found[2])
            if said:
                return found[1], tuple(g for g in said.groups() if g), predicate
    raise Unreadable(f"statement '{text}'")


def knights_and_knaves(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or a case of its proof, or None."""
    speeches = [_speech(text) for text in _items(question)]
    people = [speaker for speaker, _, _ in speeches]

    def breaks(number: int, kinds: dict[str, bool]) -> bool:
        speaker, about, predicate = speeches[number]
        return (
            speaker in kinds
            and all(p in kinds for p in about)
            and predicate(*(kinds[p] for p in about)) is not kinds[speaker]
        )

    solutions = [
        values
        for values in product((True, False), repeat=len(people))
        if not any(breaks(i, dict(zip(people, values, strict=True))) for i in range(len(people)))
    ]
    given = tuple(
        {"knight": True, "knave": False, "骑士": True, "无赖": False}.get(word) for word in answer.split(", ")
    )
    if solutions != [given]:
        return "not the only solution"
    cases = [
        (
            {
                name: kind in ("knight", "骑士")
                for name, kind in re.findall(r"(\S+) (knights?|knaves?|骑士|无赖)", line)
            },
            line,
        )
        for line in reasoning.splitlines()
    ]
    return _cover(
        cases,
        breaks,
        2 ** len(people),
        lambda case: 2 ** (len(people) - len(case)),
        dict(zip(people, given, strict=True)),
    )


def _cover(
    cases: Sequence[tuple[dict[str, Any], str]],
    breaks: Callable[[int, dict[str, Any]], bool],
    everything: int,
    size: Callable[[dict[str, Any]], int],
    solution: dict[str, Any],
) -> str | None:
    """Whether the cases are broken as they say, do not overlap, and leave nothing out."""
    covered, fitting = 0, 0
    for number, (case, line) in enumerate(cases):
        broken = re.search(r"\((\d+)\)", line)
        if broken and not breaks(int(broken[1]) - 1, case):
            return f"not broken: '{line}'"
        if not broken:
            fitting += 1
            if case != solution:
                return f"not the solution: '{line}'"
        for other, _ in cases[:number]:
            if all(other[name] == value for name, value in case.items() if name in other):
                return f"stands twice: '{line}'"
        covered += size(case)
    return None if covered == everything and fitting == 1 else "not all cases are there"


_CLUES: tuple[tuple[re.Pattern[str], Callable[[int, int, int, int], bool]], ...] = (
    (re.compile(r"^(?P<a>.+) is somewhere to the left of (?P<b>.+)\.$|^(?P<c>.+)在(?P<d>.+)的左边某处。$"), lambda x, y, k, n: x < y),
    (re.compile(r"^(?P<a>.+) is directly to the left of (?P<b>.+)\.$|^(?P<c>.+)紧挨在(?P<d>.+)的左边。$"), lambda x, y, k, n: y - x == 1),
    (re.compile(r"^(?P<a>.+) and (?P<b>.+) are next to each other\.$|^(?P<c>.+)和(?P<d>.+)相邻。$"), lambda x, y, k, n: x - y in (1, -1)),
    (re.compile(r"^(?P<a>.+) and (?P<b>.+) are not next to each other\.$|^(?P<c>.+)和(?P<d>.+)不相邻。$"), lambda x, y, k, n: x - y not in (1, -1)),
    (re.compile(r"^There are exactly (?P<k>\d+) people between (?P<a>.+) and (?P<b>.+)\.$|^恰好有(?P<l>\d+)人在(?P<c>.+)和(?P<d>.+)之间。$"), lambda x, y, k, n: x - y - 1 == k or y - x - 1 == k),
    (re.compile(r"^(?P<a>.+) is at position (?P<k>\d+)\.$|^(?P<c>.+[^不])在第(?P<l>\d+)位。$"), lambda x, y, k, n: x == k),
    (re.compile(r"^(?P<a>.+) is not at position (?P<k>\d+)\.$|^(?P<c>.+)不在第(?P<l>\d+)位。$"), lambda x, y, k, n: x != k),
    (re.compile(r"^(?P<a>.+) is at one of the ends\.$|^(?P<c>.+)在两端之一。$"), lambda x, y, k, n: x == 1 or x == n),
)  # fmt: skip


def _clue(text: str, people: Sequence[str]) -> tuple[str, str, int, Callable[[int, int, int, int], bool]]:
    for pattern, predicate in _CLUES:
        found = pattern.match(text)
        if found:
            part = found.groupdict()
            a = part["a"] or part["c"]
            b = part.get("b") or part.get("d") or a
            if a in people and b in people:
                return a, b, int(part.get("k") or part.get("l") or 0), predicate
    raise Unreadable(f"clue '{text}'")


def seating(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or a case of its proof, or None."""
    listed = re.search(r"(?:in a row: (.+?)\. Positions|^(.+?) stand in line|坐成一排：(.+?)。位置)", question)
    if listed is None:
        raise Unreadable("no people")
    people = re.split(r", |、", next(g for g in listed.groups() if g))
    clues = [_clue(text, people) for text in _items(question)]
    count = len(people)

    def breaks(number: int, places: dict[str, int]) -> bool:
        a, b, k, predicate = clues[number]
        return a in places and b in places and not predicate(places[a], places[b], k, count)

    solutions = []
    for order in permutations(people):
        places = {name: place + 1 for place, name in enumerate(order)}
        if not any(breaks(i, places) for i in range(len(clues))):
            solutions.append(list(order))
    given = answer.split(", ")
    if solutions != [given]:
        return "not the only solution"
    cases = [
        ({name: int(place) for name, place in re.findall(r"([^\s,]+) (\d+)(?=[,:：])", line)}, line)
        for line in reasoning.splitlines()
    ]
    factorial = [1]
    for i in range(1, count + 1):
        factorial.append(factorial[-1] * i)
    solution = {name: place + 1 for place, name in enumerate(given)}
    return _cover(cases, breaks, factorial[count], lambda case: factorial[count - len(case)], solution)


CHECKS: dict[str, Callable[[str, str, str], str | None]] = {
    "entailment": entailment,
    "syllogism": syllogism,
    "knights_and_knaves": knights_and_knaves,
    "seating": seating,
}
