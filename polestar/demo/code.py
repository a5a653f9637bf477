"""Small Python functions with a worked example.

Contract: a text is right when the code between the first `def` and the first blank line runs in a restricted interpreter (arithmetic, comparisons,
if, for over a given list or a range; no imports, no attributes but `append`), gives the right values on test inputs, and the example after
it holds. Names of function and variables are free but must agree across the text.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polestar.demo.problem import Problem
from polestar.demo.words import manner, pick

ALLOWED = (
    ast.Module,
    ast.FunctionDef,
    ast.arguments,
    ast.arg,
    ast.Return,
    ast.Assign,
    ast.AugAssign,
    ast.If,
    ast.IfExp,
    ast.For,
    ast.Expr,
    ast.Name,
    ast.Load,
    ast.Store,
    ast.Constant,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Compare,
    ast.Gt,
    ast.Lt,
    ast.GtE,
    ast.LtE,
    ast.Eq,
    ast.Call,
    ast.List,
    ast.ListComp,
    ast.comprehension,
    ast.Attribute,
)
BUILTINS = {"sum": sum, "len": len, "max": max, "min": min, "range": range}
FUNCTIONS = ["work", "change", "solve", "compute", "apply", "answer"]
SCALARS = ["x", "n", "value", "number"]
LOCALS = ["y", "result", "total", "out"]
LISTS = ["items", "values", "numbers", "data"]
EACH = ["item", "v", "k", "each"]


def compile_function(source: str) -> Callable[..., Any]:
    """The one function that `source` defines. Raises ValueError when it is not plain enough to be run safely, SyntaxError when it is not Python."""
    tree = ast.parse(source)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise ValueError("not exactly one function")
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise ValueError(f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.Attribute) and node.attr != "append":
            raise ValueError("only .append is allowed")
        if isinstance(node, ast.For) and not (
            isinstance(node.iter, ast.Name) or (isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "range")
        ):
            raise ValueError("a loop over something else than a name or a range")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in BUILTINS:
            raise ValueError(f"{node.func.id}() is not allowed")
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            raise ValueError("private name")
        # A list must not grow while it is looped over.
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
            grown = [c for c in ast.walk(node) if isinstance(c, ast.Attribute) and getattr(c.value, "id", "") == node.iter.id]
            if grown:
                raise ValueError("the loop changes its list")
    space: dict[str, Any] = {"__builtins__": BUILTINS}
    exec(compile(tree, "<answer>", "exec"), space)  # every node was checked above
    return space[tree.body[0].name]


def check_function(text: str, expected: Callable[[Any], Any], inputs: list[Any]) -> str:
    """Empty when the text's function agrees with `expected` on `inputs` and its example holds, else the reason."""
    start = text.find("def ")
    if start < 0:
        return "no function"
    source = text[start:].split("\n\n")[0]
    try:
        function = compile_function(source)
        for value in inputs:
            got = function(list(value) if isinstance(value, list) else value)
            if type(got) is not type(expected(value)) or got != expected(value):
                return f"f({value}) is {got}, not {expected(value)}"
    except Exception as error:  # the text is a model's: anything can go wrong in it
        return f"{type(error).__name__}: {error}"
    example = re.search(r"(\w+)\((\[[\d, ]*\]|\d+)\) (?:is|gives|returns) (\[[\d, ]*\]|-?\d+)", text)
    if example is None:
        return "no example"
    if example.group(1) != function.__name__:
        return f"the example calls {example.group(1)}"
    if expected(ast.literal_eval(example.group(2))) != ast.literal_eval(example.group(3)):
        return "the example is wrong"
    return ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A function to be written: what is asked, one way to write it, and what it must do."""

    kind: str
    ask: str  # "that adds 3 and then multiplies by 2"
    argument: str
    body: str  # lines of code, indented
    reference: Callable[[Any], Any]
    inputs: list[Any]  # of the check
    example: Any  # input of the example in the answer
    worked: Callable[[Any], str]  # how the value of an input comes about


def _sums(values: list[int]) -> str:
    """'2 + 3 = 5, 5 + 4 = 9'."""
    steps, total = [], values[0]
    for v in values[1:]:
        steps.append(f"{total} + {v} = {total + v}")
        total += v
    return ", ".join(steps)


def _sides(values: list[int], side: str, holds: list[bool]) -> str:
    """'2 is not above 3, 9 is above 3'."""
    return ", ".join(f"{v} is {'' if yes else 'not '}{side}" for v, yes in zip(values, holds, strict=True))


def _scalar(rng: random.Random) -> Task:
    """A function of one number."""
    form = rng.choice(["two", "two", "if", "sum"])
    how = manner(rng, form)
    x, y = how.choice(SCALARS), how.choice(LOCALS)
    if form == "two":
        ops = [("adds {}", "+", rng.randint(2, 20)), ("subtracts {}", "-", rng.randint(2, 9)), ("multiplies by {}", "*", rng.randint(2, 5))]
        (w1, o1, a), (w2, o2, b) = rng.sample(ops, 2)
        ask = f"that {w1.format(a)} and then {w2.format(b)}"
        body = pick(
            how,
            f"    {y} = {x} {o1} {a}\n    return {y} {o2} {b}",
            f"    {y} = {x} {o1} {a}\n    {y} = {y} {o2} {b}\n    return {y}",
            f"    return ({x} {o1} {a}) {o2} {b}",
        )

        def reference(v: int) -> int:
            calc = {"+": lambda p, q: p + q, "-": lambda p, q: p - q, "*": lambda p, q: p * q}
            return calc[o2](calc[o1](v, a), b)

        def worked(v: int) -> str:
            half = {"+": v + a, "-": v - a, "*": v * a}[o1]
            return f"{v} {o1} {a} = {half}, {half} {o2} {b} = {reference(v)}"

        return Task(kind="two", ask=ask, argument=x, body=body, reference=reference, inputs=[0, 1, 7, 12, 30], example=rng.randint(9, 15), worked=worked)
    if form == "if":
        limit, a, b = rng.randint(5, 30), rng.randint(2, 20), rng.randint(2, 5)
        ask = f"that adds {a} to numbers above {limit} and subtracts {b} from the others"
        body = pick(
            how,
            f"    if {x} > {limit}:\n        return {x} + {a}\n    return {x} - {b}",
            f"    if {x} > {limit}:\n        return {x} + {a}\n    else:\n        return {x} - {b}",
            f"    return {x} + {a} if {x} > {limit} else {x} - {b}",
            f"    if {x} <= {limit}:\n        return {x} - {b}\n    return {x} + {a}",
        )

        def branch(v: int) -> str:
            return f"{v} is above {limit}, {v} + {a} = {v + a}" if v > limit else f"{v} is not above {limit}, {v} - {b} = {v - b}"

        return Task(
            kind="if",
            ask=ask,
            argument=x,
            body=body,
            reference=lambda v: v + a if v > limit else v - b,
            inputs=[0, limit - 1, limit, limit + 1, 50],
            example=rng.randint(6, 40),
            worked=branch,
        )
    v = how.choice(EACH)
    a = rng.randint(1, 4)
    ask = f"that adds all the numbers from {a} to a given number"
    body = pick(
        how,
        f"    return sum(range({a}, {x} + 1))",
        f"    {y} = 0\n    for {v} in range({a}, {x} + 1):\n        {y} = {y} + {v}\n    return {y}",
        f"    {y} = 0\n    for {v} in range({a}, {x} + 1):\n        {y} += {v}\n    return {y}",
    )
    return Task(
        kind="sum",
        ask=ask,
        argument=x,
        body=body,
        reference=lambda n: sum(range(a, n + 1)),
        inputs=[5, 6, 10, 13],
        example=rng.randint(a + 2, 8),
        worked=lambda n: _sums(list(range(a, n + 1))),
    )


def _listed(rng: random.Random) -> Task:
    """A function of a list of numbers."""
    form = rng.choice(["count", "keep", "map", "total", "largest"])
    how = manner(rng, form)
    x, y, v = how.choice(LISTS), how.choice(LOCALS), how.choice(EACH)
    inputs = [[3, 9, 14, 2, 31], [8], [5, 5, 20, 41, 6, 1], [49, 30, 12]]
    example = rng.sample(range(1, 30), rng.choice([3, 4]))
    a = rng.randint(3, 20)

    def task(ask: str, body: str, reference: Callable[[list[int]], Any], worked: Callable[[list[int]], str], example: list[int] = example) -> Task:
        return Task(kind=form, ask=ask, argument=x, body=body, reference=reference, inputs=inputs, example=example, worked=worked)

    if form == "count":
        ask = f"that counts the numbers above {a} in a list"
        body = pick(
            how,
            f"    {y} = 0\n    for {v} in {x}:\n        if {v} > {a}:\n            {y} += 1\n    return {y}",
            f"    return len([{v} for {v} in {x} if {v} > {a}])",
        )
        return task(ask, body, lambda s: len([i for i in s if i > a]), lambda s: _sides(s, f"above {a}", [i > a for i in s]))
    if form == "keep":
        ask = f"that keeps only the numbers below {a} of a list"
        body = pick(
            how,
            f"    {y} = []\n    for {v} in {x}:\n        if {v} < {a}:\n            {y}.append({v})\n    return {y}",
            f"    return [{v} for {v} in {x} if {v} < {a}]",
        )
        return task(ask, body, lambda s: [i for i in s if i < a], lambda s: _sides(s, f"below {a}", [i < a for i in s]))
    if form == "map":
        op, word = rng.choice([("+", "adds {} to every number"), ("*", "multiplies every number by {}")])
        a = rng.randint(2, 3) if op == "*" else a
        ask = "that " + word.format(a) + " of a list"
        body = pick(how, f"    {y} = []\n    for {v} in {x}:\n        {y}.append({v} {op} {a})\n    return {y}", f"    return [{v} {op} {a} for {v} in {x}]")
        worked = lambda s: ", ".join(f"{i} {op} {a} = {i + a if op == '+' else i * a}" for i in s)  # noqa: E731
        return task(ask, body, lambda s: [i + a if op == "+" else i * a for i in s], worked)
    if form == "total":
        ask = f"that adds up a list and then adds {a}"
        body = pick(
            how,
            f"    {y} = {a}\n    for {v} in {x}:\n        {y} += {v}\n    return {y}",
            f"    return sum({x}) + {a}",
            f"    {y} = sum({x})\n    return {y} + {a}",
        )
        return task(ask, body, lambda s: sum(s) + a, lambda s: _sums([*s, a]), example=rng.sample(range(1, 15), 2))
    ask = f"that finds the largest number of a list and adds {a} to it"
    body = pick(
        how,
        f"    return max({x}) + {a}",
        f"    {y} = max({x})\n    return {y} + {a}",
        f"    {y} = 0\n    for {v} in {x}:\n        if {v} > {y}:\n            {y} = {v}\n    return {y} + {a}",
    )
    return task(ask, body, lambda s: max(s) + a, lambda s: f"the largest is {max(s)}, {max(s)} + {a} = {max(s) + a}")


def problem(rng: random.Random) -> Problem:
    """A function of one argument, with an example."""
    task = (_scalar if rng.random() < 0.5 else _listed)(rng)
    name = rng.choice(FUNCTIONS)
    given = rng.random() < 0.6
    prompt = (f"Write a Python function {name} " if given else pick(rng, "Write a Python function ", "Write a small function in Python ")) + task.ask + "."
    how = manner(rng, "code", task.kind, given, prompt.split()[2])
    intro = pick(
        how,
        "",
        "",
        "Here is the function.\n",
        f"The function is called {name}.\n",
        f"Here is {name}, a function {task.ask}.\n",
        f"This function takes {task.argument}.\n",
    )
    value = task.reference(task.example)
    closing = pick(how, "For example", "To test it") + f": {task.worked(task.example)}. "
    closing += f"So {name}({task.example}) " + pick(how, "is", "gives", "returns") + f" {value}."
    if how.random() < 0.3:
        closing = f"The argument is called {task.argument}. " + closing
    answer = f"{intro}def {name}({task.argument}):\n{task.body}\n\n{closing}"

    def check(text: str) -> str:
        why = check_function(text, task.reference, task.inputs)
        return why or ("" if not given or f"def {name}(" in text else "the function has another name")

    return Problem("code", task.kind, prompt, answer, check)
