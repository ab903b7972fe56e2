"""Options that stand for values of modules that the command line does not import at its start."""

from typing import get_args

from glmforge.cli.data.needles import Format, Task, Values
from glmforge.config.needles import NeedleTask, NeedleValues
from glmforge.data.needles.write import NeedleFormat


def test_the_options_are_all_that_there_are() -> None:
    assert [each.value for each in Format] == [each.value for each in NeedleFormat]
    assert [each.value for each in Task] == list(get_args(NeedleTask))
    assert [each.value for each in Values] == list(get_args(NeedleValues))
