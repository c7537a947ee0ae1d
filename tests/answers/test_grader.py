"""The grader: hostile answers, killed workers, threads, order, memory."""

import os
import signal
import threading
import time

import psutil
import pytest

from parallel_r1.answers import grader
from parallel_r1.answers.extract import extract
from parallel_r1.answers.forms import Asked
from parallel_r1.answers.grader import Grader
from parallel_r1.answers.symbolic import too_costly
from parallel_r1.answers.verify import compare, verify, verify_all

ORDINARY = [("x^2-1", "(x-1)(x+1)", "right"), ("x^2-1", "(x-1)^2", "wrong"), (r"\sqrt8", r"2\sqrt2", "right")]
SLOW = r"\sin(" * 40 + "x" + ")" * 40
"""Takes the parser minutes."""


@pytest.fixture
def pool():
    pool = Grader(workers=1, seconds=0.5)
    yield pool
    pool.close()


HOSTILE = [
    r"10^{10^{10^{10}}}", "9^9^9^9", "{" * 3000, "((9^9)^9)^9", "9" * 5000, "1e999999999", r"\frac{1}{0}", "1/0",
    "2000!", "((9!)!)!", r"\sum_{k=1}^{9}k", r"\int_0^1 x dx", "-" * 2000, "1," * 2000, "\\text{" * 2000, "(" * 90,
    "$" * 4001, "=" * 99, "(a+b+c+d+e+f+g)^9*(a+b+c+d+h+k+m)^9", "((x+1)^9)^9", "a b c d" * 5, "1 " * 3000, "a " * 3000,
    "x=" * 2000, "\\" * 3001, "1,2," * 200, "[" * 400 + "1,1" + "]" * 400, "x" * 10**6, "{1," * 200 + "1" + "}" * 200,
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:14]))
def test_hostile_answers_are_quick_and_never_right(answer):
    compare("x^2", "x^3")  # starts a worker outside the clock
    started = time.process_time()
    for _ in range(5):
        assert compare("42", answer).outcome in ("wrong", "timeout")
        assert compare("x^2+1", answer).outcome in ("wrong", "timeout")
        assert not verify("42", rf"\boxed{{{answer}}}").right
        extract(answer * 2)
    assert time.process_time() - started < 2


def test_extraction_from_a_long_text_is_quick():
    started = time.process_time()
    for text in (r"\boxed{" * 50_000, "Final Answer: " * 50_000, "Final Answer: {\n" * 20_000, "#### " * 50_000):
        extract(text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("text", ["10^{10^{10}}", "2^{3^{4^{5}}}", "9^9^9^9", "x^{10000000}", "2000000!", "(9!)!"])
def test_what_is_too_costly_is_seen_before_it_is_tried(text):
    assert too_costly(text)
    assert compare("42", text).outcome == "timeout"


@pytest.mark.parametrize(
    "text", ["2^{10}", "e^{16}", "x^{2}+y^{2}+z^{2}", r"90^\circ", "2004!", "2^{2^{n}}", "(2^{3})^{4}"]
)
def test_ordinary_powers_are_not_too_costly(text):
    assert not too_costly(text)


def test_a_slow_answer_is_a_timeout_and_the_next_ones_are_unharmed(pool):
    assert pool.judge("x", SLOW, Asked())[0] == "timeout"
    for gold, answer, outcome in ORDINARY:
        assert pool.judge(gold, answer, Asked())[0] == outcome


def test_many_slow_answers_share_their_time(pool):
    assert pool.patience == 0.5
    for number in range(3):
        assert pool.judge(f"x+{number}", SLOW, Asked())[0] == "timeout"
    assert 0.1 < pool.patience < 0.2
    for number in range(grader.RECENT):
        pool.judge(str(number), "x=1,2", Asked())
    assert pool.patience == 0.5


def test_memory_is_bounded():
    pool = Grader(workers=1, seconds=20, memory_mb=300)
    try:
        outcome, how = pool.judge(
            "x", "(99999!)+(99998!)+" + "+".join(f"({n}^{{999999}})" for n in range(2, 40)), Asked()
        )
        workers = psutil.Process().children(recursive=True)
        assert outcome in ("timeout", "wrong"), how
        assert sum(worker.memory_info().rss for worker in workers) < 2**30
        assert pool.judge("x^2-1", "(x-1)(x+1)", Asked())[0] == "right"
    finally:
        pool.close()


def test_a_killed_worker_is_replaced(pool):
    assert pool.judge(*ORDINARY[0][:2], Asked())[0] == "right"
    for worker in psutil.Process().children():
        if "parallel_r1.answers.worker" in worker.cmdline() and worker.pid != os.getpid():
            worker.send_signal(signal.SIGKILL)
            worker.wait(10)
    assert pool.judge(*ORDINARY[1][:2], Asked())[0] == "wrong"


def test_closing_leaves_no_process():
    pool = Grader(workers=1)
    before = set(psutil.Process().children(recursive=True))
    pool.judge(*ORDINARY[0][:2], Asked())
    started = set(psutil.Process().children(recursive=True)) - before
    assert len(started) == 2  # the one that forks, and its child
    pool.close()
    assert psutil.wait_procs(list(started), timeout=10)[1] == []


def test_any_thread_gets_the_verdict_of_the_main_thread():
    expected = [outcome for _, _, outcome in ORDINARY]
    found = {}

    def work(name):
        found[name] = [compare(gold, f"{answer}+{name}-{name}").outcome for gold, answer, _ in ORDINARY]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), expected)


def test_a_batch_keeps_its_order():
    items = [(gold, rf"\boxed{{{answer}+0}}", "") for gold, answer, _ in ORDINARY] + [
        ("1", "none", ""),
        ("1", "#### 1", ""),
    ]
    assert [verdict.outcome for verdict in verify_all(items)] == ["right", "wrong", "right", "no_answer", "right"]


def test_a_fork_starts_a_grader_of_its_own():
    assert compare(*ORDINARY[0][:2]).right
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = compare("x^2-4", "(x-2)(x+2)").outcome
        grader.shared().close()
        os.write(writing, outcome.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"right"
    assert compare("x^2-9", "(x-3)(x+3)").right
