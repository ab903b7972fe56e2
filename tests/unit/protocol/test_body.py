"""What all bodies have in common: null is missing, unknown fields are ignored, what is wrong is named by its path."""

from typing import Annotated, Any

import pytest
from pydantic import FailFast, Field

from glmforge.protocol.body import Body, Count, OneOf, Share, Strings, TextPart, joined, refuse, refusing, text_or
from glmforge.protocol.request import ApiError


class Circle(Body):
    radius: Share = 1.0


class Square(Body):
    side: Count
    names: Strings = Field(default_factory=list)


class Drawing(Body):
    shapes: Annotated[list[Annotated[Any, OneOf("kind", "circle", circle=Circle, square=Square)]], FailFast()] = Field(
        default_factory=list
    )
    title: Annotated[str, joined(TextPart, "+")] = "none"
    note: Annotated[Any, text_or(Square)] = ""
    ink: Annotated[Any, refuse("use title", False)] = None


@refusing()
def read(**body: Any) -> Drawing:
    return Drawing.model_validate(body)


def test_what_is_read() -> None:
    assert read(shapes=None, title=None, unheard_of=1) == Drawing()
    found = read(
        shapes=[{}, {"kind": None, "radius": None}, {"kind": "square", "side": 2.0, "names": "a", "radius": []}]
    )
    assert found.shapes == [Circle(), Circle(), Square(side=2, names=["a"])]
    assert read(title=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).title == "a+b"
    assert read(note=[{"side": 1}]).note == [Square(side=1)]
    assert read(ink=False).ink is False


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"shapes": {}}, "shapes", "valid list"), ({"shapes": [{}, 5]}, "shapes[1]", "expected an object, not 5"),
        ({"shapes": [{"kind": "line"}]}, "shapes[0].kind", "'line' is not supported; choose one of circle, square"),
        ({"shapes": [{"kind": ["square"]}]}, "shapes[0].kind", "is not supported"),
        ({"shapes": [{"kind": "square"}]}, "shapes[0].side", "is required"),
        ({"shapes": [{"kind": "square", "side": None}]}, "shapes[0].side", "is required"),
        ({"shapes": [{"kind": "square", "side": True}]}, "shapes[0].side", "valid integer, not True"),
        ({"shapes": [{"kind": "square", "side": 2.5}]}, "shapes[0].side", "valid integer, not 2.5"),
        ({"shapes": [{"kind": "square", "side": 1, "names": ["a", 5]}]}, "shapes[0].names[1]", "valid string, not 5"),
        ({"shapes": [{"radius": 2}]}, "shapes[0].radius", "less than or equal to 1, not 2"),
        ({"shapes": [{"radius": True}]}, "shapes[0].radius", "valid number"),
        ({"title": 5}, "title", "valid string"), ({"title": [{"type": "image"}]}, "title[0].type", "should be 'text'"),
        ({"title": [{"text": "a"}]}, "title[0].type", "is required"),
        ({"note": [{}]}, "note[0].side", "is required"), ({"ink": 0}, "ink", "is not supported: use title"),
    ],
)  # fmt: skip
def test_what_is_refused(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert str(caught.value).startswith(f"{param}: ")
    assert words in str(caught.value)


def test_a_list_is_read_up_to_what_is_wrong() -> None:
    """What is told of one bad item must not cost what a million of them would."""
    with pytest.raises(ValueError, match=r"^1 validation error"):
        Drawing.model_validate({"shapes": [5] * 1000})
