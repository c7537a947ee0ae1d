"""Cold-start traces from a teacher: a real server that misbehaves, and a local model."""

import asyncio
import json
import time

import pytest

from parallel_r1.coldstart.check import most_alike
from parallel_r1.coldstart.teacher import Ask, Reply, TeacherError, without_thoughts
from parallel_r1.coldstart.teacher_http import Endpoint, HttpTeacher, Pace
from parallel_r1.coldstart.teacher_journal import Journal
from parallel_r1.coldstart.teacher_run import FAILED, Plan, collect, judge, write_traces
from parallel_r1.config import DataSource
from parallel_r1.tasks import load_task
from parallel_r1.trace.tags import parse_text, render_block
from parallel_r1.types import Problem

TEMPLATE = "Think in paths.\n{question}\n"
PROBLEMS = [Problem(f"p{i}", "gsm8k", "easy", f"{i}+{i}?", str(2 * i)) for i in range(12)]
GSM8K = load_task("gsm8k")


def trace_for(question, answer=None):
    number = int(question.split("+")[0])
    paths = [f"add {number} to itself and get {2 * number}", f"double it, two times {number} is {2 * number}"]
    return f"So.\n{render_block(paths, 'both agree')}\nFinal Answer: {2 * number if answer is None else answer}"


def good(question, nth):
    return trace_for(question)


def teacher_at(server, **settings):
    defaults = {"first_pause": 0.01, "silence": 5.0, "concurrency": 4}
    return HttpTeacher(Endpoint(server.url, "teacher", **{**defaults, **settings}))


def gather(teacher, problems=PROBLEMS):
    async def run():
        asks = iter([Ask(problem, 0, TEMPLATE) for problem in problems])
        return [reply async for reply in teacher.replies(asks)]

    return asyncio.run(run())


def collected(server, path, problems=PROBLEMS, plan=None, **settings):
    journal = Journal(path, {"teacher": "teacher"})
    try:
        teacher = teacher_at(server, **settings)
        return asyncio.run(collect(teacher, GSM8K, problems, plan or Plan(TEMPLATE), journal))
    finally:
        journal.close()


def test_replies_come_once_each_and_side_by_side(serve):
    def slow(question, nth):
        time.sleep(0.05)
        return trace_for(question)

    server = serve(slow)
    replies = gather(teacher_at(server, key="secret"))
    assert sorted(reply.ask.problem.id for reply in replies) == sorted(problem.id for problem in PROBLEMS)
    assert all(reply.text == trace_for(reply.ask.problem.question) for reply in replies)
    assert all((reply.prompt_tokens, reply.completion_tokens, reply.finish) == (100, 50, "stop") for reply in replies)
    assert 2 <= server.most_open <= 4
    body = server.bodies[0]
    assert body["model"] == "teacher" and body["messages"][0]["content"].startswith("Think in paths.\n")
    assert server.headers_seen[0]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(Endpoint(server.url, "teacher", key="secret"))


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        (500, "500"),
        (503, "503"),
        (429, "429"),
        ((429, {"Retry-After": "0.05"}), "429"),
        ("garbage", "garbage"),
        ("half json", "garbage"),
        ("garbage in stream", "garbage"),
        ("error in stream", "error in stream"),
        ("cut", "cut stream"),
        ("hang up", "connection"),
        ("silent", "timeout"),
        ("drip", "timeout"),
        ("endless", "garbage"),
    ],
)
def test_what_passes_is_asked_again(serve, behaviour, cause):
    """Every question fails once in this way, and is answered the second time."""
    server = serve(lambda question, nth: behaviour if nth == 1 else trace_for(question))
    teacher = teacher_at(server, silence=0.4, deadline=0.8, max_tokens=4096 if behaviour != "endless" else 64)
    replies = gather(teacher, PROBLEMS[:2])
    assert [reply.text for reply in replies if reply.finish == "stop"] and len(replies) == 2
    assert teacher.retries == {cause: 2} and set(server.seen.values()) == {2}


def test_what_never_passes_costs_its_problem_only(serve):
    server = serve(
        lambda question, nth: 500 if question == "3+3?" else 400 if question == "4+4?" else trace_for(question)
    )
    replies = {reply.ask.problem.id: reply for reply in gather(teacher_at(server, tries=3))}
    assert len(replies) == len(PROBLEMS)
    assert (replies["p3"].finish, replies["p3"].error) == ("error", "500, 3 times") and server.seen["3+3?"] == 3
    assert replies["p4"].error == 'refused: 400 {"error": {"message": "said 400"}}' and server.seen["4+4?"] == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_no_access_ends_the_run_at_once(serve, status):
    server = serve(lambda question, nth: status)
    with pytest.raises(TeacherError, match=rf"answers {status}.*said {status}.*check the address"):
        gather(teacher_at(server))
    assert len(server.bodies) <= 4


