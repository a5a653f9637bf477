"""The generators of the bundled model: deterministic, their answers verify, and the checks catch wrong ones."""

import random
import re
from itertools import pairwise

import pytest

from polestar.demo import code, lists, math, story
from polestar.demo.problems import FAMILIES, generate, held_out, held_out_set, stream


@pytest.mark.parametrize("family", list(FAMILIES))
def test_same_seed_same_problems_and_answers_verify(family):
    a, b = random.Random(f"t/{family}"), random.Random(f"t/{family}")
    for _ in range(300):
        p, q = generate(family, a), generate(family, b)
        assert (p.prompt, p.answer, p.kind) == (q.prompt, q.answer, q.kind)
        assert p.check(p.answer) == "", (p.prompt, p.answer, p.check(p.answer))
        assert math.wrong_equations(p.answer) == []


@pytest.mark.parametrize("family", list(FAMILIES))
def test_an_answer_to_something_else_is_refused(family):
    problems = held_out_set(family, 40)
    assert len({p.prompt for p in problems}) == 40
    refused = sum(bool(p.check(q.answer)) for p, q in pairwise(problems))
    assert refused >= 35
    assert all(p.check("") for p in problems)


def test_held_out_is_apart_from_training():
    train, held = stream("math", 3, held=False), stream("math", 3, held=True)
    for _ in range(50):
        assert not held_out(next(train).prompt)
        assert held_out(next(held).prompt)


def test_word_problems_stay_small_and_reuse_results():
    rng = random.Random(4)
    for _ in range(500):
        p = generate("math", rng)
        assert all(int(n) < 100 for n in re.findall(r"\d+", p.prompt + p.answer))
        equations = math.EQUATION.findall(p.answer)
        assert len(equations) in (2, 3)
        for before, after in pairwise(equations):
            assert before[3] in (after[0], after[2])
        assert math.final_number(p.answer) == int(equations[-1][3])


def test_wrong_equations_are_found():
    assert math.wrong_equations("29 - 6 = 22, so 3 * 4 = 12 and 9 / 2 = 4.") == ["29 - 6 = 22", "9 / 2 = 4"]


def test_shuffle_takes_any_other_order_and_nothing_else():
    p = next(q for q in stream("list", 1, held=True) if q.kind == "shuffle")
    items = lists.result_line(p.answer)
    assert items is not None
    prompt_order = sorted(items, key=p.prompt.index)
    other = prompt_order[1:] + prompt_order[:1]
    assert p.check(f"Result: {', '.join(other)}") == ""
    assert p.check(f"Result: {', '.join(prompt_order)}")
    assert p.check(f"Result: {', '.join(other[:-1] + other[:1])}")


def test_story_with_a_changed_detail_is_refused():
    for p in (q for _, q in zip(range(40), stream("story", 2, held=True), strict=False) if q.kind == "story"):
        for color in story.COLORS:
            if p.answer.count(color) > 1:
                other = next(c for c in story.COLORS if c != color)
                assert p.check(p.answer.replace(color, other, 1))


def test_schedule_whose_summary_disagrees_is_refused():
    p = next(q for q in stream("story", 5, held=True) if q.kind == "schedule")
    acts = [a for a in story.ACTIVITIES if a in p.answer]
    spare = next(a for a in story.ACTIVITIES if a not in p.answer)
    head, tail = p.answer.split("So the plan")
    assert p.check(head + "So the plan" + tail.replace(acts[0], spare))
    assert p.check(head)


def test_code_is_run_only_when_plain():
    assert code.compile_function("def f(x):\n    return x + 1")(4) == 5
    for bad in (
        "import os\ndef f(x):\n    return x",
        "def f(x):\n    return x.__class__",
        "def f(x):\n    return open(x)",
        "def f(x):\n    while x > 0:\n        x = x\n    return x",
        "def f(x):\n    for i in x:\n        x.append(i)\n    return x",
        "def f(x):\n    return __import__",
    ):
        with pytest.raises(ValueError):
            code.compile_function(bad)


def test_code_with_another_constant_or_a_wrong_example_is_refused():
    text = "def f(x):\n    y = x + 3\n    return y * 2\n\nFor example, f(4) is 14."
    assert code.check_function(text, lambda v: (v + 3) * 2, [0, 5]) == ""
    assert code.check_function(text.replace("+ 3", "+ 4"), lambda v: (v + 3) * 2, [0, 5])
    assert code.check_function(text.replace("14", "15"), lambda v: (v + 3) * 2, [0, 5])
    assert code.check_function(text.replace("f(4)", "g(4)"), lambda v: (v + 3) * 2, [0, 5])
