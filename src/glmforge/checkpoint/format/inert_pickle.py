"""Pickles as data: what one would import and call is named, and nothing is imported or called.

torch's checkpoint format keeps its metadata, and the header of every stored tensor, as pickles. A pickle is a program:
unpickling a file from outside runs code chosen by its author. A subclass of `pickle.Unpickler` that allows certain
classes only would keep code from running, but not a file of a hundred bytes from taking all memory (a memo entry with
a huge number) or from never ending (the hash of tuples that contain each other forty levels deep). So the
few instructions that these files consist of are carried out here, with four differences from the real machine:

* a class or function is a `Name` and stays one;
* calling it, making an object of it and giving that a state only notes what was to be called with what: `Made`;
* a dict is a list of pairs, so nothing is hashed or compared;
* the memo has no gaps, and nesting is bounded.

Time and memory are proportional to the length of the input. It takes about three times as long as Python's own machine
in C: some 50 us against 20 us for each stored part of a tensor, on one core of a busy machine.
"""

import struct
from collections.abc import Callable, Container
from typing import Any, NamedTuple

MAX_BYTES = 1 << 30
_MAX_OPEN_MARKS = 64


class InertPickleError(ValueError):
    """The bytes are no pickle of the kind that can be read as data."""


class Name(NamedTuple):
    """A class or function that the pickle names."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"


class Pairs(list[tuple[Any, Any]]):
    """A dict, as its pairs in the order in which they were put in."""

    def fields(self) -> dict[str, Any]:
        """As a dict, if all its keys are text and different."""
        if any(type(key) is not str for key, _ in self) or len(found := dict(self)) < len(self):
            raise InertPickleError("a state with keys that are not names")
        return found


class Made:
    """What was to be made: `maker` called with `args`, then given `state` (None if it has none) and, as a dict of
    another class is, `pairs`."""

    __slots__ = ("args", "maker", "pairs", "state")

    def __init__(self, maker: Name, args: tuple[Any, ...]) -> None:
        self.maker, self.args = maker, args
        self.state: Any = None
        self.pairs = Pairs()


class Persistent(NamedTuple):
    """What is kept outside the pickle, by its id."""

    id: Any


class AnyName(Container[Name]):
    """Allows every class and function: for files of other programs, whose settings are of classes of their own."""

    def __contains__(self, name: object) -> bool:
        return True


def parse(data: bytes, allowed: Container[Name]) -> Any:
    """The one object in `data`: None, bool, int, float, str, tuple, list, `Pairs`, `Name`, `Made` or `Persistent`.

    `allowed` are the classes and functions that it may name. Raises `InertPickleError`.
    """
    if len(data) > MAX_BYTES:
        raise InertPickleError(f"{len(data):,} bytes, at most {MAX_BYTES:,} are read")
    machine = _Machine(data, allowed)
    try:
        return machine.run()
    except (IndexError, KeyError, UnicodeDecodeError) as error:  # the stack, the memo or the input ends too early
        raise InertPickleError(f"it is damaged before byte {machine.position:,}") from error


class _Machine:
    def __init__(self, data: bytes, allowed: Container[Name]) -> None:
        self.data, self.position, self.allowed = data, 0, allowed
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def run(self) -> Any:
        data, operations = self.data, _OPERATIONS
        while True:
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                if len(self.stack) != 1 or self.position != len(data):
                    raise InertPickleError("it has data after its end")
                return self.stack[0]
            operation = operations.get(code)
            if operation is None:
                raise InertPickleError(f"instruction 0x{code:02x} at byte {self.position - 1:,} is not allowed")
            operation(self)

    def take(self, length: int) -> bytes:
        start = self.position
        self.position = start + length
        if self.position > len(self.data):
            raise InertPickleError("it is truncated")
        return self.data[start : self.position]

    def number(self, length: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(length), "little", signed=signed)

    def line(self) -> str:
        end = self.data.index(b"\n", self.position) if b"\n" in self.data[self.position : self.position + 256] else -1
        if end < 0:
            raise InertPickleError("a name is unterminated")
        return self.take(end + 1 - self.position)[:-1].decode()

    def push_name(self, module: str, attribute: str) -> None:
        name = Name(module, attribute)
        if name not in self.allowed:
            raise InertPickleError(f"it names {str(name)[:100]!r}, which does not belong to a tensor")
        self.stack.append(name)

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        if start > len(self.stack):
            raise InertPickleError("it is damaged")
        del self.stack[start:]
        return items


def _push(length: int, *, signed: bool = False) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        m.stack.append(m.number(length, signed=signed))

    return operation


def _push_constant(value: object) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _push_long(m: _Machine) -> None:
    length = m.number(1)
    if length > 64:
        raise InertPickleError("a number of more than 512 bits")
    number = m.number(length, signed=True)
    # Sizes and offsets are below 2 ** 64, with a byte for the sign; what is larger (a count of FLOPs) is not one.
    m.stack.append(number if length <= 9 else float(number))


def _push_text(bytes_of_length: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        m.stack.append(m.take(m.number(bytes_of_length)).decode())

    return operation


def _push_tuple(length: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        if len(m.stack) < length:
            raise InertPickleError("it is damaged")
        items = tuple(m.stack[-length:])
        del m.stack[-length:]
        m.stack.append(items)

    return operation


def _push_mark(m: _Machine) -> None:
    if len(m.marks) == _MAX_OPEN_MARKS:
        raise InertPickleError(f"more than {_MAX_OPEN_MARKS} levels")
    m.marks.append(len(m.stack))


def _global(m: _Machine) -> None:
    m.push_name(m.line(), m.line())


def _stack_global(m: _Machine) -> None:
    attribute, module = m.stack.pop(), m.stack.pop()
    if type(module) is not str or type(attribute) is not str:
        raise InertPickleError("a name that is not text")
    m.push_name(module, attribute)


def _make(m: _Machine) -> None:
    args, maker = m.stack.pop(), m.stack.pop()
    if type(maker) is not Name or type(args) is not tuple:
        raise InertPickleError("a call of something that is not a name")
    m.stack.append(Made(maker, args))


def _build(m: _Machine) -> None:
    state, made = m.stack.pop(), m.stack[-1]
    if type(made) is not Made or made.state is not None:
        raise InertPickleError("a state for an object without one")
    made.state = state


def _append(m: _Machine, items: list[Any]) -> None:
    if type(m.stack[-1]) is not list:
        raise InertPickleError("items for something that is not a list")
    m.stack[-1].extend(items)


def _set_items(m: _Machine, items: list[Any]) -> None:
    target = m.stack[-1].pairs if type(m.stack[-1]) is Made else m.stack[-1]
    if type(target) is not Pairs or len(items) % 2:
        raise InertPickleError("items for something that is not a dict")
    target.extend(zip(items[::2], items[1::2], strict=True))


def _memoize(m: _Machine) -> None:
    m.memo.append(m.stack[-1])


def _put(length: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        if m.number(length) != len(m.memo):
            raise InertPickleError("its memo has a gap")
        m.memo.append(m.stack[-1])

    return operation


def _get(length: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        m.stack.append(m.memo[m.number(length)])

    return operation


_STOP = ord(".")

_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: lambda m: _check_protocol(m.number(1)),
    0x95: lambda m: _check_frame(m.number(8), m),
    ord("("): _push_mark,
    ord("N"): _push_constant(None),
    0x88: _push_constant(True),
    0x89: _push_constant(False),
    ord("G"): lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    ord("J"): _push(4, signed=True),
    ord("K"): _push(1),
    ord("M"): _push(2),
    0x8A: _push_long,
    ord("X"): _push_text(4),
    0x8C: _push_text(1),
    ord(")"): _push_constant(()),
    0x85: _push_tuple(1),
    0x86: _push_tuple(2),
    0x87: _push_tuple(3),
    ord("t"): lambda m: m.stack.append(tuple(m.pop_mark())),
    ord("]"): lambda m: m.stack.append([]),
    ord("a"): lambda m: _append(m, [m.stack.pop()]),
    ord("e"): lambda m: _append(m, m.pop_mark()),
    ord("}"): lambda m: m.stack.append(Pairs()),
    ord("s"): lambda m: _set_items(m, [m.stack.pop(), m.stack.pop()][::-1]),
    ord("u"): lambda m: _set_items(m, m.pop_mark()),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _make,
    0x81: _make,
    ord("b"): _build,
    ord("Q"): lambda m: m.stack.append(Persistent(m.stack.pop())),
    0x94: _memoize,
    ord("q"): _put(1),
    ord("r"): _put(4),
    ord("h"): _get(1),
    ord("j"): _get(4),
}
"""By the codes of protocols 2 (torch's header of a tensor) to 5, as `pickletools` documents them."""


def _check_frame(length: int, machine: _Machine) -> None:
    """How the writer cut its output, which does not matter here."""
    if length > len(machine.data) - machine.position:
        raise InertPickleError("it is truncated")


def _check_protocol(protocol: int) -> None:
    if not 2 <= protocol <= 5:
        raise InertPickleError(f"protocol {protocol}")