def test_nobody_there_and_no_address():
    with pytest.raises(TeacherError, match="give the base of the endpoint"):
        HttpTeacher(Endpoint("localhost:8000", "m"))
    (reply,) = gather(HttpTeacher(Endpoint("http://127.0.0.1:9/v1", "m", tries=2, first_pause=0.01)), PROBLEMS[:1])
    assert (reply.finish, reply.error) == ("error", "connection, 2 times")


def test_a_429_holds_everyone_back_as_long_as_it_says(serve):
    server = serve(
        lambda question, nth: (429, {"Retry-After": "0.5"}) if len(server.times) == 1 else trace_for(question)
    )
    gather(teacher_at(server, concurrency=2))
    first, *others = sorted(server.times)
    late = [moment - first for moment in others[1:]]  # one may have been under way
    assert min(late) >= 0.45


def test_a_date_may_say_when_to_come_back(serve):
    from email.utils import formatdate

    soon = formatdate(time.time() + 1, usegmt=True)
    server = serve(lambda question, nth: (503, {"Retry-After": soon}) if nth == 1 else trace_for(question))
    assert gather(teacher_at(server), PROBLEMS[:1])[0].finish == "stop"


def test_the_pace_keeps_to_requests_and_tokens_a_minute():
    async def starts(pace, tokens):
        found = []
        for _ in range(4):
            await pace.wait()
            found.append(time.monotonic())
            pace.spent(tokens)
        return found[-1] - found[0]

    assert asyncio.run(starts(Pace(requests_per_minute=600), 0)) >= 0.28
    assert asyncio.run(starts(Pace(tokens_per_minute=60_000), 100)) >= 0.28


def test_an_endpoint_that_does_not_stream(serve):
    server = serve(lambda question, nth: "whole:<think>let me see</think>\n" + trace_for(question))
    (reply,) = gather(teacher_at(server), PROBLEMS[1:2])
    assert reply.text == trace_for("1+1?") and reply.completion_tokens == 50


def test_thoughts_are_not_kept():
    assert without_thoughts("<think>a\nb</think>\n\nc") == "c" and without_thoughts("a </think> c") == "c"
    assert without_thoughts("<think> never ends") == "" and without_thoughts("no thoughts") == "no thoughts"


PROBLEM = PROBLEMS[2]
TWO = ["add two to two and get four", "double the number two instead"]


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        (trace_for("2+2?"), "stop", ""),
        (trace_for("2+2?").replace("</Parallel>\n<Summary>", "</Parallel>\n\n\n<Summary>"), "stop", ""),
        (trace_for("2+2?", answer=5), "stop", "wrong"),
        (trace_for("2+2?").replace("Final Answer:", "So it is"), "stop", "no_answer"),
        ("2+2=4\nFinal Answer: 4", "stop", "no_block"),
        (trace_for("2+2?").replace("</Path><Path>", "</Path> and <Path>"), "stop", "text_between_paths"),
        (trace_for("2+2?").replace("</Summary>", ""), "stop", "unclosed_summary"),
        (trace_for("2+2?").replace("Parallel>", "parallel>"), "stop", "stray_path"),
        (render_block([TWO[0]] * 2, "s") + "\nFinal Answer: 4", "stop", "duplicate_path"),
        (render_block([TWO[0], TWO[0] + "!"], "s") + "\nFinal Answer: 4", "stop", ""),
        (render_block(["the same long way to say that it is four", "the same long way to say that it is four ."], "s")
         + "\nFinal Answer: 4", "stop", "similar_paths"),
        (trace_for("2+2?"), "length", "truncated"),
        ("", "stop", "empty"),
        ("", "filter", "withheld"),
        ("", "error", FAILED),
    ],
)  # fmt: skip
def test_replies_are_judged_by_form_answer_and_distinctness(text, finish, reason):
    entry = judge(Reply(Ask(PROBLEM, 0, TEMPLATE), text, finish), GSM8K, Plan(TEMPLATE))
    assert entry.reason == reason


def test_the_papers_check_is_told_apart_from_ours():
    """Right tags and a wrong answer pass there; no block at all passes nowhere."""
    wrong, none = (
        judge(Reply(Ask(PROBLEM, 0, TEMPLATE), text, "stop"), GSM8K, Plan(TEMPLATE))
        for text in (trace_for("2+2?", answer=5), "Final Answer: 4")
    )
    assert (wrong.paper_valid, wrong.num_blocks, wrong.num_paths, none.paper_valid) == (True, 1, 2, False)


def test_most_alike_paths():
    def alike(*paths):
        return most_alike(parse_text(render_block(paths, "s")))

    assert alike("a b c", "a b c") == 1 and alike("a b c", "d e f") == 0
    assert alike("a b c d", "x", "a b c e") == alike("a b c e", "a b c d", "x") == pytest.approx(2 / 4)
    assert most_alike(parse_text("no block")) == 0


