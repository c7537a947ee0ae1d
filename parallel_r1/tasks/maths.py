"""Mathematics from the hub or from files: the data sets of the paper, each a few declared facts.

*gsm8k* is the easy stage and the source of cold-start traces, *dapo* the hard stage; *aime24*, *aime25*,
*amc23* and *math500* are for evaluation only. *file* reads any file with questions and answers.
A new data set is a `Dataset` here; where it stands in `DATASETS` it is a task.
"""

from __future__ import annotations

import re

from parallel_r1.answers.extract import HASHES
from parallel_r1.tasks.data import Dataset, Measure
from parallel_r1.tasks.rows import Row, text_at

_DAPO_AROUND = re.compile(
    r"Solve the following math problem step by step\.[^\n]*\n+(?P<question>.*?)\n+Remember to put your answer[^\n]*\s*",
    re.DOTALL,
)


def count_steps(row: Row, answer: str) -> int | None:
    """Calculation steps of a worked solution: its ``<<..>>`` marks, else its lines; None without either."""
    solution = text_at(row, "solution") or answer
    worked = solution.partition(HASHES)[0] if HASHES in solution else solution
    marks = worked.count("<<")
    if marks:
        return marks
    lines = [line for line in worked.splitlines() if line.strip()]
    return len(lines) if HASHES in solution or len(lines) > 1 else None


def read_level(row: Row, answer: str) -> int | None:
    """The level of a MATH problem, 1 to 5; it is written ``Level 3`` or ``3``."""
    digits = re.search(r"\d", text_at(row, "level"))
    return int(digits[0]) if digits else None


DATASETS = (
    Dataset("gsm8k", "openai/gsm8k", config="main", measure=Measure("steps", count_steps)),
    Dataset("math", "DigitalLearningGmbH/MATH-lighteval", numeric=False, measure=Measure("level", read_level)),
    Dataset("math500", "HuggingFaceH4/MATH-500", splits=("test",), numeric=False, measure=Measure("level", read_level)),
    Dataset("aime24", "math-ai/aime24", splits=("test",)),
    Dataset("aime25", "math-ai/aime25", splits=("test",)),
    Dataset("amc23", "math-ai/amc23", splits=("test",)),
    Dataset("dapo", "BytedTsinghua-SIA/DAPO-Math-17k", splits=("train",), around=_DAPO_AROUND),
    Dataset("file", None, numeric=False),
)
