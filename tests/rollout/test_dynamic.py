"""Dynamic sampling: what comes in for a group without signal, and what is counted."""

from parallel_r1.rollout.dynamic import Replacing
from parallel_r1.types import Group, Problem, Rollout, ScoredRollout, Trace, Verdict

ALL = [Problem(f"p{i}", "parity", "easy", f"q{i}", "even") for i in range(20)]


def group(problem, rewards):
    rollout = Rollout(problem.id, (1,), (2,), (False,), (0.0,), (0.0,), (1.0,), "stop", False, (0,), 0, 0, 1)
    trace = Trace((), (), False, "x", 0, 0, True)
    return Group(problem, tuple(ScoredRollout(rollout, "x", trace, Verdict("right"), r, {}) for r in rewards))


class Sampler:
    """Problems with a number below ``dead`` earn the same in all samples; remembers what it was asked."""

    def __init__(self, dead):
        self.dead, self.calls = dead, []

    def __call__(self, problems, places, step):
        self.calls.append(([p.id for p in problems], list(places), step))
        return [group(p, (1.0, 1.0) if int(p.id[1:]) < self.dead else (1.0, -1.0)) for p in problems]


def replacing(sampler, rounds=3, seed="s"):
    return Replacing(sampler, ALL, rounds, 4, seed, lambda g: not g.dead)


def test_groups_with_signal_stay_and_others_are_drawn_again_at_places_of_their_own():
    sampler = Sampler(dead=10)
    step = replacing(sampler)
    groups = step([ALL[i] for i in (1, 12, 3, 15)], [0, 1, 2, 3], 7)
    assert [g.problem.id for g in groups][1::2] == ["p12", "p15"]
    (_, first, _), (_, second, number), *_ = sampler.calls
    assert first == [0, 1, 2, 3] and second == [4, 6] and number == 7
    asked = sum(len(call[0]) for call in sampler.calls)
    assert len(step.drawn) == asked
    assert step.num_replaced == sum(not g.dead for g in groups) - 2
    # Drawn rounds are limited, and what teaches nothing stays where it was.
    assert len(sampler.calls) <= 4
    for place, g in enumerate(groups):
        assert not g.dead or g.problem.id == ["p1", "", "p3", ""][place]


def test_the_rounds_end_and_a_step_keeps_its_size():
    sampler = Sampler(dead=20)
    step = replacing(sampler, rounds=2)
    groups = step(ALL[:4], [0, 1, 2, 3], 1)
    assert [g.problem for g in groups] == ALL[:4]
    assert (step.num_replaced, len(step.drawn), len(sampler.calls)) == (0, 12, 3)


def test_what_comes_in_depends_on_seed_step_and_place_alone():
    def asked(places, step, seed="s"):
        sampler = Sampler(dead=20)
        replacing(sampler, rounds=1, seed=seed)([ALL[0]] * len(places), places, step)
        return dict(zip(sampler.calls[1][1], sampler.calls[1][0], strict=True))

    together = asked([0, 1, 2, 3], 5)
    apart = asked([0, 1], 5) | asked([2, 3], 5)
    assert together == apart
    assert asked([0, 1, 2, 3], 6) != together != asked([0, 1, 2, 3], 5, "t")
