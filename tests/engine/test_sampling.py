"""Draws: the right distribution, honest numbers, and uniform numbers that depend on nothing but their name."""

import math

import numpy as np
import pytest
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.rules import Rule
from parallel_r1.engine.sampling import Sampler, seed_key, uniforms
from parallel_r1.trace.tags import TagIds

TAGS = TagIds(2, 3, 4, 5, 6, 7, newline=(8,), counts=tuple(range(20, 28)))
STOP = (1,)
SIZE = 600  # more than two chunks


def sampler(tag_rate=0.0, vocab_size=SIZE):
    return Sampler(vocab_size, TAGS, STOP, torch.device("cpu"), tag_rate)


def draw(logits, rules, uniform, expected=(), tag_rate=0.0, vocab_size=SIZE, **settings):
    return sampler(tag_rate, vocab_size).draw(logits, rules, uniform, expected, EngineConfig(**settings))


def logits_of(rows, seed=0, size=SIZE):
    return torch.randn(1, size, generator=torch.Generator().manual_seed(seed)).mul(2).repeat(rows, 1)


def grid(n):
    return (np.arange(n) + 0.5) / n


def test_draws_follow_the_models_distribution():
    logits = logits_of(8000)
    draws = draw(logits, [Rule.FREE] * len(logits), grid(len(logits)))
    shares = torch.bincount(draws.tokens, minlength=SIZE) / len(logits)
    expected = logits[0].softmax(-1)
    assert (shares - expected).abs().max() < 3e-4
    torch.testing.assert_close(draws.engine_logps, expected.log()[draws.tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(draws.allowed_mass, torch.ones(len(logits)))


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule != Rule.COUNT])
def test_forbidden_ids_are_never_drawn_and_their_mass_is_told(rule):
    logits = logits_of(4000)
    logits[:, :9] += 5  # the special ids hold most of the mass
    draws = draw(logits, [rule] * len(logits), grid(len(logits)))
    free = logits[0].softmax(-1)
    table = sampler()._banned[rule]
    banned = sampler()._special[table].tolist()
    kept = 1 - free[banned].sum()
    assert not set(banned) & set(draws.tokens.tolist())
    torch.testing.assert_close(draws.allowed_mass, kept.expand(len(logits)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        draws.sampling_logps, draws.engine_logps - draws.allowed_mass.log(), atol=1e-4, rtol=1e-4
    )


def test_a_number_of_paths_is_a_number_up_to_the_most():
    logits = logits_of(2000)
    rules = [Rule.COUNT, Rule.MAY_FORK] * 1000
    draws = draw(logits, rules, np.repeat(grid(1000), 2), paths="auto", counted=True, max_paths=3)
    numbers = draws.tokens[::2]
    assert set(numbers.tolist()) == {20, 21, 22} and len(set(draws.tokens[1::2].tolist())) > 50
    free = logits[0].softmax(-1)[20:23]
    shares = torch.bincount(numbers, minlength=SIZE)[20:23] / 1000
    torch.testing.assert_close(shares, free / free.sum(), atol=2e-3, rtol=0)
    torch.testing.assert_close(draws.allowed_mass[::2], free.sum().expand(1000), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(draws.engine_logps[::2], free.log()[numbers - 20], atol=1e-5, rtol=1e-5)


def test_a_tiny_allowed_mass_keeps_its_digits():
    logits = torch.zeros(1, SIZE)
    logits[0, 1] = 200.0  # sure of the end of text, inside a path
    draws = draw(logits, [Rule.PATH], np.array([0.5]))
    assert math.isclose(draws.sampling_logps[0], -math.log(SIZE - 6), rel_tol=1e-5)
    assert math.isclose(draws.engine_logps[0], -200.0, rel_tol=1e-5)


def test_extreme_uniform_numbers_stay_inside():
    logits = torch.full((2, SIZE), -torch.inf)
    logits[:, [300, 301]] = 0.0
    draws = draw(logits, [Rule.PATH] * 2, np.array([0.0, 1 - 2**-53]))
    assert draws.tokens.tolist() == [300, 301]


def test_temperature_scales_both_log_probs_and_zero_is_greedy():
    logits = logits_of(100)
    warm = draw(logits, [Rule.FREE] * 100, grid(100), temperature=0.6)
    expected = (logits / 0.6).log_softmax(-1).gather(1, warm.tokens[:, None])[:, 0]
    torch.testing.assert_close(warm.engine_logps, expected)
    cold = draw(logits, [Rule.FREE] * 100, grid(100), temperature=0.0)
    assert set(cold.tokens.tolist()) == {int(logits[0].argmax())}
    torch.testing.assert_close(cold.engine_logps, logits.log_softmax(-1).amax(-1))
    assert (cold.sampling_logps == 0).all()


def test_top_k_and_top_p_cut_the_sampling_distribution_only():
    logits = logits_of(2000)
    ranked = logits[0].softmax(-1).sort(descending=True)
    few = draw(logits, [Rule.FREE] * 2000, grid(2000), top_k=3)
    assert set(few.tokens.tolist()) == set(ranked.indices[:3].tolist())
    nucleus = int((ranked.values.cumsum(0) < 0.3).sum()) + 1
    some = draw(logits, [Rule.FREE] * 2000, grid(2000), top_p=0.3)
    assert set(some.tokens.tolist()) == set(ranked.indices[:nucleus].tolist())
    mass = ranked.values[:nucleus].sum()
    torch.testing.assert_close(some.sampling_logps, some.engine_logps - mass.log(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(some.allowed_mass, torch.ones(2000))


def test_ids_beyond_the_tokenizer_do_not_exist():
    logits = logits_of(50)
    logits[:, 500:] = 50.0
    draws = draw(logits, [Rule.FREE] * 50, grid(50), vocab_size=500)
    assert draws.tokens.max() < 500
    expected = logits[:, :500].log_softmax(-1).gather(1, draws.tokens[:, None])[:, 0]
    torch.testing.assert_close(draws.engine_logps, expected)


def test_tag_rate_draws_tags_and_tells_the_mixture():
    logits = logits_of(4000)
    draws = draw(logits, [Rule.PATH] * 4000, grid(4000), [TAGS.path_close] * 4000, tag_rate=0.25)
    hit = draws.tokens == TAGS.path_close
    own = logits[0].log_softmax(-1)
    assert abs(hit.float().mean().item() - 0.25 - 0.75 * own[TAGS.path_close].exp().item()) < 2e-3
    torch.testing.assert_close(draws.engine_logps, own[draws.tokens], atol=1e-5, rtol=1e-5)
    q = 0.75 * (draws.engine_logps.exp() / draws.allowed_mass) + 0.25 * hit
    torch.testing.assert_close(draws.sampling_logps, q.log(), atol=1e-4, rtol=1e-4)


def test_uniforms_are_named_by_seed_block_path_and_index():
    keys = [seed_key((0, 1, 2, 3)), seed_key((0, 1, 3, 2)), seed_key((0, 1, 2)), seed_key((0, 1, 2, 3, 0))]
    assert len(set(keys)) == 4
    counters = [(b, p, i) for b in range(3) for p in range(9) for i in range(40)]
    many = np.concatenate([uniforms([key] * len(counters), counters) for key in keys])
    assert len(set(many.tolist())) == len(many) and many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.02 and abs(many.std() - 12**-0.5) < 0.02
    again = uniforms([keys[2], keys[0]], [counters[7], counters[5]])
    assert again.tolist() == [many[2 * len(counters) + 7], many[5]]


def test_no_special_ids_at_all():
    plain = Sampler(SIZE, None, (), torch.device("cpu"))
    draws = plain.draw(logits_of(3), [Rule.MAIN] * 3, grid(3), (), EngineConfig(mode="sequential"))
    assert (draws.allowed_mass == 1).all()
