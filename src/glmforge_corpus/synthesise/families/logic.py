"""Propositional entailment and syllogisms: does a conclusion follow, is it refuted, or neither?

Premises are clauses and sentences, proofs go by unit propagation. Answers are the letters of three choices. A proof is
a list of lines "(k) -> fact": from premise k and the facts before, the fact. Where nothing follows, two worlds are
shown in which all premises hold and the conclusion does in one only. Both can be checked line by line without a prover.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from dataclasses import dataclass
from itertools import product

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.pools import NONSENSE, NONSENSE_ZH, SURFACE
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky, say

Literal = tuple[int, bool]
Clause = tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Premise:
    """`kind` is fact (p), if (p implies q), or (p or q), nand (not both), both (p and q imply r)."""

    kind: str
    parts: tuple[Literal, ...]


def negate(literal: Literal) -> Literal:
    return literal[0], not literal[1]


def premise_clauses(premise: Premise) -> list[Clause]:
    """The premise as clauses (disjunctions)."""
    parts = premise.parts
    match premise.kind:
        case "fact" | "or":
            return [parts]
        case "if":
            return [(negate(parts[0]), parts[1])]
        case "nand":
            return [(negate(parts[0]), negate(parts[1]))]
        case _:
            return [(negate(parts[0]), negate(parts[1]), parts[2])]


def say_literal(literal: Literal, atoms: list[str], zh: bool) -> str:
    atom, positive = atoms[literal[0]], literal[1]
    if positive:
        return atom
    return f"并非{atom}" if zh else f"it is not the case that {atom}"


def say_premise(premise: Premise, atoms: list[str], zh: bool) -> str:
    """One sentence, always built the same way, so that it can be read back."""
    words = [say_literal(part, atoms, zh) for part in premise.parts]
    match premise.kind:
        case "fact":
            return f"{words[0]}。" if zh else f"It is known that {words[0]}."
        case "if":
            return f"如果{words[0]}，那么{words[1]}。" if zh else f"If {words[0]}, then {words[1]}."
        case "or":
            return f"至少有一个成立：{words[0]}；{words[1]}。" if zh else f"At least one holds: {words[0]}; {words[1]}."
        case "nand":
            return (
                f"不会同时成立：{words[0]}；{words[1]}。"
                if zh
                else f"These never hold together: {words[0]}; {words[1]}."
            )
        case _:
            return (
                f"如果{words[0]}，并且{words[1]}，那么{words[2]}。"
                if zh
                else f"If {words[0]} and also {words[1]}, then {words[2]}."
            )


def find_world(clauses: list[Clause], num_atoms: int) -> list[bool] | None:
    """The first assignment of all atoms that satisfies all clauses."""
    for world in product((True, False), repeat=num_atoms):
        if all(any(world[atom] is sign for atom, sign in clause) for clause in clauses):
            return list(world)
    return None


def derive(premises: list[Premise], assumed: Literal, num_atoms: int) -> list[tuple[int, Literal | None]] | None:
    """(premise, fact it forces) ... (premise, None) where one is broken; None if propagation does not get there.

    Only lines that the contradiction rests on are kept.
    """
    value: dict[int, bool] = {assumed[0]: assumed[1]}
    reason: dict[int, tuple[int, list[int]] | None] = {assumed[0]: None}
    order: list[int] = []
    changed = True
    while changed:
        changed = False
        for index, premise in enumerate(premises):
            for clause in premise_clauses(premise):
                if any(value.get(atom) is sign for atom, sign in clause):
                    continue
                free = [literal for literal in clause if literal[0] not in value]
                used = [atom for atom, _ in clause if atom in value]
                if not free:
                    return _trim(order, reason, value, index, used)
                if len(free) == 1:
                    atom, sign = free[0]
                    value[atom], reason[atom] = sign, (index, used)
                    order.append(atom)
                    changed = True
    return None


def _trim(
    order: list[int],
    reason: dict[int, tuple[int, list[int]] | None],
    value: dict[int, bool],
    last: int,
    used: list[int],
) -> list[tuple[int, Literal | None]]:
    needed, stack = set[int](), list(used)
    while stack:
        atom = stack.pop()
        if atom not in needed:
            needed.add(atom)
            why = reason[atom]
            stack += why[1] if why else []
    lines: list[tuple[int, Literal | None]] = []
    for atom in order:
        why = reason[atom]
        if atom in needed and why:
            lines.append((why[0], (atom, value[atom])))
    return [*lines, (last, None)]


CHOICES = (
    "(A) It must be true. (B) It must be false. (C) Neither follows.",
    "（A）一定为真 （B）一定为假 （C）两者都推不出",
)
_ASK = ("Suppose the following is known.\n{p}\nWhat about the statement: {c}?\n{o}", "Premises:\n{p}\nConclusion to judge: {c}?\n{o}",
        "Take these for granted:\n{p}\nIs it then the case that {c}?\n{o}")  # fmt: skip
_ASK_ZH = ("已知：\n{p}\n那么对于命题：{c}？\n{o}", "前提如下：\n{p}\n判断结论：{c}？\n{o}")


def entailment(draw: Draw, level: int, zh: bool) -> Draft:
    """L + 3 premises over L + 2 statements: facts, if-then, either-or, not-both; level 3 on with two-part conditions."""
    num_atoms = level + 2
    atoms = [pair[1 if zh else 0] for pair in draw.sample(SURFACE, num_atoms)]
    premises = _premises(draw, level, num_atoms)
    clauses = [clause for premise in premises for clause in premise_clauses(premise)]
    conclusion: Literal = (draw.below(num_atoms), draw.chance(0.5))
    if (conclusion[0], True) in [p.parts[0] for p in premises if p.kind == "fact"]:
        raise Unlucky
    contrary = (conclusion[0], not conclusion[1])
    for_it, against = find_world([*clauses, (conclusion,)], num_atoms), find_world([*clauses, (contrary,)], num_atoms)
    if for_it is None and against is None:
        raise Unlucky
    if for_it is not None and against is not None:
        steps = [_world(1, for_it, atoms, zh), _world(2, against, atoms, zh)]
        steps.append(
            "两种情形都满足全部前提，结论在其中一种为真、另一种为假。"
            if zh
            else "All premises hold in both worlds; the statement holds in one of them only."
        )
        answer = "C"
    else:
        assumed = contrary if against is None else conclusion
        proof = derive(premises, assumed, num_atoms)
        if proof is None or len(proof) < level:
            raise Unlucky
        head = ("假设：" if zh else "Suppose: ") + say_literal(assumed, atoms, zh)
        lines = [
            f"({k + 1}) -> {say_literal(fact, atoms, zh) if fact is not None else ('矛盾' if zh else 'contradiction')}"
            for k, fact in proof
        ]
        steps = [head, *lines, ("所以假设不成立。" if zh else "So the supposition is false.")]
        answer = "A" if against is None else "B"
    listed = "\n".join(f"({i + 1}) {say_premise(p, atoms, zh)}" for i, p in enumerate(premises))
    question = say(draw, zh, _ASK, _ASK_ZH, p=listed, c=say_literal(conclusion, atoms, zh), o=CHOICES[1 if zh else 0])
    return Draft(question, steps, answer, "choice")


def _premises(draw: Draw, level: int, num_atoms: int) -> list[Premise]:
    """A chain that starts from a fact, with other premises strewn in; shuffled."""
    order = draw.shuffled(range(num_atoms))
    signs = [draw.chance(0.6) for _ in order]
    literal: list[Literal] = list(zip(order, signs, strict=True))
    premises = [Premise("fact", (literal[0],))]
    for i in range(num_atoms - 1):
        here, there = literal[i], literal[i + 1]
        negated = (here[0], not here[1])
        kind = draw.below(4)
        if level >= 3 and i >= 1 and kind == 3:
            premises.append(Premise("both", (literal[i - 1], here, there)))
        elif kind == 0:
            premises.append(Premise("or", (negated, there)))
        elif kind == 1:
            premises.append(Premise("nand", (here, (there[0], not there[1]))))
        else:
            premises.append(Premise("if", (here, there)))
    if draw.chance(0.4):  # a missing link, or none
        premises.pop(draw.below(len(premises)))
    while len(premises) < level + 3:
        a, b = draw.sample(range(num_atoms), 2)
        premises.append(Premise(draw.pick(("if", "or")), ((a, draw.chance(0.5)), (b, draw.chance(0.5)))))
    return draw.shuffled(premises)


def _world(number: int, world: list[bool], atoms: list[str], zh: bool) -> str:
    values = "; ".join(f"{atom} = {int(value)}" for atom, value in zip(atoms, world, strict=True))
    return f"{'情形' if zh else 'World'} {number}: {values}"


_FORMS = {
    "all": ("All {a} are {b}.", "所有{a}都是{b}。"),
    "no": ("No {a} are {b}.", "没有{a}是{b}。"),
    "some": ("Some {a} are {b}.", "有的{a}是{b}。"),
    "some_not": ("Some {a} are not {b}.", "有的{a}不是{b}。"),
}
_JUDGE = (
    "{p}\nWhat about the statement: {c}\n{o}",
    "Premises:\n{p}\nConclusion to judge: {c}\n{o}",
    "It is given that\n{p}\nIs it so that: {c}\n{o}",
)
_JUDGE_ZH = ("{p}\n那么对于命题：{c}\n{o}", "前提：\n{p}\n判断结论：{c}\n{o}")


def syllogism(draw: Draw, level: int, zh: bool) -> Draft:
    """A chain of L + 1 categorical premises about made-up classes; the conclusion joins its two ends."""
    terms = draw.sample(NONSENSE_ZH if zh else NONSENSE, level + 2)

    def form(kind: str, a: str, b: str) -> str:
        return _FORMS[kind][1 if zh else 0].format(a=a, b=b)

    first = draw.pick(("all", "some", "no", "all"))
    last = draw.pick(("all", "no", "all", "some")) if level >= 2 else draw.pick(("all", "no", "some"))
    kinds = [first] + ["all"] * (level - 1) + [last]
    premises = [(kind, terms[i], terms[i + 1]) for i, kind in enumerate(kinds)]
    start, end = terms[0], terms[-1]
    followed = _followed(kinds)
    asked = draw.pick(("all", "no", "some", "some_not"))
    if followed and draw.chance(0.75):
        asked = draw.pick((followed, _CONTRARY[followed]))
    numbered = draw.shuffled(range(len(premises)))
    position = {original: place + 1 for place, original in enumerate(numbered)}
    listed = "\n".join(f"({place + 1}) {form(*premises[original])}" for place, original in enumerate(numbered))
    if followed in (asked, _CONTRARY[asked]) and followed:
        steps, reached = [], premises[0]
        for i in range(1, len(premises)):
            kind = _followed(kinds[: i + 1])
            assert kind is not None
            using = f"({position[0]}), ({position[1]})" if i == 1 else f"({position[i]})"
            reached = (kind, start, terms[i + 1])
            steps.append(f"{using} -> {form(*reached)}")
        answer = "A" if followed == asked else "B"
    else:
        worlds = _two_worlds(premises, terms, asked)
        if worlds is None:
            raise Unlucky
        steps = [
            f"{'情形' if zh else 'World'} {i + 1}: " + " | ".join("+".join(sorted(kind)) or "-" for kind in world)
            for i, world in enumerate(worlds)
        ]
        steps.append(
            "竖线之间是各个个体所属的类；两种情形都满足前提，结论只在其中一种成立。"
            if zh
            else "Between the bars stand the individuals by their classes. The premises hold in both worlds, the statement in one only."
        )
        answer = "C"
    question = say(draw, zh, _JUDGE, _JUDGE_ZH, p=listed, c=form(asked, start, end), o=CHOICES[1 if zh else 0])
    return Draft(question, steps, answer, "choice")


_CONTRARY = {"all": "some_not", "some_not": "all", "no": "some", "some": "no"}


def _followed(kinds: list[str]) -> str | None:
    """What a chain first-second, second-third, ... says of its ends, of everything that is not presupposed."""
    current = kinds[0]
    for kind in kinds[1:]:
        if kind == "all" and current in ("all", "some"):
            continue
        if kind == "no" and current == "all":
            current = "no"
        elif kind == "no" and current == "some":
            current = "some_not"
        else:
            return None
    return current


World = list[frozenset[str]]


def _holds(kind: str, a: str, b: str, world: World) -> bool:
    if kind in ("all", "some_not"):
        inside = all(b in individual for individual in world if a in individual)
        return inside if kind == "all" else not inside
    meet = any(a in individual and b in individual for individual in world)
    return meet if kind == "some" else not meet


def _two_worlds(premises: list[tuple[str, str, str]], terms: list[str], asked: str) -> tuple[World, World] | None:
    """A world in which the conclusion holds and one in which it does not, the premises being true in both.

    The largest world that the universal premises allow, with and without some kinds of individuals, is all there is
    to look at: existence claims hold in a larger world if they do in a smaller one.
    """
    allowed = [frozenset(t for i, t in enumerate(terms) if bits >> i & 1) for bits in range(1, 1 << len(terms))]
    for kind, a, b in premises:
        if kind == "all":
            allowed = [w for w in allowed if a not in w or b in w]
        elif kind == "no":
            allowed = [w for w in allowed if not (a in w and b in w)]
    start, end = terms[0], terms[-1]
    joint = [w for w in allowed if start in w and end in w]
    apart = [w for w in allowed if start in w and end not in w]
    if asked in ("some", "no"):
        with_it, without = allowed, [w for w in allowed if w not in joint]
    else:
        with_it, without = allowed, [w for w in allowed if w not in apart]
    found = []
    for wanted, world in ((True, with_it), (True, without), (False, with_it), (False, without)):
        if all(_holds(*p, world) for p in premises) and _holds(asked, start, end, world) is wanted:
            found.append((wanted, _thin(premises, (asked, start, end), wanted, world)))
    true = next((w for wanted, w in found if wanted), None)
    false = next((w for wanted, w in found if not wanted), None)
    return (true, false) if true is not None and false is not None else None


def _thin(premises: list[tuple[str, str, str]], asked: tuple[str, str, str], wanted: bool, world: World) -> World:
    """The world without individuals that it can do without; never quite empty."""
    for individual in list(world):
        rest = [w for w in world if w != individual]
        if rest and all(_holds(*p, rest) for p in premises) and _holds(*asked, rest) is wanted:
            world = rest
    return world


TEMPLATES: dict[str, tuple[int, Template]] = {"entailment": (1, entailment), "syllogism": (1, syllogism)}
