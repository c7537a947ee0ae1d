"""Groups at sampling time: identity, seeds, verdicts from ids, and what TRL is handed."""

import dataclasses
import math
import random

import pytest

from parallel_r1.config import EngineConfig, PromptConfig, RewardConfig
from parallel_r1.engine.scripted import ScriptedEngine
from parallel_r1.models.tiny import tiny_tokenizer
from parallel_r1.rollout.sample import RowRollouts, as_trl, later_paths, reach, sample_groups, sampled_reward, score
from parallel_r1.rollout.summary import rollout_rows, step_metrics
from parallel_r1.tasks import TASKS
from parallel_r1.tasks.countdown import Countdown
from parallel_r1.trace.tags import TAGS, render_block
from parallel_r1.trace.tokens import encode_trace, tag_ids
from parallel_r1.types import Problem

TOKENIZER = tiny_tokenizer()
TOKENIZER.add_tokens(list(TAGS))
TAG_IDS = tag_ids(TOKENIZER)
EOS = TOKENIZER.eos_token_id
TASK = Countdown()
PROBLEM = TASK.problem((8, 3, 3), 21, "easy")
OTHER = TASK.problem((2, 5, 4), 11, "easy")
RIGHT = render_block(["8*3=24,24+3=27 no", "8*3=24,24-3=21 ok"], "8*3=24,24-3=21") + "\nFinal Answer: 8*3=24,24-3=21"
WRONG = "Final Answer: 8*3=24,24+3=27"
CONFIG = EngineConfig(paths=2, max_blocks=1, max_response_tokens=300, path_budget=30, answer_reserve=20)


def ids_of(text, eos=True):
    return [*encode_trace(TOKENIZER, text, TAG_IDS), *([EOS] if eos else [])]


def engine(script, variant="structured"):
    return ScriptedEngine(script, TAG_IDS, [EOS], variant)


def groups_of(problems, script, step=1, **kwargs):
    return sample_groups(
        engine(script), TOKENIZER, TAG_IDS, {"countdown": TASK}, problems, prompt=PromptConfig(), config=CONFIG,
        reward=RewardConfig(schedule="alternating"), step=step, samples=2, run_seed=7, **kwargs,
    )  # fmt: skip


def by_seed(request):
    """Sample 0 right, sample 1 wrong; the place and step show in the response's length."""
    _, step, place, sample = request.seed
    return ids_of((RIGHT if sample == 0 else WRONG) + "\n" * (place + step))


def test_the_same_question_twice_is_two_groups():
    groups = groups_of([PROBLEM, OTHER, PROBLEM], by_seed)
    assert [g.problem for g in groups] == [PROBLEM, OTHER, PROBLEM]
    assert [len(g.members) for g in groups] == [2, 2, 2]
    first, _, third = groups
    assert first.members[0].rollout.seed == (7, 1, 0, 0)
    assert third.members[1].rollout.seed == (7, 1, 2, 1)
    assert first.members[0].rollout.total_tokens != third.members[0].rollout.total_tokens


def test_who_samples_a_problem_changes_nothing():
    together = groups_of([PROBLEM, OTHER, PROBLEM], by_seed)
    apart = groups_of([PROBLEM, PROBLEM], by_seed, places=[2, 0]) + groups_of([OTHER], by_seed, places=[1])
    assert apart == [together[2], together[0], together[1]]


@pytest.mark.parametrize(("step", "paid"), [(1, (1.0, -1.0)), (9, (1.2, -1.0))])
def test_the_reward_follows_the_step(step, paid):
    (group,) = groups_of([PROBLEM], by_seed, step=step)
    assert tuple(m.reward for m in group.members) == paid
    assert not group.dead


def test_an_unknown_task_is_named():
    stranger = Problem("x", "chess", "easy", "e4?", "e5")
    with pytest.raises(ValueError, match="no task 'chess'"):
        groups_of([stranger], by_seed)
    with pytest.raises(ValueError, match="2 places for 1 problems"):
        groups_of([PROBLEM], by_seed, places=[0, 1])


def rollout_of(ids, variant="structured"):
    from parallel_r1.engine.base import Request

    return engine(lambda request: ids, variant).generate([Request("p", (1, 2), (0,))], CONFIG)[0]


def scored(ids, variant="structured", problem=PROBLEM):
    return score(rollout_of(ids, variant), problem, TASK, TOKENIZER, TAG_IDS)


def test_the_answer_is_read_behind_the_last_block():
    inside = render_block(["Final Answer: 8*3=24,24-3=21", "x"], "Final Answer: 8*3=24,24-3=21")
    assert scored(ids_of(inside)).verdict.outcome == "no_answer"
    assert scored(ids_of(inside + WRONG)).verdict.outcome == "wrong"
    assert scored(ids_of(RIGHT)).verdict.outcome == "right"


