"""Tables of parameters for tests that make their own shapes."""

from collections.abc import Mapping

from glmforge.config.parameters import COMPLETE, EMBEDDING, HEAD, Family, Initial, Parameter, ParameterTable, Shape


def table_of(shapes: Mapping[str, Shape]) -> ParameterTable:
    """Rows for published names with shapes of one's own."""
    return ParameterTable(_row(name, shape) for name, shape in shapes.items())


def _row(name: str, shape: Shape) -> Parameter:
    others: dict[str, Family] = {EMBEDDING: "embedding", HEAD: "head"}
    family = others.get(name, "matrix" if len(shape) > 1 else "vector")
    fused = 2 if name.endswith("gate_up_proj") else 1
    initial: Initial = "ones" if family == "vector" else "normal"
    return Parameter(
        name=name, shape=shape, family=family, initial=initial, tp_dim=None, partial=COMPLETE, num_fused=fused
    )
