"""Is the model the one that the table of parameters declares? Asked when it is built, before it has any memory.

A parameter without a row would be initialised, summed, trained and stored without a declaration, and a row that does
not fit its parameter tells readers of the table what is not so. Either ends the build with the name of the parameter.
"""

from collections.abc import Iterator

from glmforge.config.parameters import Parameter, ParameterTable
from glmforge.errors import GlmforgeError
from glmforge.model.transformer import GlmMoe


class WrongRowError(GlmforgeError):
    """A row of the table of parameters that is not what the model has."""


def check_declared(model: GlmMoe, table: ParameterTable) -> None:
    """Compare a section, not cut yet, with its rows.

    Raises `UndeclaredParameterError` for a parameter or buffer without a row, `WrongRowError` for a row that nothing
    in the section answers to, or something of another shape or kind.
    """
    parameters = dict(model.named_parameters())
    tensors = parameters | dict(model.named_buffers())
    for name, tensor in tensors.items():
        row = table[name]
        _check(row, "shape", row.shape, tuple(tensor.shape))
        _check(row, "trained", row.trained, name in parameters)
    if missing := [row.name for row in _rows_of(model, table) if row.name not in tensors]:
        raise WrongRowError(f"{missing[0]}: declared, but the model has no such parameter; remove its row")


def _check(row: Parameter, what: str, declared: object, actual: object) -> None:
    if declared != actual:
        raise WrongRowError(
            f"{row.name}: is declared with {what} {declared}, but the model has {actual}; correct the row where the "
            "parameter is declared (glmforge/config/parameters.py, or what extends the table)"
        )


def _rows_of(model: GlmMoe, table: ParameterTable) -> Iterator[Parameter]:
    """The rows of the section's layers and, outside the layers, the embedding's in the first and others in the last."""
    section, num_layers = model.section, model.config.num_hidden_layers
    for row in table.values():
        if row.layer is None:
            held = section.first if row.of_embedding else section.last
        else:
            held = section.last if row.layer >= num_layers else section.start <= row.layer < section.stop
        if held:
            yield row
