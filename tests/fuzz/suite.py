"""What every `test_<format>.py` asserts, so that a format is a description and one line."""

from fuzz.run import format_modules, load_format, run_cases, share

CASES_IN_MAKE_TEST = 500  # of all formats together
SEED = 0


def check(module: str, first: int = 0) -> None:
    """The bombs of a format and its share of the cases: none fails.

    `module` is the test file's `__name__`, however the test runner calls it.
    """
    module = f"fuzz.{module.rpartition('.')[2]}"
    modules = format_modules()
    numbers = range(first, first + share(CASES_IN_MAKE_TEST, len(modules), modules.index(module)))
    tally = run_cases(module, [*load_format(module).bombs, *map(str, numbers)], seed=SEED)
    form = module.removeprefix("fuzz.test_")
    replay = f"PYTHONPATH=tests .venv/bin/python -m fuzz {form} --case"
    assert not tally.failures, "\n".join(f"{failure}\n    {replay} {failure.case}" for failure in tally.failures[:20])
    assert tally.outcomes["refused"] > 0
