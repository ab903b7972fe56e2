"""What a step does to weights and gradients: casts, accumulation, the norm and clipping, Muon and AdamW.

Each rank works on its shards, casts and gradients of whole matrices excepted, and orthogonalises its share of the
matrices of those who hold them with it: owners are chosen so that all have about the same to do
(`glmforge.optim.ownership`), so the mean is taken.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod

from glmforge.config.layout import Layout
from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import is_frozen, parameter_groups
from glmforge.config.parameters import Parameter, ParameterTable
from glmforge.plan.work.operations import BF16, FP32, Matmul, Operation, Work


def update_operations(
    used: list[Parameter],
    table: ParameterTable,
    optim: OptimConfig,
    layout: Layout,
    *,
    micro_batches: int,
    casts_per_step: int,
    with_ewc: bool,
) -> Iterator[Operation]:
    """For the parameters `used` by the rank's stages, of those in `table`.

    `casts_per_step`: how often each weight is made bf16; once would do, as it changes once a step. `with_ewc`: the run
    has `regularization.ewc`.
    """
    # The embedding is looked up and the router multiplies in fp32.
    in_bf16 = [row for row in used if row.trained and row.family != "embedding" and "mlp.gate." not in row.name]
    with_gradient = [row for row in in_bf16 if not is_frozen(row.name, optim)]
    cast, gradients = _elements(in_bf16, layout), sum(used_elements(row, layout) for row in with_gradient)
    yield Operation(
        "weight casts", "memory", Work((FP32 + BF16) * cast), times=1, in_model=False, repeats=casts_per_step
    )
    # bf16 to fp32 for every micro-batch; from the second on what is there is read as well.
    accumulated = (BF16 + FP32) * gradients * micro_batches + FP32 * _elements(with_gradient, layout) * (
        micro_batches - 1
    )
    yield Operation("gradient accumulation", "memory", Work(), Work(int(accumulated)), in_model=False)

    names = {row.name for row in used}
    groups = [group for group in parameter_groups(table, optim) if not group.is_frozen]
    trained = [(group.optimizer, [row for row in group.parameters if row.name in names]) for group in groups]
    num_trained = sum(_elements(rows, layout) for _, rows in trained)
    if with_ewc:
        # Weight, Fisher information, earlier weight and gradient read, gradient written.
        yield _update("elastic weight consolidation", 5 * FP32 * num_trained)
    if optim.grad_clip is not None:
        yield _update("gradient norm and clip", 3 * FP32 * num_trained)
    for declaration, rows in trained:
        state = declaration.bytes_per_element
        if declaration.name == "muon":
            # Gradient and momentum read, momentum and direction written; update and weight read, weight written.
            yield _update("Muon: momentum and weights", (3 * FP32 + 2 * BF16 + 2 * state) * _elements(rows, layout))
            yield from _newton_schulz(rows, layout, optim.newton_schulz_steps)
        else:
            name = {"adamw": "AdamW"}.get(declaration.name, declaration.name)
            yield _update(name, (3 * FP32 + 2 * state) * _elements(rows, layout))


def used_elements(row: Parameter, layout: Layout) -> int:
    """Of a parameter on a rank while a layer computes: gathered, but cut over tp and ep."""
    return row.size // (layout.tp if row.tp_dim is not None else 1) // (layout.ep if row.expert else 1)


def shard_elements(row: Parameter, layout: Layout) -> Fraction:
    """Of a parameter on a rank between steps, the mean over the ranks."""
    return Fraction(used_elements(row, layout), layout.efsdp if row.expert else layout.fsdp)


def _elements(rows: Iterable[Parameter], layout: Layout) -> int:
    return int(sum(shard_elements(row, layout) for row in rows))


def _update(name: str, num_bytes: int) -> Operation:
    return Operation(name, "memory", Work(num_bytes), in_model=False, is_update=True)


def _newton_schulz(rows: Iterable[Parameter], layout: Layout, num_steps: int) -> Iterator[Operation]:
    """One operation for each shape of matrices; `times` is the rank's share of them."""
    families: Counter[tuple[int, int, int]] = Counter()
    for row in rows:
        short, long = sorted((row.shape[-2] // row.num_fused, row.shape[-1]))
        ranks = layout.dp_replicate * (layout.efsdp * layout.ep if row.expert else layout.fsdp * layout.tp)
        families[short, long, ranks] += prod(row.shape[:-2]) * row.num_fused
    for (short, long, ranks), number in families.items():
        yield Operation(
            "Muon: Newton-Schulz",
            "matmul",
            _orthogonalise(number, short, long, num_steps),
            times=Fraction(1, ranks),
            in_model=False,
            is_update=True,
        )


def _orthogonalise(number: int, short: int, long: int, num_steps: int) -> Work:
    """Gram matrix, its polynomial, and their product with the matrices; before all that, the matrices' norms."""
    gram = Matmul(number * short, short, long, number, is_symmetric=True)
    square = Matmul(number * short, short, short, number, is_symmetric=True)
    product = Matmul(number * short, long, short, number)
    matrix, small = short * long, short * short
    num_bytes = BF16 * number * (num_steps * (3 * matrix + 4 * small) + 3 * matrix)
    return Work(num_bytes, (gram, square, product) * num_steps)
