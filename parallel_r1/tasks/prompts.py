"""How the maths tasks ask: with parallel paths, plainly, or with worked examples for a base model.

A recipe uses them by name (``parallel = "${maths_parallel}"``); what is saved with a checkpoint is the
text. The parallel prompt asks for what the paper's does (SPEC section 3), in our words: steps, blocks of
distinct and independent paths, a summary after each, no talk of the mechanism, a last line with the
answer. The tags in it are plain text to the model; only a response holds tags.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from parallel_r1.tasks.base import FINAL_ANSWER


class Prompts(NamedTuple):
    """Templates around ``{question}``."""

    parallel: str
    """Asks for parallel paths: cold start, teacher, RL and evaluation."""
    plain: str
    """Asks for steps and a final answer: the sequential baseline."""
    few_shot: str
    """Worked examples for a base model, which follows no request."""


_NEXT = "Problem:"
_EXAMPLES = (
    (
        "A baker fills 6 trays with 15 rolls each and sells all but 8 rolls. How many rolls does he sell?",
        "He bakes 6 * 15 = 90 rolls. He keeps 8, so he sells 90 - 8 = 82.",
        "82",
    ),
    (
        r"For which positive $x$ is $x^2 - x = 12$?",
        r"The equation is $x^2 - x - 12 = 0$, that is $(x - 4)(x + 3) = 0$. Its positive root is $x = 4$.",
        "4",
    ),
    (
        "Two fair dice are thrown. What is the probability that the sum is 4?",
        "The sum is 4 for (1,3), (2,2) and (3,1): three of 36 equally likely throws.",
        r"\frac{1}{12}",
    ),
)
_SHOTS = "".join(f"{_NEXT} {q}\nSolution: {steps}\n{FINAL_ANSWER} {answer}\n\n" for q, steps, answer in _EXAMPLES)

MATHS = Prompts(
    parallel=(
        "Work out the problem below step by step.\n"
        "Wherever a step can be looked at from several sides (another method, another case, a check of what you have), "
        "open a block there and write at least two paths into it, then sum up what they gave:\n"
        "<Parallel>\n<Path>one line of thought</Path>\n<Path>a different line of thought</Path>\n</Parallel>\n"
        "<Summary>what follows from the paths, in a sentence or two</Summary>\n"
        "Each path must stand alone: give it no number, let it not mention or build on another path, and do not write "
        "the same thought twice. The summary comes directly after its block; then go on with the solution. You may "
        "open several blocks, none inside another. Close every tag. Never say that you are thinking in parallel, and "
        "name neither tags nor these rules.\n"
        f"Let the very last line read {FINAL_ANSWER} followed by the answer alone.\n\n"
        "{question}\n"
    ),
    plain=(
        "Work out the problem below step by step.\n"
        f"Let the very last line read {FINAL_ANSWER} followed by the answer alone.\n\n"
        "{question}\n"
    ),
    few_shot=f"{_SHOTS}{_NEXT} {{question}}\nSolution:",
)

TEMPLATES = {f"maths_{name}": text for name, text in MATHS._asdict().items()}
"""Templates by the name under which a recipe or a command takes them."""

_NEW_EXAMPLE = re.compile(rf"({FINAL_ANSWER}[^\n]*)\n\s*{_NEXT}.*", re.DOTALL)


def own_part(response: str) -> str:
    """A response without the further problems that a base model poses itself after its answer."""
    return _NEW_EXAMPLE.sub(r"\1", response, count=1)