def mixed(question, nth):
    """A teacher that is right on even numbers, wrong on 1, silent about 3, and writes no block for 5."""
    number = int(question.split("+")[0])
    special = {1: trace_for(question, answer=7), 3: 500, 5: "Final Answer: 10", 7: "too long", 9: "withheld"}
    return special.get(number, trace_for(question))


def test_yield_is_told_by_reason(serve, tmp_path):
    plan = Plan(TEMPLATE, price_in=1.0, price_out=10.0)
    tally = collected(serve(mixed), tmp_path / "j.jsonl", plan=plan, tries=2)
    report = tally.report()
    assert report["reasons"] == {"kept": 7, "wrong": 1, "no_block": 1, "truncated": 1, "withheld": 1, FAILED: 1}
    assert (report["problems_answered"], report["problems_with_trace"]) == (11, 7)
    assert report["yield"] == pytest.approx(7 / 11) and report["paper_yield"] == pytest.approx(8 / 11)
    assert report["retries"] == {"500": 1}
    counted = 9 * (100 * 1.0 + 50 * 10.0) / 1e6
    assert report["cost"] == pytest.approx(counted, rel=0.1) and tally.tokens_per_second > 0


def test_a_run_goes_on_where_it_stopped(serve, tmp_path):
    path = tmp_path / "j.jsonl"
    first = serve(mixed)
    collected(first, path, PROBLEMS[:6], tries=1)
    path.write_bytes(path.read_bytes() + b'{"problem_id": "p6", "att')  # killed while it wrote
    second = serve(good)
    tally = collected(second, path)
    assert set(second.seen) == {p.question for p in PROBLEMS[6:]} | {"3+3?"}  # judged ones are not asked again
    assert len(tally.kept) == 10 and tally.reasons["wrong"] == 1
    third = serve(good)
    assert collected(third, path).report()["problems_with_trace"] == 10 and not third.seen
    with pytest.raises(ValueError, match=r"made with other settings .*teacher = 'teacher'"):
        Journal(path, {"teacher": "another"})
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="not a journal"):
        Journal(path, {"teacher": "teacher"})


def test_more_tries_ask_only_for_what_is_missing(serve, tmp_path):
    server = serve(lambda question, nth: mixed(question, nth) if nth == 1 else trace_for(question))
    tally = collected(server, tmp_path / "j.jsonl", plan=Plan(TEMPLATE, tries=3))
    assert len(tally.kept) == len(PROBLEMS) and server.seen["2+2?"] == 1 and server.seen["1+1?"] == 2


def test_the_budget_stops_asking(serve, tmp_path):
    server = serve(good)
    plan = Plan(TEMPLATE, price_out=1e6, max_cost=150.0)  # 50 a reply
    tally = collected(server, tmp_path / "j.jsonl", plan=plan, concurrency=1)
    assert 3 <= len(tally.entries) <= 4 and len(server.bodies) <= 4


def test_a_teacher_that_never_answers_ends_the_run(serve, tmp_path):
    with pytest.raises(TeacherError, match=r"no reply to 10 asks.*refused: 400"):
        collected(serve(lambda question, nth: 400), tmp_path / "j.jsonl")


def test_traces_are_parquet_with_provenance_and_feed_the_cold_start(serve, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    tally = collected(serve(mixed), tmp_path / "j.jsonl", tries=1)
    file = tmp_path / "traces.parquet"
    assert write_traces(tally, PROBLEMS, "teacher", file, {"template": TEMPLATE}) == 7
    table = pq.read_table(file)
    assert table.column("teacher").to_pylist() == ["teacher"] * 7
    kept = json.loads(table.schema.metadata[b"parallel_r1"])
    assert kept["template"] == TEMPLATE and kept["yield"]["problems_with_trace"] == 7
    problems = load_task(DataSource(task="gsm8k", path=str(file))).problems("train", "easy", 99, 0)
    assert len(problems) == 7 and all(p.data["trace"] == trace_for(p.question) for p in problems)
    assert write_traces(tally, [], "teacher", file, {}) == 0 and pq.read_table(file).num_rows == 0


@pytest.mark.slow
def test_a_local_model_as_teacher(tmp_path):
    """The built-in cold-started model writes traces of the task it knows, in its own prompt."""
    from parallel_r1.coldstart.teacher_local import LocalTeacher
    from parallel_r1.models.load import load_model

    loaded = load_model("tiny-parallel")
    assert loaded.settings is not None
    task = load_task("countdown")
    problems = task.problems("train", "easy", 8, 0)
    teacher = LocalTeacher(loaded, "tiny-parallel", loaded.settings.engine, loaded.settings.variant, seed=0, batch=4)
    journal = Journal(tmp_path / "j.jsonl", {})
    plan = Plan(loaded.settings.prompt.parallel, tries=2, max_similarity=1.0)
    tally = asyncio.run(collect(teacher, task, problems, plan, journal))
    journal.close()
    assert len(tally.answered) == 8 and tally.kept and sum(tally.reasons.values()) <= 16
    assert all(parse_text(e.text).well_formed for e in tally.entries if not e.reason)
