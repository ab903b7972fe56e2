"""`--sweep a=1 b=2`: an option that goes on."""

import pytest

from glmforge_ops.cli.launch.launch import spread


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run.yaml --sweep a=1,2", "run.yaml --sweep a=1,2"),
        ("run.yaml --sweep a=1,2 b=3 c=4", "run.yaml --sweep a=1,2 --sweep b=3 --sweep c=4"),
        ("--sweep a=1 b=2 run.yaml c=3", "--sweep a=1 --sweep b=2 run.yaml c=3"),
        ("run.yaml x=1 --sweep a=1 --nodes 2 y=2", "run.yaml x=1 --sweep a=1 --nodes 2 y=2"),
        ("run.yaml --sweep=a=1 b=2 --dry-run c=3", "run.yaml --sweep=a=1 --sweep b=2 --dry-run c=3"),
        ("--sweep a=1 --sweep b=2 c=3", "--sweep a=1 --sweep b=2 --sweep c=3"),
        ("--sweep a=1 -- b=2", "--sweep a=1 -- b=2"),
        ("--script t.py -- --sweep a=1 b=2", "--script t.py -- --sweep a=1 b=2"),
        ("--sweep", "--sweep"),
        ("", ""),
    ],
)
def test_the_option_is_written_again_before_each_value(words, meant):
    assert spread(words.split()) == meant.split()
