"""Chat templates, and conversations for ours: rendered in bounded time, memory and length, or refused."""

import json
from pathlib import Path

from fuzz.format import Format
from fuzz.mutate import byte_mutator
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.data.chat_template.template import CHAT_TEMPLATE, render
from glmforge.errors import DataError
from glmforge.files import read_json, read_text

_CONVERSATION = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it like there?"}]},
        {
            "role": "assistant",
            "reasoning_content": "I ask.",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Oslo", "days": [1, 2]}'}}],
        },
        {"role": "tool", "content": "snow"},
        {"role": "assistant", "content": "<think>snow</think>It snows."},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
}


def write(directory: Path) -> None:
    (directory / "template.jinja").write_text(CHAT_TEMPLATE)
    (directory / "conversation.json").write_text(json.dumps(_CONVERSATION))


def read(directory: Path) -> int:
    template = read_text(directory / "template.jinja", error=DataError)
    conversation = read_json(directory / "conversation.json", dict, error=DataError)
    messages, tools = conversation.get("messages"), conversation.get("tools")
    return len(render(messages, tools, add_generation_prompt=True, template=template))  # type: ignore[arg-type]


_TOKENS = tuple(
    token.encode()
    for token in (
        *(
            "{{ 'a' * 10**10 }}",
            "{{ 9**9**9 }}",
            "{{ range(10**9)|list }}",
            "{% for i in range(9999) %}",
            "{% endfor %}",
        ),
        *("{{ messages * 10**9 }}", "{{ loop }}", "{{ ''.__class__.__mro__ }}", "{{ self }}", "{% include 'x' %}"),
        *("{%- set x = x ~ x -%}", "{{ messages|tojson(indent=10**9) }}", "{% macro f() %}{{ f() }}{% endmacro %}"),
        *(
            "{{",
            "}}",
            "{%",
            "%}",
            "{#",
            "#}",
            "|",
            "~",
            "[",
            "]",
            "(",
            ")",
            "-%}",
            "{% if",
            "{% set",
            "in",
            "not",
            "is",
        ),
        *(
            *("messages", "message", "content", "0", "1e999", "'", '"', "*", "**", "%", "[::-1]"),
            *("loop.index0", ".items()"),
        ),
        *("|list", "|map('upper')", "|replace('', 'aaaaaaaa')", "{% break %}", "{{ raise_exception('x\ny') }}"),
    )
)

_DEEP = (
    "{% set ns = namespace(x=[], y=[], t=()) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
)
_DOUBLE = "{% set ns = namespace(x='aaaaaaaaaa') %}"
_BOMBS = {
    "product": "{{ 'a' * 10**10 }}",
    "product_the_other_way": "{{ 10**10 * 'a' }}",
    "product_of_a_list": "{{ ([0] * 10**10)|length }}",
    "power": "{{ 10**10**10 }}",
    "powers": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "nested_loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "loops_that_write": "{% for a in range(9999) %}{% for b in range(9999) %}aaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
    "long_range": "{{ range(10**12)|list|length }}",
    "ranges_in_a_filter": "{% for a in range(9999) if range(9999)|list|length < 0 %}{% endfor %}",
    "doubling": _DOUBLE + "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling_by_plus": _DOUBLE + "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling_by_a_block": _DOUBLE
    + "{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling_by_join": _DOUBLE + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling_by_join_method": _DOUBLE + "{% for i in range(60) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "growth_by_replace": _DOUBLE + "{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "growth_by_replace_filter": _DOUBLE
    + "{% for i in range(60) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
    "doubling_references": _DOUBLE + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "comparing_references": _DEEP + "{{ ns.x == ns.y }}",
    "searching_references": _DEEP + "{{ ns.x in [ns.y] }}{{ ns.x is eq ns.y }}",
    "hashing_references": _DEEP + "{{ {ns.t: 1} }}",
    "looking_up_references": _DEEP + "{{ messages[0][ns.t] }}{{ messages[0].get(ns.t) }}",
    "references_as_json": _DEEP + "{{ ns.x|tojson }}",
    "references_as_text": _DEEP + "{{ (ns.x|string)|length }}{{ raise_exception(ns.x) }}",
    "slices": "{% set x = 'a' * 9000000 %}{% for i in range(9999) %}{% set y = x[1:] %}{% endfor %}",
    "searches": "{% set x = 'a' * 9000000 %}{% for i in range(9999) %}{% set y = 'b' in x %}{% endfor %}",
    "strips": "{% set x = 'a' * 9000000 %}{% for i in range(9999) %}{% set y = x.strip('b') %}{% endfor %}",
    "splits": "{% set x = 'a ' * 9000000 %}{{ x.split()|length }}",
    "recursive_macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubly_recursive_macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive_loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "format_width": "{{ '%1000000000d' % 1 }}{{ '{:>1000000000}'.format(1) }}{{ '%1000000000d'|format(1) }}",
    "padding": "{{ 'a'.ljust(10**10) }}{{ 'a'|center(10**10) }}{{ 'a'.zfill(10**10) }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(10**7)|length }}",
    "indent": "{{ messages|tojson(indent=10**9) }}",
    "indent_filter": "{{ 'a\nb'|indent(10**10) }}",
    "lorem_ipsum": "{{ lipsum(n=10**9) }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals_of_a_function": "{{ raise_exception.__globals__ }}{{ namespace.__init__.__globals__ }}",
    "globals_by_a_filter": "{{ raise_exception|attr('__globals__') }}{{ messages|map(attribute='__class__')|list }}",
    "counter_switched_off": "{% set step = 0 %}{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% endfor %}{% endfor %}",
    "deep_expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep_lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "deep_blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "deep_loops": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "many_nots": "{{ " + "not " * 20000 + "1 }}",
    "long_sum": "{{ " + "1+" * 20000 + "1 }}",
    "long_number": "{{ " + "9" * 100_000 + " }}",
    "long_comment": "{#" + "-" * 250_000,
    "many_tags": "{{ 1 }}" * 30_000,
    "complaint_of_many_lines": "{{ raise_exception('a\nb' * 1000) }}",
    "include": "{% include '/etc/passwd' %}",
    "modulo_of_nothing": "{{ 1 % 0 }}{{ 1 // 0 }}",
}


FORMAT = Format(
    name="chat_templates",
    write=write,
    read=read,
    mutators={"*.jinja": byte_mutator(_TOKENS), "*.json": json_mutator()},
    bombs={
        name: lambda directory, text=text: (directory / "template.jinja").write_text(text)
        for name, text in _BOMBS.items()
    },  # type: ignore[misc]
    events=frozenset({"exec", "compile"}),  # Jinja compiles a template to Python code
)


def test_mutations_and_bombs() -> None:
    check(__name__)
