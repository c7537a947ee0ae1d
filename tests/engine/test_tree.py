"""The tree engine against the plain model: one full forward pass over prompt + response under the hook."""

import dataclasses

import pytest
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.trace.tags import parse_ids

GAP = 1e-4


def requests(num=6, step=0):
    return [Request(f"p{i}", tuple(range(20 + i, 32 + 2 * i)), (0, step, i, 0)) for i in range(num)]


def config(**changes):
    base = {"paths": 3, "max_blocks": 3, "max_response_tokens": 110, "path_budget": 12, "answer_reserve": 12}
    return EngineConfig(**{**base, **changes})


@pytest.fixture(scope="module")
def parts(make_model):
    return make_model()


def engine_of(parts, variant="structured", tag_rate=0.2, stop=None):
    model, tokenizer, tags = parts
    return TreeEngine(model, tokenizer, tags, (tokenizer.eos_token_id,) if stop is None else stop, variant, tag_rate)


def plain_logps(parts, rollout, variant, temperature=1.0):
    model, tokenizer, tags = parts
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    with install_layout_hook(model, tags, variant), torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    scores = (logits[:, : len(tokenizer)] / temperature).log_softmax(-1)[len(rollout.prompt_ids) - 1 : -1]
    return scores.gather(1, torch.tensor(rollout.response_ids)[:, None])[:, 0]


def gaps(parts, rollout, variant, temperature=1.0):
    """|engine - plain| per token, 0 where forced."""
    gap = (torch.tensor(rollout.engine_logps) - plain_logps(parts, rollout, variant, temperature)).abs()
    return gap * ~torch.tensor(rollout.forced)


def later_paths(rollout, tags):
    blocks = parse_ids(rollout.response_ids, tags).blocks
    return [i for block in blocks for span in block.paths[1:] for i in range(span.start, span.end)]


@pytest.mark.parametrize("paths", [1, 2, 3, 8])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_structured_rollouts_are_what_the_plain_model_scores(make_model, family, paths):
    parts = make_model(family)
    rollouts = engine_of(parts).generate(requests(), config(paths=paths))
    assert {r.num_blocks for r in rollouts} & {1, 2, 3}
    for rollout in rollouts:
        assert gaps(parts, rollout, "structured").max() < GAP


@pytest.mark.parametrize("paths", [1, 2, 3, 8])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_causal_rollouts_agree_outside_of_later_paths(make_model, family, paths):
    parts = make_model(family)
    rollouts = engine_of(parts, "causal").generate(requests(), config(paths=paths))
    assert max(r.num_blocks for r in rollouts) > 1
    later_gap = 0.0
    for rollout in rollouts:
        gap, later = gaps(parts, rollout, "causal"), later_paths(rollout, parts[2])
        later_gap = max([later_gap, *gap[later].tolist()])
        gap[later] = 0
        assert gap.max() < GAP
    assert (later_gap > 0.01) == (paths > 1)  # sampled apart, scored joined


def test_later_causal_paths_are_sampled_under_the_decoding_layout(parts):
    """Cut each row inside a path: there the decoding phase of the rule is what the engine did."""
    model, _, tags = parts
    rollout = engine_of(parts, "causal").generate(requests(1), config(max_blocks=1))[0]
    block = parse_ids(rollout.response_ids, tags).blocks[0]
    ids = rollout.prompt_ids + rollout.response_ids[: block.paths[-1].end]
    with install_layout_hook(model, tags, "causal", "decoding"), torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    start = len(rollout.prompt_ids)
    for span in block.paths:
        for i in range(span.inner_start, span.end):
            if not rollout.forced[i]:
                plain = logits[start + i - 1, ids[start + i]].item()
                assert abs(plain - rollout.engine_logps[i]) < GAP


