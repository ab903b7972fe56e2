"""Premises of propositional logic as clauses and as sentences, and proofs by unit propagation."""

from dataclasses import dataclass
from itertools import product

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