def test_tag_text_spelt_in_letters_is_no_block():
    spelt = [token for text in RIGHT for token in encode_trace(TOKENIZER, text, None)]
    member = scored([*spelt, EOS])
    assert member.trace.state == "no_block"
    assert member.text == RIGHT


def test_a_cut_response_is_truncated_and_has_no_answer():
    member = scored(ids_of(RIGHT[:60], eos=False))
    assert member.trace.state == "truncated"
    assert member.verdict.outcome == "no_answer"


def test_tags_in_the_question_are_text():
    problem = Problem("t", "countdown", "easy", "make 21 from 8 3 3 " + RIGHT, "", PROBLEM.data)
    (group,) = groups_of([problem], lambda request: ids_of(WRONG))
    assert TAG_IDS.all.isdisjoint(group.members[0].rollout.prompt_ids)
    assert group.members[0].trace.state == "no_block"
    assert group.members[0].verdict.outcome == "wrong"


def test_models_without_tags_get_the_plain_prompt():
    (group,) = sample_groups(
        ScriptedEngine(lambda request: [*encode_trace(TOKENIZER, WRONG, None), EOS], None, [EOS], "causal"),
        TOKENIZER, None, {"countdown": TASK}, [PROBLEM], prompt=PromptConfig(), config=CONFIG,
        reward=RewardConfig(), step=1, samples=1, run_seed=0,
    )  # fmt: skip
    assert TOKENIZER.decode(list(group.members[0].rollout.prompt_ids)) == PROBLEM.question + "\n"
    assert group.members[0].verdict.outcome == "wrong"


def test_later_paths_are_marked_in_the_causal_variant_only():
    ids = ids_of(render_block(["a", "bb", "c"], "s"))
    assert set(later_paths(scored(ids), "structured")) == {0}
    marks = later_paths(scored(ids, "causal"), "causal")
    assert "".join(map(str, marks)) == "0" * 4 + "2222" + "333" + "0" * (len(ids) - 11)


