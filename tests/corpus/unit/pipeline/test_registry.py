"""Every name of a pipeline file leads to a class of that name."""

import pytest

from glmforge_corpus.pipeline.registry import BLOCKS, STAGES, block_class, stage_class


@pytest.mark.parametrize("kind", STAGES)
def test_stages(kind):
    assert stage_class(kind).kind == kind


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks(kind):
    assert block_class(kind).kind == kind
