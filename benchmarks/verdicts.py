r"""How right and how quick verdicts are, over all golds of a folder of Parquet or JSONL files.

    python benchmarks/verdicts.py --data DIR --json runs/verdicts.json

Parts (``--only``): *same* (every gold against itself, and re-rendered with the exact stage off), *near*
(near-miss mutations, which must be wrong), *speed* (ordinary verdicts a second; 64 hostile answers and
the 64 ordinary ones after them, with the memory of all processes). Every miss is printed. Rows with the
same gold and the same kind of question are judged once and counted as many times as there are rows.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from parallel_r1.answers import grader
from parallel_r1.answers.verify import compare, verify_all
from parallel_r1.run_dir import write_json
from parallel_r1.types import Verdict

ENDS = re.compile(r"([(\[])([^,()\[\]]+),([^,()\[\]]+)([)\]])")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
NUMBER = re.compile(r"\d+")
HOSTILE = [
    r"10^{10^{10^{10}}}", "9^9^9^9", "{" * 3000, "{" * 1500 + "x" + "}" * 1500, "1" * 10**6, "x+" * (5 * 10**5),
    r"(x+y)^{999999}", r"\sin(" * 60 + "x" + ")" * 60, r"\frac{1}{1+" * 60 + "1" + "}" * 60, "200000!", "7" * 900 + "!",
    r"\binom{99999}{50000}", "(" * 140 + "1" + ")" * 140, r"2^{3^{11}}", "(a+b+c+d+e+f+g)^9*(a+b+c+d+h+k+m)^9",
    "99999^{99999}",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Verdicts over all golds of a folder.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=["same", "near", "speed"], nargs="+", default=["same", "near", "speed"])
    parser.add_argument("--share", default="1/1", help="the i-th of n shares of the golds, as i/n")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    part, parts = map(int, arguments.share.split("/"))
    counts = Counter(read_golds(arguments.data))
    golds = [((gold, question), rows) for (gold, question), rows in sorted(counts.items())][part - 1 :: parts]
    print(f"{counts.total()} rows, {len(counts)} distinct golds; this share: {sum(rows for _, rows in golds)} rows")
    found: dict[str, Any] = {"rows": sum(rows for _, rows in golds), "distinct": len(golds), "share": arguments.share}
    for name, measure in (("same", measure_same), ("near", measure_near), ("speed", measure_speed)):
        if name in arguments.only:
            found[name] = measure(golds)
    if arguments.json:
        write_json(arguments.json, found)


def read_golds(folder: Path) -> Iterator[tuple[str, str]]:
    """(gold, what its question says that matters) of every row with an answer."""
    import pyarrow.parquet as parquet

    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            rows: Iterable[dict[str, Any]] = parquet.read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            rows = map(json.loads, path.read_text().splitlines())
        else:
            continue
        for row in rows:
            if row.get("answer"):
                yield str(row["answer"]), "percent" if re.search(r"percent|%", str(row["question"]), re.I) else ""


Golds = list[tuple[tuple[str, str], int]]


def measure_same(golds: Golds) -> dict[str, Any]:
    """Gold against gold through a whole response, and against its renderings with the exact stage off."""
    print("\n## Same answers")
    verdicts = verify_all([(gold, f"so\nFinal Answer: {gold}", question) for (gold, question), _ in golds])
    boxed = verify_all([(gold, rf"so \boxed{{{gold}}}", question) for (gold, question), _ in golds])
    found = {
        "gold against gold": tally(golds, [gold for (gold, _), _ in golds], verdicts, right=True),
        "boxed": tally(golds, [gold for (gold, _), _ in golds], boxed, right=True),
    }
    for name, render in RENDERINGS.items():
        found[name] = judge_all(name, golds, render, right=True)
    return found


def measure_near(golds: Golds) -> dict[str, Any]:
    """Mutations of every gold: each ``right`` is a false accept, or a mutation that changes nothing."""
    print("\n## Near misses")
    found = {name: judge_all(name, golds, mutate, right=False) for name, mutate in MUTATIONS.items()}
    cases, misses = (sum(figures[key] for figures in found.values()) for key in ("rows", "misses"))
    print(f"all: {misses} of {cases} accepted, {10_000 * misses / max(cases, 1):.2f} in 10,000")
    return found


def judge_all(name: str, golds: Golds, change: Callable[[str], str], right: bool) -> dict[str, Any]:
    """Judge all golds against what ``change`` makes of them; golds that it leaves alone do not count."""
    changed = [change(gold) for (gold, _), _ in golds]
    cases = [(case, text) for case, text in zip(golds, changed, strict=True) if text != case[0][0]]
    with ThreadPoolExecutor(grader.shared().workers) as threads:
        verdicts = list(threads.map(lambda c: compare(c[0][0][0], c[1], c[0][0][1], exact=False), cases))
    figures = tally([case for case, _ in cases], [text for _, text in cases], verdicts, right)
    print(f"{name}: {figures['misses']} misses in {figures['rows']} rows ({figures['how']})")
    return figures


def tally(golds: Golds, answers: list[str], verdicts: list[Verdict], right: bool) -> dict[str, Any]:
    misses = []
    for ((gold, _), rows), answer, verdict in zip(golds, answers, verdicts, strict=True):
        if verdict.right is not right:
            misses.append(
                {"gold": gold, "answer": answer, "rows": rows, "outcome": verdict.outcome, "how": verdict.how}
            )
            print(f"  {rows} x {gold!r} | {answer!r}: {verdict.outcome} ({verdict.how})")
    how = Counter()
    for (_, rows), verdict in zip(golds, verdicts, strict=True):
        how[f"{verdict.outcome}, {verdict.how}"[:40]] += rows
    total = sum(rows for _, rows in golds)
    return {"rows": total, "misses": sum(m["rows"] for m in misses), "how": dict(how), "each": misses}


def _plain_fraction(gold: str) -> str:
    """``(1)/(2)``; after a number or a function, as in ``3\\frac{1}{2}``, it would say something else."""
    is_alone = gold.count("frac") == 1 and not re.search(r"[\da-z]\s?\\[dt]?frac", gold)
    return FRACTION.sub(r"(\1)/(\2)", gold) if is_alone else gold


def _thousands(match: re.Match[str], comma: str) -> str:
    digits = match[0]
    is_whole = len(digits) > 3 and not digits.startswith("0")
    return f"{int(digits):,}".replace(",", comma) if is_whole else digits


RENDERINGS: dict[str, Callable[[str], str]] = {
    "dollars": lambda gold: f"${gold}$.",
    "dfrac": lambda gold: gold.replace(r"\frac", r"\dfrac"),
    "spaces": lambda gold: re.sub(r"(?<![\\\d])([-+,=()\[\]])", r" \1 ", gold),
    "no spaces": lambda gold: re.sub(r"(?<![A-Za-z\\]) (?![A-Za-z])|(?<=\d) (?=[a-z]\b)", "", gold),
    "thousands": lambda gold: re.sub(r"(?<![\d.])\d+(?![\d.])", lambda m: _thousands(m, ","), gold),
    "tight thousands": lambda gold: re.sub(r"(?<![\d.])\d+(?![\d.])", lambda m: _thousands(m, r",\!"), gold),
    "left and right": lambda gold: re.sub(r"\(", r"\\left(", re.sub(r"\)", r"\\right)", gold)),
    "plain fractions": _plain_fraction,
    "unicode": lambda gold: gold.replace("-", "\u2212").replace(r"\pi", "π").replace(r"\infty", "∞"),
    "no text": lambda gold: re.sub(r"\\(?:text|mbox)\s?\{([^{}]*)\}", r"\1", gold),
    "named": lambda gold: f"X = {gold}" if re.fullmatch(r"[-\d./\\a-z{}]+", gold) else gold,
    "halves and trailing zeros": lambda gold: f"{gold}.0" if re.fullmatch(r"-?\d+", gold) else gold,
}


def _change_number(change: Callable[[int], int]) -> Callable[[str], str]:
    """Change the last number of a gold by ``change``."""

    def mutate(gold: str) -> str:
        last = next(reversed(list(NUMBER.finditer(gold))), None)
        if last is None:
            return gold
        return f"{gold[: last.start()]}{change(int(last[0]))}{gold[last.end() :]}"

    return mutate


def _swapped_ends(gold: str) -> str:
    ends = ENDS.search(gold.replace(r"\left", "").replace(r"\right", ""))
    if ends is None or ends[2].strip() == ends[3].strip():
        return gold
    return f"{ends.string[: ends.start()]}{ends[1]}{ends[3]},{ends[2]}{ends[4]}{ends.string[ends.end() :]}"


def _other_digit(gold: str) -> str:
    places = [match.start() for match in re.finditer(r"\d", gold)]
    if not places:
        return gold
    dice = random.Random(gold)
    place = dice.choice(places)
    digit = dice.choice([d for d in "123456789" if d != gold[place]])
    return f"{gold[:place]}{digit}{gold[place + 1 :]}"


def _other_sign(gold: str) -> str:
    """The other sign in front of the first value."""
    if gold.startswith("-"):
        return gold[1:]
    start = re.match(r"(?:[A-Za-z] ?= ?|[(\[]|\\left[(\[]|\\begin\{pmatrix\})?\s?", gold)
    assert start is not None
    rest = gold[start.end() :]
    return gold if re.match(r"-|0(?![.\d])", rest) else f"{gold[: start.end()]}-{rest}"


MUTATIONS: dict[str, Callable[[str], str]] = {
    "sign": lambda gold: _other_sign(gold) if re.search(r"[1-9]|\\pi", gold) else gold,
    "one up": _change_number(lambda value: value + 1),
    "one down": _change_number(lambda value: max(value, 1) - 1),
    "ends swapped": _swapped_ends,
    "fraction upside down": lambda gold: FRACTION.sub(r"\\frac{\2}{\1}", gold, count=1),
    "one digit": _other_digit,
    "other brackets": lambda gold: gold.translate(str.maketrans("([)]", "[(])")) if ENDS.search(gold) else gold,
}


def measure_speed(golds: Golds) -> dict[str, Any]:
    """Ordinary verdicts a second (as many right as wrong ones), then hostile ones and memory."""
    print("\n## Speed")
    dice = random.Random(0)
    rows = [case for case, rows in golds for _ in range(rows)]
    ordinary = []
    for gold, question in dice.choices(rows, k=2000):
        answer = gold if dice.random() < 0.5 else _other_digit(gold)
        ordinary.append((gold, f"so\nFinal Answer: ${answer}$", question))
    verify_all(ordinary[:64])  # starts the workers
    started, cpu = time.perf_counter(), cpu_seconds()
    verdicts = verify_all(ordinary)
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    rate, cpu_rate = len(ordinary) / seconds, len(ordinary) / cpu
    print(f"ordinary verdicts: {rate:.0f} a second on the clock, {cpu_rate:.0f} per second of CPU time")
    print(f"  {dict(Counter(v.how for v in verdicts))}")
    fresh = grader.shared()
    stop, peak = threading.Event(), [0]
    watcher = threading.Thread(target=_watch_memory, args=(stop, peak))
    watcher.start()
    items = [("x^2+1", rf"\boxed{{{HOSTILE[i % len(HOSTILE)]}{'+1' * (i // len(HOSTILE))}}}", "") for i in range(64)]
    started, cpu = time.perf_counter(), cpu_seconds()
    hostile = verify_all(items)
    hostile_seconds, hostile_cpu = time.perf_counter() - started, cpu_seconds() - cpu
    after = verify_all(ordinary[100:164])
    stop.set()
    watcher.join()
    unharmed = [v.outcome for v in after] == [v.outcome for v in verdicts[100:164]]
    outcomes = dict(Counter(verdict.outcome for verdict in hostile))
    print(f"64 hostile answers: {hostile_seconds:.1f} s on the clock, {hostile_cpu:.1f} s of CPU time, {outcomes}")
    print(f"  peak {peak[0] / 2**20:.0f} MB of all processes")
    print(f"the next 64 ordinary ones unharmed: {unharmed}; patience {fresh.patience:.2f} s")
    return {
        "verdicts_per_second": rate, "verdicts_per_cpu_second": cpu_rate,
        "hostile_seconds": hostile_seconds, "hostile_cpu_seconds": hostile_cpu, "hostile_outcomes": outcomes,
        "peak_mb": peak[0] / 2**20, "next_unharmed": unharmed,
        "hostile": [f"{HOSTILE[i % len(HOSTILE)][:30]}: {v.outcome} ({v.how})" for i, v in enumerate(hostile[:16])],
    }  # fmt: skip


def cpu_seconds() -> float:
    """CPU time of this process and of the grader's workers, with their ended children."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
        total += times.children_user + times.children_system
    return total


def _watch_memory(stop: threading.Event, peak: list[int]) -> None:
    """Keep the largest sum of resident memory of this process and its children."""
    this = psutil.Process()
    while not stop.wait(0.02):
        total = 0
        for process in [this, *this.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak[0] = max(peak[0], total)


if __name__ == "__main__":
    main()
