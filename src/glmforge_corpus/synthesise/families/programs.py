"""What a small program returns: described steps on lists and strings, and Python code with loops.

Level L: L + 1 described operations; code with one loop (1, 2), a condition (from 2), two variables (from 3), a
nested loop or a while loop (from 4), a helper function (5). Solutions trace the state after each operation or pass.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from collections.abc import Callable

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.families import code
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky, say

ListOperation = tuple[str, str, bool, Callable[[list[int], int], list[int]]]
# English, Chinese, takes a number?, what it does
LIST_OPERATIONS: tuple[ListOperation, ...] = (
    ("Reverse the list.", "把列表反转。", False, lambda v, k: v[::-1]),
    ("Sort the list in ascending order.", "把列表按升序排序。", False, lambda v, k: sorted(v)),
    ("Sort the list in descending order.", "把列表按降序排序。", False, lambda v, k: sorted(v, reverse=True)),
    ("Keep only the even numbers.", "只保留偶数。", False, lambda v, k: [x for x in v if x % 2 == 0]),
    ("Keep only the odd numbers.", "只保留奇数。", False, lambda v, k: [x for x in v if x % 2]),
    ("Remove all but the first occurrence of each value.", "每个值只保留第一次出现的。", False, lambda v, k: list(dict.fromkeys(v))),
    ("Replace each number by its square.", "把每个数换成它的平方。", False, lambda v, k: [x * x for x in v]),
    ("Replace each number by the sum of it and all before it.", "把每个数换成它与前面所有数的和。", False, lambda v, k: _running(v)),
    ("Swap the first and the last number.", "交换第一个和最后一个数。", False, lambda v, k: [v[-1], *v[1:-1], v[0]] if len(v) > 1 else v),
    ("Add {k} to each number.", "给每个数加上{k}。", True, lambda v, k: [x + k for x in v]),
    ("Multiply each number by {k}.", "把每个数乘以{k}。", True, lambda v, k: [x * k for x in v]),
    ("Remove the numbers greater than {k}.", "删去大于{k}的数。", True, lambda v, k: [x for x in v if x <= k]),
    ("Remove the numbers divisible by {k}.", "删去能被{k}整除的数。", True, lambda v, k: [x for x in v if x % k]),
    ("Move the first {k} numbers to the end.", "把前{k}个数移到末尾。", True, lambda v, k: v[k % len(v) :] + v[: k % len(v)] if v else v),
    ("Append the number {k} at the end.", "在末尾添加数{k}。", True, lambda v, k: [*v, k]),
    ("Replace each number by its remainder modulo {k}.", "把每个数换成它除以{k}的余数。", True, lambda v, k: [x % k for x in v]),
)  # fmt: skip


def _running(values: list[int]) -> list[int]:
    total, out = 0, []
    for value in values:
        total += value
        out.append(total)
    return out


_START = ("Start with the list {v} and do the following in this order:\n{s}\n{q}", "The list {v} goes through these steps, one after the other:\n{s}\n{q}",
          "Let a list hold {v}. Apply to it:\n{s}\n{q}")  # fmt: skip
_START_ZH = ("从列表 {v} 开始，依次执行：\n{s}\n{q}", "对列表 {v} 依次进行下列操作：\n{s}\n{q}")
_LIST_END = (("What is the list then?", "最后的列表是什么？"), ("What is the sum of the final list?", "最后列表中各数之和是多少？"),
             ("What is the largest number in the final list?", "最后列表中最大的数是多少？"), ("How many numbers does the final list have?", "最后列表中有多少个数？"))  # fmt: skip


def list_steps(draw: Draw, level: int, zh: bool) -> Draft:
    """L + 1 operations on a list of L + 3 numbers."""
    values = [draw.integer(1, 9 + 6 * level) for _ in range(level + 3)]
    start, lines, steps = values, [], []
    for i in range(level + 1):
        english, chinese, takes, apply = draw.pick(LIST_OPERATIONS)
        k = draw.integer(2, 9) if takes else 0
        changed = apply(values, k)
        if not changed or max(map(abs, changed)) > 5000:
            raise Unlucky
        values = changed
        lines.append(f"{i + 1}. " + (chinese if zh else english).format(k=k))
        steps.append(f"{i + 1}. {values}")
    which = draw.below(len(_LIST_END))
    question = say(draw, zh, _START, _START_ZH, v=start, s="\n".join(lines), q=_LIST_END[which][1 if zh else 0])
    answer = (str(values), str(sum(values)), str(max(values)), str(len(values)))[which]
    return Draft(question, steps, answer, "number" if which else "list")


StringOperation = tuple[str, str, int, Callable[[str, int, str, str], str]]
# English, Chinese, 0 nothing / 1 number / 2 letters, what it does
STRING_OPERATIONS: tuple[StringOperation, ...] = (
    ("Reverse the string.", "把字符串反转。", 0, lambda s, k, a, b: s[::-1]),
    ("Remove all vowels (a, e, i, o, u).", "删去所有元音字母（a, e, i, o, u）。", 0, lambda s, k, a, b: "".join(c for c in s if c not in "aeiou")),
    ("Sort its letters alphabetically.", "把字母按字母表顺序排序。", 0, lambda s, k, a, b: "".join(sorted(s))),
    ("Keep every second letter, starting with the first.", "从第一个字母起，每隔一个保留一个字母。", 0, lambda s, k, a, b: s[::2]),
    ("Double each letter.", "把每个字母重复一次（aab 变成 aaaabb）。", 0, lambda s, k, a, b: "".join(c + c for c in s)),
    ("Remove all but the first occurrence of each letter.", "每个字母只保留第一次出现的。", 0, lambda s, k, a, b: "".join(dict.fromkeys(s))),
    ("Swap its first and second half (a middle letter stays).", "交换前半和后半（正中的字母不动）。", 0, lambda s, k, a, b: s[(len(s) + 1) // 2 :] + s[len(s) // 2 : (len(s) + 1) // 2] + s[: len(s) // 2]),
    ("Move the first {k} letters to the end.", "把前{k}个字母移到末尾。", 1, lambda s, k, a, b: s[k % len(s) :] + s[: k % len(s)] if s else s),
    ("Shift each letter {k} places forward in the alphabet, z being followed by a.", "把每个字母在字母表中后移{k}位，z之后是a。", 1, lambda s, k, a, b: "".join(chr((ord(c) - 97 + k) % 26 + 97) for c in s)),
    ("Remove the first {k} letters.", "删去前{k}个字母。", 1, lambda s, k, a, b: s[k:]),
    ("Replace each letter '{a}' by '{b}'.", "把每个字母 '{a}' 换成 '{b}'。", 2, lambda s, k, a, b: s.replace(a, b)),
    ("Append '{a}{b}' at the end.", "在末尾添加 '{a}{b}'。", 2, lambda s, k, a, b: s + a + b),
    ("Remove each letter '{a}'; append '{b}'.", "删去每个字母 '{a}'，再在末尾添加 '{b}'。", 2, lambda s, k, a, b: s.replace(a, "") + b),
)  # fmt: skip
_STRING = (
    'Start with the string "{v}" and do the following in this order:\n{s}\n{q}',
    'The string "{v}" goes through these steps, one after the other:\n{s}\n{q}',
)
_STRING_ZH = ('从字符串 "{v}" 开始，依次执行：\n{s}\n{q}',)
_STRING_END = (
    ("What is the string then?", "最后的字符串是什么？"),
    ("How many letters does the result have?", "结果有多少个字母？"),
)
_SYLLABLES = (
    "ba", "ce", "di", "fo", "gu", "ha", "ki", "lo", "mu", "ne", "pa", "ri", "so", "tu", "ve", "wa", "za", "an", "el",
    "is", "or", "st", "tr",
)  # fmt: skip


def string_steps(draw: Draw, level: int, zh: bool) -> Draft:
    """L + 1 operations on a word of two to four syllables."""
    text = "".join(draw.pick(_SYLLABLES) for _ in range(2 + (level + 2) // 2))
    start, lines, steps = text, [], []
    for i in range(level + 1):
        english, chinese, takes, apply = draw.pick(STRING_OPERATIONS)
        k, a, b = (
            draw.integer(1, 3 if "Remove" in english else 5),
            draw.pick(text),
            draw.pick("abcdefghijklmnopqrstuvwxyz"),
        )
        if takes == 2 and a == b:
            raise Unlucky
        text = apply(text, k, a, b)
        if not 0 < len(text) <= 40:
            raise Unlucky
        lines.append(f"{i + 1}. " + (chinese if zh else english).format(k=k, a=a, b=b))
        steps.append(f"{i + 1}. {text}")
    which = int(draw.chance(0.2))
    question = say(draw, zh, _STRING, _STRING_ZH, v=start, s="\n".join(lines), q=_STRING_END[which][1 if zh else 0])
    return Draft(question, steps, (text, str(len(text)))[which], "number" if which else "text")


_CODE = ("What does this program print?\n```python\n{c}\n```", "Give the output of the following Python code.\n```python\n{c}\n```",
         "Trace the program and state what it prints.\n```python\n{c}\n```")  # fmt: skip
_CODE_ZH = ("下面的程序输出什么？\n```python\n{c}\n```", "写出这段 Python 代码的输出。\n```python\n{c}\n```")


def python_code(draw: Draw, level: int, zh: bool) -> Draft:
    """A program in a subset of Python, drawn statement by statement."""
    program, trace, printed = code.draw_program(draw, level)
    question = say(draw, zh, _CODE, _CODE_ZH, c=program)
    head = "每轮循环结束时：" if zh else "At the end of each pass:"
    return Draft(question, [head, *trace], printed, "list" if printed.startswith("[") else "text")


TEMPLATES: dict[str, tuple[int, Template]] = {
    "list_steps": (1, list_steps),
    "string_steps": (1, string_steps),
    "python_code": (1, python_code),
}