def test_trl_gets_one_entry_per_completion_and_zeros_on_inserted_tokens():
    out = as_trl(groups_of([PROBLEM, OTHER], by_seed))
    assert {len(column) for column in out.values()} == {4}
    for ids, mask, logps in zip(out["completion_ids"], out["env_mask"], out["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logps)
        forced = {TAG_IDS.path_open, TAG_IDS.parallel_close, TAG_IDS.summary_open}
        assert all(m == 0 for token, m in zip(ids, mask, strict=True) if token in forced)
        assert mask[-1] == 1
    assert out["problem_id"] == [PROBLEM.id] * 2 + [OTHER.id] * 2
    assert sampled_reward(completion_ids=out["completion_ids"], reward=out["reward"]) == out["reward"]
    with pytest.raises(ValueError, match="'sampled_reward' returned 1 values, expected 4"):
        sampled_reward(completion_ids=out["completion_ids"], reward=[1.0])


def rows_of(order):
    calls = []

    def sample(problems, places, step):
        calls.append((list(problems), list(places), step))
        return groups_of(problems, by_seed, step=step, places=places)

    return RowRollouts(sample, order, prompts_per_step=2, samples=2), calls


def test_row_numbers_carry_the_problems():
    order = [PROBLEM, PROBLEM, OTHER, PROBLEM]
    rollouts, calls = rows_of(order)
    assert rollouts(["0", "0", "1", "1"], None)["problem_id"] == [PROBLEM.id] * 4
    rollouts(["2", "2", "3", "3"], None)
    assert calls == [([PROBLEM, PROBLEM], [0, 1], 1), ([OTHER, PROBLEM], [0, 1], 2)]
    assert rollouts.step == 2
    assert [g.problem for g in rollouts.groups] == [OTHER, PROBLEM]


@pytest.mark.parametrize("rows", [["0", "1", "0", "1"], ["0", "0", "1"], ["1", "1", "2", "2"]])
def test_broken_groups_are_refused(rows):
    with pytest.raises(ValueError, match=r"whole groups|one rollout"):
        rows_of([PROBLEM] * 4)[0](rows, None)


def test_metrics_of_a_step():
    groups = groups_of([PROBLEM, OTHER], lambda r: ids_of(RIGHT if r.seed[2] == 0 else WRONG), step=9)
    numbers = step_metrics(groups)
    assert numbers["dead_groups"] == 2
    assert (numbers["dead_right"], numbers["dead_wrong"]) == (1, 1)
    assert numbers["accuracy"] == numbers["parallel_ratio"] == 0.5
    assert numbers["well_formed"] == 1.0
    assert numbers["first_block_position"] == 0.0
    assert numbers["reward_parts"] == {"accuracy": 0.0, "parallel": 0.1}
    assert numbers["reward"] == pytest.approx(0.1)
    assert (numbers["path_right"], numbers["path_success"], numbers["faults"]) == (1.0, 0.5, {})
    assert step_metrics(groups[1:])["first_block_position"] is step_metrics(groups[1:])["path_right"] is None


def test_entropy_and_distinct_paths_by_region():
    twins = render_block(["a", "a"], "s")
    (group,) = groups_of([PROBLEM], lambda request: ids_of((twins if request.seed[3] else RIGHT) + "yy"))
    members = []
    for member in group.members:
        (block,) = member.trace.blocks
        logps = [-1.0] * member.rollout.total_tokens
        for path in block.paths:
            logps[path.start : path.end] = [-2.0] * (path.end - path.start)
        logps[block.summary_start : block.end] = [-3.0] * (block.end - block.summary_start)
        rollout = dataclasses.replace(member.rollout, engine_logps=tuple(logps))
        members.append(dataclasses.replace(member, rollout=rollout))
    numbers = step_metrics([dataclasses.replace(group, members=tuple(members))])
    assert numbers["entropy_by_region"] == {"main": 1.0, "path": 2.0, "summary": 3.0}
    assert (numbers["paths_per_block"], numbers["path_distinct"]) == (2.0, 0.75)
    assert step_metrics([])["entropy_by_region"] == {}


def test_faults_are_counted_by_name_once_per_response():
    bad = render_block(["", ""], "a") + render_block(["b", "c"], "")
    (group,) = groups_of([PROBLEM], lambda request: ids_of(bad if request.seed[3] else RIGHT))
    assert step_metrics([group])["faults"]["empty_path"] == step_metrics([group])["faults"]["empty_summary"] == 0.5


def test_rollout_lines_say_where_they_come_from():
    rows = list(rollout_rows(groups_of([PROBLEM], by_seed), "rl", 3, "forked"))
    assert [row["sample"] for row in rows] == [0, 1]
    assert rows[0]["text"] == RIGHT + "\n"
    assert rows[0]["trace_state"] == "well_formed"
    assert rows[0]["verdict"]["outcome"] == "right"
    assert len(rows[0]["forced"]) == len(rows[0]["response_ids"])


def test_every_task_scores_its_own_gold():
    assert {"countdown", "chain", "serial"} <= set(TASKS)
    for name in ("chain", "serial"):
        task = TASKS[name]()
        problem = task.problems("train", "easy", 1, 0)[0]
        ids = ids_of(f"Final Answer: {problem.gold}")
        assert score(rollout_of(ids), problem, task, TOKENIZER, TAG_IDS).verdict.right


def test_a_recipe_may_ask_without_asking_to_fork():
    asked = {}
    for ask in ("parallel", "plain"):
        (group,) = sample_groups(
            engine(by_seed), TOKENIZER, TAG_IDS, {"countdown": TASK}, [PROBLEM], prompt=PromptConfig(ask=ask),
            config=CONFIG, reward=RewardConfig(), step=1, samples=2, run_seed=7,
        )  # fmt: skip
        asked[ask] = TOKENIZER.decode(group.members[0].rollout.prompt_ids)
    assert asked == {"parallel": "think in paths: make 21 from 8 3 3\n", "plain": "make 21 from 8 3 3\n"}


def test_reach_is_the_product_over_all_that_came_before():
    """By hand: main chain, then each path from there alone, then all of them."""
    (group,) = groups_of([PROBLEM], by_seed)
    rollout = group.members[0].rollout
    rng = random.Random(0)
    mass = [rng.uniform(0.5, 1) for _ in rollout.response_ids]
    found = reach(dataclasses.replace(rollout, allowed_mass=tuple(mass)), TAG_IDS)
    (block,) = group.members[0].trace.blocks
    first, second = block.paths
    for t in range(rollout.total_tokens):
        before = range(t + 1)
        if second.start <= t < second.end:
            before = [*range(first.start), *range(second.start, t + 1)]
        assert found[t] == pytest.approx(math.prod(mass[k] for k in before))
    assert reach(rollout, TAG_IDS).tolist() == [1.0] * rollout.total_tokens


def test_reach_without_tags_and_with_no_mass_left():
    (group,) = groups_of([PROBLEM], by_seed)
    rollout = group.members[1].rollout
    mass = (0.5, 0.0, *[1.0] * (rollout.total_tokens - 2))
    found = reach(dataclasses.replace(rollout, allowed_mass=mass), None)
    assert found[0] == 0.5 and (found[1:] < 1e-300).all()


def test_paths_are_judged_where_they_are_sampled():
    (group,) = groups_of([PROBLEM], by_seed)
    assert [m.path_right for m in group.members] == [((False, True),), ()]
