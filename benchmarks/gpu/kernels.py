"""Part `kernels`: every implementation of every kernel in `cases/`, first its values and gradients, then its time.

Values and gradients are compared with the plain reference in fp32 on the same inputs. The implementations of a size are
timed one after another and the first one once more at the end: what differs between its two times is noise.
`fastest` in the file is what a choice called "auto" may be based on.
"""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gpu import cases as case_files
from gpu.bench import Bench
from gpu.case import Case, Inputs, Outputs, Setup, relative_error
from gpu.results import Figure, not_installed
from gpu.timing import measure, num_sets


def run(bench: Bench) -> None:
    setup = Setup.of(bench.device, dry=bench.dry)
    for case in all_cases(bench, setup):
        torch._dynamo.reset()  # else what other sizes compiled counts against the number of forms of a function
        for name in case.timed:
            label = f"{case.name} | {case.size} | {name}"
            bench.figure(label, partial(measured, bench, case, name, setup), expected_s=8)
        first = case.timed[0]
        again = f"{case.name} | {case.size} | {first}, again"
        bench.figure(again, partial(measured, bench, case, first, setup, check=False), expected_s=4)
    bench.results.content["fastest"] = fastest(bench.results.figures)
    bench.results.write()


def all_cases(bench: Bench, setup: Setup) -> Iterator[Case]:
    """Those of all files, by the files' `ORDER`; a file that cannot be used is a figure that says why."""
    modules: list[ModuleType] = []
    for info in pkgutil.iter_modules(case_files.__path__):
        try:
            modules.append(importlib.import_module(f"gpu.cases.{info.name}"))
        except ModuleNotFoundError as error:
            bench.results.set(f"{info.name} (file)", status="missing", reason=not_installed(error.name))
    for module in sorted(modules, key=lambda module: getattr(module, "ORDER", 50)):
        yield from module.cases(setup)


def measured(bench: Bench, case: Case, name: str, setup: Setup, *, check: bool = True) -> Figure:
    function = case.implementations[name]
    result: Figure = {"kernel": case.name, "size": case.size, "implementation": name}
    if check:
        result["errors"] = compare(case, name, setup)
        tolerance = case.inexact.get(name, case.tolerance)
        # `not <=`, so that what is not a number fails as well.
        wrong = {what: error for what, error in result["errors"].items() if not error <= tolerance}
        if wrong:
            raise ValueError(f"wrong values: off by {wrong} of the reference's norm, allowed are {tolerance:g}")
    inputs = _input_sets(bench, case, setup)
    with torch.no_grad():
        forward = measure(function, inputs, dry=bench.dry)
    result["forward"] = forward.as_json() | bench.timed(forward.median, case.flops, case.bytes)
    if case.has_backward:
        both = measure(_Step(case, function, inputs[0]), inputs, dry=bench.dry)
        backward_flops = 2 * case.flops if case.backward_flops is None else case.backward_flops
        backward_bytes = 2 * case.bytes if case.backward_bytes is None else case.backward_bytes
        work = case.flops + backward_flops, case.bytes + backward_bytes
        result["forward_and_backward"] = both.as_json() | bench.timed(both.median, *work)
    return result


class _Step:
    """Forward and backward, with gradients of the outputs that were made beforehand (contiguous, as kernels ask)."""

    def __init__(self, case: Case, function: Any, inputs: tuple[Any, ...]) -> None:
        self.case, self.function = case, function
        case.differentiable(inputs)
        self.gradients = [torch.randn_like(output) for output in _tensors(function(*inputs)) if output.requires_grad]

    def __call__(self, *inputs: Any) -> list[Tensor]:
        wanted = self.case.differentiable(inputs)
        outputs = [output for output in _tensors(self.function(*inputs)) if output.requires_grad]
        return list(torch.autograd.grad(outputs, wanted, self.gradients, allow_unused=True))


def compare(case: Case, name: str, setup: Setup) -> dict[str, float]:
    """Relative errors of outputs and gradients by what they are of."""
    inputs = (case.check or case.make)(_inputs(setup, seed=99))
    exact = tuple(_exact(x) for x in inputs)
    expected, expected_gradients = _values(case, case.implementations[case.reference], exact, None)
    actual, actual_gradients = _values(case, case.implementations[name], inputs, expected)
    errors = {f"output {i}": relative_error(a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True))}
    for i, (a, e) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        if e is not None:
            errors[f"gradient {i}"] = relative_error(a, e) if a is not None else float("inf")
    return {what: round(error, 8) for what, error in errors.items()}


def _values(
    case: Case, function: Any, inputs: tuple[Any, ...], reference: list[Tensor] | None
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs and gradients under upstream gradients that depend on the shapes alone."""
    wanted = case.differentiable(inputs)
    outputs = _tensors(function(*inputs))
    if not wanted:
        return outputs, []
    generator = torch.Generator(outputs[0].device).manual_seed(7)
    upstream = [torch.randn(o.shape, generator=generator, device=o.device) for o in outputs]
    pairs = [(o, u.to(o.dtype)) for o, u in zip(outputs, upstream, strict=True) if o.requires_grad]
    gradients = torch.autograd.grad([o for o, _ in pairs], wanted, [u for _, u in pairs], allow_unused=True)
    return [output.detach() for output in outputs], list(gradients)


def _tensors(outputs: Outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def _exact(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)).clone()


def _inputs(setup: Setup, seed: int) -> Inputs:
    return Inputs(torch.Generator(setup.device).manual_seed(seed), setup.dtype)


def _input_sets(bench: Bench, case: Case, setup: Setup) -> list[tuple[Any, ...]]:
    first = case.make(_inputs(setup, 0))
    num_bytes = sum(x.nbytes for x in first if isinstance(x, Tensor))
    return [first] + [case.make(_inputs(setup, i)) for i in range(1, num_sets(num_bytes, bench.l2_bytes))]


def fastest(figures: dict[str, Figure]) -> dict[str, dict[str, Any]]:
    """By kernel and size: the fastest implementation, how many times as fast as the first one it is, and by how much
    two measurements of the first one differ."""
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in figures.values():
        if figure["status"] == "ok" and "forward" in figure:
            timed = figure.get("forward_and_backward", figure["forward"])
            groups[f"{figure['kernel']} | {figure['size']}"][figure["implementation"]].append(timed["seconds"])
    found = {}
    for group, seconds in groups.items():
        best = min(seconds, key=lambda name: min(seconds[name]))
        reference = next(iter(seconds.values()))
        found[group] = {
            "implementation": best,
            "times_as_fast": round(min(reference) / min(seconds[best]), 3),
            "noise": round(max(reference) / min(reference) - 1, 4),
        }
    return found