OPTIONS = {
    "auto": {"paths": "auto", "counted": True, "max_paths": 6, "max_response_tokens": 150},
    "counted": {"counted": True},
    "early join": {"early_join": 0.5, "paths": 4, "max_response_tokens": 150},
    "forced fork": {"force_fork": True},
    "cold": {"temperature": 0.0},
    "warm and cut": {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
}
SHAPES = {
    "gemma3": ("gemma3", {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}),
    "all layers slide": ("gemma3", {"sliding_window": 7, "layer_types": ["sliding_attention"] * 2}),
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "one key head": ("qwen2", {"num_key_value_heads": 1}),
    "a key head per query head": ("llama", {"num_key_value_heads": 4}),
}


def assert_exact(parts, rollouts, variant, temperature=1.0):
    for rollout in rollouts:
        gap = gaps(parts, rollout, variant, temperature)
        gap[later_paths(rollout, parts[2]) if variant == "causal" else []] = 0
        assert gap.max() < GAP


@pytest.mark.parametrize("variant", ["causal", "structured"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_samples_what_the_plain_model_scores(parts, option, variant):
    settings = config(**OPTIONS[option])
    rollouts = engine_of(parts, variant).generate(requests(8), settings)
    assert max(r.num_blocks for r in rollouts) > 0 or option == "cold"
    assert_exact(parts, rollouts, variant, settings.temperature or 1.0)


@pytest.mark.parametrize("variant", ["causal", "structured"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_causal_model_is_decoded_as_it_is_scored(make_model, shape, variant):
    family, overrides = SHAPES[shape]
    parts = make_model(family, **overrides)
    rollouts = engine_of(parts, variant).generate(requests(4), config())
    assert max(r.num_blocks for r in rollouts) > 1
    assert_exact(parts, rollouts, variant)


def test_bf16_stays_near(make_model):
    parts = make_model()
    parts[0].to(torch.bfloat16)
    rollouts = engine_of(parts).generate(requests(8), config())
    gap = torch.cat([gaps(parts, rollout, "structured")[~torch.tensor(rollout.forced)] for rollout in rollouts])
    assert gap.mean() < 0.02


def test_the_model_chooses_the_width_by_sampled_tokens(parts):
    tags = parts[2]
    rollouts = engine_of(parts).generate(requests(12), config(**OPTIONS["auto"]))
    widths = set()
    for rollout in rollouts:
        for block in parse_ids(rollout.response_ids, tags).blocks:
            count = rollout.response_ids[block.start + 1]
            assert tags.counts.index(count) + 1 == len(block.paths) and not rollout.forced[block.start + 1]
            widths.add(len(block.paths))
    assert len(widths) > 2 and max(widths) <= 6


def test_early_join_marks_what_it_cuts(parts):
    rollouts = engine_of(parts, tag_rate=0.3).generate(requests(12), config(**OPTIONS["early join"]))
    cut = 0
    for rollout in rollouts:
        blocks = parse_ids(rollout.response_ids, parts[2]).blocks
        for number, path in rollout.cut_paths:
            assert rollout.forced[blocks[number].paths[path].end - 1]
        by_itself = [len(b.paths) - sum(n == i for n, _ in rollout.cut_paths) for i, b in enumerate(blocks)]
        assert all(num >= 2 for num in by_itself) or rollout.truncated
        cut += len(rollout.cut_paths)
    assert cut


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_joins_read_nothing_twice_but_later_causal_paths(parts, variant):
    engine = engine_of(parts, variant)
    group = [dataclasses.replace(requests(2)[i % 2], seed=(0, 0, i, i)) for i in range(6)]
    rollouts = engine.generate(group, config())
    done = engine.counters
    later = sum(len(later_paths(r, parts[2])) for r in rollouts)
    num_later = sum(len(b.paths) - 1 for r in rollouts for b in parse_ids(r.response_ids, parts[2]).blocks)
    assert later and done.sampled_tokens == sum(not f for r in rollouts for f in r.forced)
    assert done.prompt_tokens == sum(len(request.prompt_ids) for request in group[:2])  # once per group
    # Every token once, but the last one of a response, which nothing follows.
    assert done.fed_tokens == done.prompt_tokens + done.reread_tokens + sum(r.total_tokens - 1 for r in rollouts)
    if variant == "structured":
        assert done.reread_tokens == 0
    else:  # a path's last token may still have been unread when the block closed
        assert later - num_later <= done.reread_tokens <= later


def test_a_late_sample_takes_its_prompt_from_a_row_in_flight(parts):
    engine = engine_of(parts)
    group = [dataclasses.replace(requests(1)[0], seed=(0, 0, 0, i)) for i in range(2)]
    expected = engine.generate(group, config())
    with engine.session(config()) as session:
        session.submit(group[0])
        for _ in range(12):
            session.step()
        session.submit(group[1])
        found = {}
        while session.busy:
            found.update((done.ticket, done.rollout) for done in session.step())
        assert session.counters.prompt_tokens == len(group[0].prompt_ids) + 1
    assert [found[i].response_ids for i in range(2)] == [r.response_ids for r in expected]
    assert_exact(parts, found.values(), "structured")


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_logits_that_are_not_finite_stop_their_row_alone(make_model, variant):
    parts = make_model()
    model = parts[0]
    bad = parts[1].eos_token_id  # no response goes on after it, so only the prompt can bring it in
    with torch.no_grad():
        model.get_input_embeddings().weight[bad] = torch.nan
    poisoned = Request("poisoned", (20, bad, 21), (9,))
    engine = engine_of(parts, variant)
    expected = engine.generate(requests(6)[1:], config(max_rows=2))
    with pytest.warns(UserWarning, match="1 of 6 rollouts stopped"):
        rollouts = engine.generate([poisoned, *requests(6)[1:]], config(max_rows=2))
    assert [r.response_ids for r in rollouts[1:]] == [r.response_ids for r in expected]
    assert rollouts[0].stop_reason == "error" and "'poisoned'" in rollouts[0].error
    assert "not finite" in rollouts[0].error and "float32" in rollouts[0].error
    with pytest.raises(ValueError, match=r"'poisoned'.*not finite"):
        engine.generate([poisoned], config())


def test_memory_limits_the_rows_and_is_worked_out(parts):
    engine = engine_of(parts)
    expected = engine.generate(requests(6), config())
    # 2 layers x (keys, values) x 2 heads x 8 numbers x 4 bytes, and 8 bytes of the mask, a token.
    row = 264 * 192
    with engine.session(config(memory_gb=2.5 * row / 2**30)) as session:
        for request in requests(6):
            session.submit(request)
        found = {}
        while session.busy:
            found.update((done.ticket, done.rollout) for done in session.step())
            assert session.num_active <= 3 and session.passes.cache.num_bytes() <= 2.5 * row
    assert [found[i].response_ids for i in range(6)] == [r.response_ids for r in expected]
    assert "0.3 KiB a token" in session.plan.describe(142, 256) and "hold 2 rows" in session.plan.describe(142, 256)
    with pytest.raises(ValueError, match=r"'p0'.*hold 0 rows.*raise engine.memory_gb"):
        engine.generate(requests(1), config(memory_gb=row / 2**31))


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_batching_changes_no_rollout(parts, variant):
    engine = engine_of(parts, variant, stop=range(15, 25))
    together = engine.generate(requests(9), config())
    assert len({r.total_tokens for r in together}) > 5 and max(r.num_blocks for r in together) > 1
    for max_rows in (1, 2, 4):
        apart = engine.generate(requests(9), config(max_rows=max_rows))
        assert [r.response_ids for r in apart] == [r.response_ids for r in together]
        assert [r.problem_id for r in apart] == [f"p{i}" for i in range(9)]
    assert [r.response_ids for r in engine.generate(requests(9)[::-1], config())[::-1]] == [
        r.response_ids for r in together
    ]


def test_seeds_decide(parts):
    engine = engine_of(parts)
    first, again, other = (engine.generate(requests(4, step), config()) for step in (0, 0, 1))
    assert first == again
    assert all(a.response_ids != b.response_ids for a, b in zip(first, other, strict=True))
    twins = [dataclasses.replace(requests(1)[0], seed=(0, 0, 0, sample)) for sample in range(3)]
    assert len({r.response_ids for r in engine.generate(twins, config())}) == 3


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_samples_that_share_a_prompt_are_scored_like_any_other(parts, variant):
    group = [dataclasses.replace(requests(2)[i % 2], seed=(0, 0, i, i)) for i in range(6)]
    engine = engine_of(parts, variant)
    rollouts = engine.generate(group, config())
    alone = [engine.generate([request], config())[0] for request in group]
    assert [r.response_ids for r in rollouts] == [r.response_ids for r in alone]
    for rollout in rollouts:
        gap = gaps(parts, rollout, variant)
        gap[later_paths(rollout, parts[2]) if variant == "causal" else []] = 0
        assert gap.max() < GAP


def test_a_path_does_not_know_how_many_siblings_it_has(parts):
    engine = engine_of(parts, tag_rate=0.3)
    first = {}
    for paths in (2, 4):
        for rollout in engine.generate(requests(), config(paths=paths, max_blocks=1, max_response_tokens=200)):
            blocks = parse_ids(rollout.response_ids, parts[2]).blocks
            first.setdefault(rollout.problem_id, []).append([s.content for s in blocks[0].paths[:2]])
    assert all(two == four for two, four in first.values())


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_rollouts_are_well_formed_within_budget_and_marked(parts, variant):
    tags = parts[2]
    for rollout in engine_of(parts, variant).generate(requests(12), config()):
        trace = parse_ids(rollout.response_ids, tags, truncated=rollout.stop_reason == "length")
        assert {f.name for f in trace.faults} <= {"empty_path", "empty_summary", "duplicate_path", "truncated"}
        assert rollout.total_tokens <= 110 and len(trace.blocks) == rollout.num_blocks <= 3
        assert all(len(b.paths) == 3 for b in trace.blocks)
        assert (rollout.stop_reason == "stop") == (rollout.response_ids[-1] == parts[1].eos_token_id)
        inserted = {tags.path_open, tags.parallel_close, tags.summary_open}
        for i, token in enumerate(rollout.response_ids):
            assert rollout.forced[i] or token not in inserted
            if rollout.forced[i]:
                assert token in {*inserted, tags.path_close, *tags.newline}
                assert rollout.engine_logps[i] == rollout.sampling_logps[i] == 0.0 and rollout.allowed_mass[i] == 1.0
            else:
                assert rollout.engine_logps[i] < 0 and 0 < rollout.allowed_mass[i] < 1


def test_numbers_without_tag_rate_and_at_another_temperature(parts):
    rollouts = engine_of(parts, tag_rate=0.0).generate(requests(), config(temperature=0.6))
    for rollout in rollouts:
        assert gaps(parts, rollout, "structured", 0.6).max() < GAP
        engine, sampling, mass, forced = (
            torch.tensor(x)
            for x in (rollout.engine_logps, rollout.sampling_logps, rollout.allowed_mass, rollout.forced)
        )
        assert ((sampling - engine + mass.log()).abs() * ~forced).max() < 1e-4


def test_greedy_is_the_argmax(parts):
    engine = engine_of(parts, tag_rate=0.0, stop=())
    cfg = config(temperature=0.0, mode="sequential", max_response_tokens=10)
    rollout = engine.generate(requests(1), cfg)[0]
    model, _, tags = parts
    ids = list(rollout.prompt_ids)
    for token in rollout.response_ids:
        logits = model(torch.tensor([ids])).logits[0, -1].clone()
        logits[list(tags.all)] = -torch.inf
        assert token == int(logits.argmax())
        ids.append(token)


def test_sequential_and_linear_are_plain_decoding(parts):
    tags = parts[2]
    for rollout in engine_of(parts).generate(requests(), config(mode="sequential")):
        assert not any(rollout.forced) and tags.all.isdisjoint(rollout.response_ids)
        assert rollout.num_blocks == 0 and rollout.critical_tokens == rollout.total_tokens
        assert gaps(parts, rollout, "structured").max() < GAP
    wrote = 0
    for rollout in engine_of(parts, "causal").generate(requests(), config(mode="linear")):
        wrote += len(tags.all & set(rollout.response_ids))
        assert not any(rollout.forced) and set(rollout.allowed_mass) == {1.0}
        assert gaps(parts, rollout, "causal").max() < GAP
    assert wrote
    with pytest.raises(ValueError, match=r"mode = 'linear' needs variant = 'causal'"):
        engine_of(parts).generate(requests(), config(mode="linear"))


def test_constraints_off_keeps_what_the_model_says(parts):
    rollouts = engine_of(parts).generate(requests(20), config(constraints=False))
    tags, eos = parts[2], parts[1].eos_token_id
    faults = {f.name for r in rollouts for f in parse_ids(r.response_ids, tags).faults}
    assert faults - {"empty_path", "empty_summary", "duplicate_path"}
    for rollout in rollouts:
        assert eos not in rollout.response_ids[:-1]
        opened = [i for i, t in enumerate(rollout.response_ids) if t == tags.parallel_open and not rollout.forced[i]]
        assert rollout.num_blocks <= 3 and len(opened) >= rollout.num_blocks


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_new_weights_equal_a_fresh_engine(make_model, variant):
    parts = make_model()
    engine = engine_of(parts, variant)
    before = engine.generate(requests(), config())
    changed = {k: v + 0.05 * torch.randn(v.shape, generator=torch.Generator().manual_seed(7))
               for k, v in parts[0].state_dict().items()}  # fmt: skip
    engine.load_weights(changed)
    after = engine.generate(requests(), config())
    fresh_parts = make_model()
    fresh_parts[0].load_state_dict(changed)
    fresh = engine_of(fresh_parts, variant).generate(requests(), config())
    assert [r.response_ids for r in after] == [r.response_ids for r in fresh] != [r.response_ids for r in before]
    assert {r.weight_version for r in before} == {0} and {r.weight_version for r in after} == {1}
    engine.load_weights()
    assert engine.weight_version == 2


def test_training_mode_is_put_back_and_dropout_is_refused(make_model):
    parts = make_model(attention_dropout=0.1)
    model = parts[0]
    expected = engine_of(parts).generate(requests(2), config())
    model.train()
    with pytest.raises(ValueError, match="dropout > 0"):
        engine_of(parts).generate(requests(2), config())
    parts = make_model()
    model = parts[0].train()
    model.model.layers[0].eval()
    rollouts = engine_of(parts).generate(requests(2), config())
    assert [r.response_ids for r in rollouts] == [r.response_ids for r in expected]
    assert model.training and model.lm_head.training and not model.model.layers[0].training
    assert model.config._attn_implementation == "sdpa"


def test_the_model_is_put_back_after_an_error(make_model):
    parts = make_model()
    parts[0].train()

    def fail(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine_of(parts).generate(requests(2), config(), fail)
    assert parts[0].training and parts[0].config._attn_implementation == "sdpa"


def test_hook_and_engine_live_on_one_model(parts):
    engine = engine_of(parts)
    expected = engine.generate(requests(3), config())
    with install_layout_hook(parts[0], parts[2], "structured"):
        assert engine.generate(requests(3), config()) == expected


def test_events_tell_every_token_once(parts):
    events = []
    rollouts = engine_of(parts).generate(requests(3), config(), events.append)
    for index, rollout in enumerate(rollouts):
        mine = [e for e in events if e.request == index]
        assert sorted(e.token_id for e in mine) == sorted(rollout.response_ids)
        assert sum(e.forced for e in mine) == sum(rollout.forced)
        paths = {}
        for e in mine:
            if e.region.kind == "path":
                paths.setdefault((e.region.block, e.region.path), []).append(e.token_id)
        for number, block in enumerate(parse_ids(rollout.response_ids, parts[2]).blocks):
            for k, span in enumerate(block.paths):
                assert paths[number, k] == list(rollout.response_ids[span.start : span.end])


def test_sliding_windows_are_seen_by_position(make_model):
    kinds = ["full_attention", "sliding_attention"]
    parts = make_model("qwen2", use_sliding_window=True, sliding_window=9, layer_types=kinds)
    for rollout in engine_of(parts).generate(requests(3), config()):
        assert gaps(parts, rollout, "structured").max() < GAP


def test_padded_heads_are_never_sampled(make_model):
    parts = make_model()
    model, tokenizer, _ = parts
    model.resize_token_embeddings(len(tokenizer) + 9, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[len(tokenizer) :] *= 40
    for rollout in engine_of(parts).generate(requests(3), config()):
        assert max(rollout.response_ids) < len(tokenizer)
        assert gaps(parts, rollout, "structured").max() < GAP


@pytest.mark.parametrize(
    ("prompt", "changes", "message"),
    [
        ((), {}, "prompt is empty"),
        ((20,), {"max_response_tokens": 600}, "exceed the model's 512 positions"),
        ((20,), {"path_budget": 2}, r"path_budget = 2"),
    ],
)
def test_bad_requests_are_named(parts, prompt, changes, message):
    with pytest.raises(ValueError, match=message):
        engine_of(parts).generate([Request("bad", prompt, (0,))], config(**changes))


def test_models_without_attention_interface_are_refused(parts):
    model, tokenizer, tags = parts

    class Closed(type(model)):
        _supports_attention_backend = False

    with pytest.raises(ValueError, match="AttentionInterface"):
        TreeEngine(Closed(model.config), tokenizer, tags, (1,), "structured")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"layer_types": ["chunked"] * 2}, "chunked"),
    ],
)
def test_attention_that_cannot_be_decoded_is_refused_at_once(make_model, change, message):
    model, tokenizer, tags = make_model("gemma3")
    for key, value in change.items():
        setattr(model.config, key, value)
    with pytest.raises(ValueError, match=message):
        TreeEngine(model, tokenizer, tags, (1,), "structured")
