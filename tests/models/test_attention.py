"""The layout hook: masks, positions, padding, and the traps of transformers that it steps around."""

import pytest
import torch

from parallel_r1.models.attention import backbone, install_layout_hook
from parallel_r1.models.decode import TREE_ATTENTION
from parallel_r1.trace.layout import layout


def trace_of(tags):
    paths = [[tags.path_open, *tokens, tags.path_close] for tokens in ([20, 21, 22], [30], [40, 41])]
    flat = [t for p in paths for t in p]
    return [50, 51, 52, tags.parallel_open, *flat, tags.parallel_close, *tags.newline, tags.summary_open, 60,
            tags.summary_close, 61]  # fmt: skip


def by_hand(model, ids, tags, variant):
    """Logits with the mask and positions of the rule handed over directly, for one row."""
    row = layout(ids, tags, variant)
    mask = torch.where(torch.from_numpy(row.visible()), 0.0, torch.finfo(torch.float32).min)[None, None]
    position = torch.from_numpy(row.position)[None]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), position_ids=position, attention_mask=mask).logits[0]


def hooked(model, tags, variant, **call):
    with install_layout_hook(model, tags, variant), torch.no_grad():
        return model(use_cache=False, **call).logits


@pytest.mark.parametrize("variant", ["causal", "structured"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_hook_equals_the_rule_by_hand(make_model, family, variant):
    model, _, tags = make_model(family)
    ids = trace_of(tags)
    got = hooked(model, tags, variant, input_ids=torch.tensor([ids]))[0]
    torch.testing.assert_close(got, by_hand(model, ids, tags, variant), atol=1e-5, rtol=1e-5)
    plain = model(input_ids=torch.tensor([ids])).logits[0]
    same = torch.allclose(got, plain, atol=1e-3)
    assert same == (variant == "causal")


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_padding_on_either_side_changes_nothing(make_model, variant):
    model, _, tags = make_model()
    rows = [trace_of(tags), trace_of(tags)[:9], [50, 51]]
    width = 30
    for left in (0, 4):
        ids, mask = torch.zeros(3, width, dtype=torch.long), torch.zeros(3, width, dtype=torch.long)
        for b, row in enumerate(rows):
            ids[b, left : left + len(row)] = torch.tensor(row)
            mask[b, left : left + len(row)] = 1
        got = hooked(model, tags, variant, input_ids=ids, attention_mask=mask)
        assert torch.isfinite(got).all()
        for b, row in enumerate(rows):
            expected = by_hand(model, row, tags, variant)
            torch.testing.assert_close(got[b, left : left + len(row)], expected, atol=1e-5, rtol=1e-5)


def test_paths_can_change_places(make_model):
    model, _, tags = make_model()
    a = [tags.path_open, 20, 21, 22, tags.path_close]
    b = [tags.path_open, 30, tags.path_close]
    head, tail = [50, tags.parallel_open], [tags.parallel_close, *tags.newline, tags.summary_open, 60]
    first = hooked(model, tags, "structured", input_ids=torch.tensor([[*head, *a, *b, *tail]]))[0]
    second = hooked(model, tags, "structured", input_ids=torch.tensor([[*head, *b, *a, *tail]]))[0]
    torch.testing.assert_close(first[2:7], second[5:10], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(first[10:], second[10:], atol=1e-5, rtol=1e-5)


def test_positions_of_the_caller_are_replaced(make_model):
    model, _, tags = make_model()
    ids = torch.tensor([trace_of(tags)])
    wrong = torch.arange(100, 100 + ids.shape[1])[None]
    got = hooked(model, tags, "structured", input_ids=ids, position_ids=wrong)
    torch.testing.assert_close(got, hooked(model, tags, "structured", input_ids=ids))


def test_calls_that_know_better_are_left_alone(make_model):
    model, _, tags = make_model()
    ids = trace_of(tags)
    whole = torch.tensor([ids])
    expected = by_hand(model, ids, tags, "structured")
    with install_layout_hook(model, tags, "causal"):
        torch.testing.assert_close(by_hand(model, ids, tags, "structured"), expected)
    plain = model.generate(whole[:, :3], max_new_tokens=5, do_sample=False)
    with install_layout_hook(model, tags, "structured"):
        assert torch.equal(model.generate(whole[:, :3], max_new_tokens=5, do_sample=False), plain)


def test_hook_fires_on_the_backbone_and_comes_off(make_model):
    model, _, tags = make_model()
    ids = torch.tensor([trace_of(tags)])
    hook = install_layout_hook(model, tags, "structured")
    with pytest.raises(ValueError, match="already has a layout hook"):
        install_layout_hook(model, tags, "causal")
    with torch.no_grad():
        hidden = backbone(model)(input_ids=ids, use_cache=False)[0]
        torch.testing.assert_close(model.lm_head(hidden), model(input_ids=ids).logits)
        with pytest.raises(ValueError, match="inputs_embeds"):
            model(inputs_embeds=model.get_input_embeddings()(ids))
    hook.remove()
    assert not backbone(model)._forward_pre_hooks
    install_layout_hook(model, tags, "causal").remove()


def test_gradients_flow_and_checkpointing_agrees(make_model):
    model, _, tags = make_model()
    ids = torch.tensor([trace_of(tags)])
    gradients = []
    with install_layout_hook(model, tags, "structured"):
        for checkpointing in (False, True):
            model.zero_grad()
            model.train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            gradients.append(model.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().sum() > 0


# --- sliding windows ---


def window_by_hand(model, ids, tags, window):
    row = layout(ids, tags, "structured")
    position = torch.from_numpy(row.position)
    visible = torch.from_numpy(row.visible())
    near = visible & (position[:, None] - position[None, :] < window)
    floor = torch.finfo(torch.float32).min
    masks = {
        "full_attention": torch.where(visible, 0.0, floor)[None, None],
        "sliding_attention": torch.where(near, 0.0, floor)[None, None],
    }
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), position_ids=position[None], attention_mask=masks).logits[0]


def test_sliding_windows_get_a_mask_per_layer_type(make_model):
    kinds = ["full_attention", "sliding_attention"]
    model, _, tags = make_model("qwen2", use_sliding_window=True, sliding_window=3, layer_types=kinds)
    ids = trace_of(tags)
    got = hooked(model, tags, "structured", input_ids=torch.tensor([ids]))[0]
    torch.testing.assert_close(got, window_by_hand(model, ids, tags, 3), atol=1e-5, rtol=1e-5)
    plain = torch.tensor([ids])
    causal = hooked(model, tags, "causal", input_ids=plain)
    torch.testing.assert_close(causal, model(input_ids=plain).logits, atol=1e-5, rtol=1e-5)


def test_layers_that_no_mask_describes_are_refused(make_model):
    model, _, tags = make_model("qwen2")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ValueError, match="chunked_attention"):
        install_layout_hook(model, tags, "structured")


# --- traps of transformers ---


def test_trap_eager_attention_agrees_with_sdpa(make_model):
    # A boolean 4-D mask is added to the scores by eager attention; ours is a float.
    model, _, tags = make_model()
    ids = torch.tensor([trace_of(tags)])
    expected = hooked(model, tags, "structured", input_ids=ids)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(hooked(model, tags, "structured", input_ids=ids), expected, atol=1e-5, rtol=1e-5)


def test_trap_boolean_masks_are_wrong_under_eager(make_model):
    # Why the mask is a float: should this ever pass, the trap is gone.
    model, _, tags = make_model()
    ids = trace_of(tags)
    row = layout(ids, tags, "structured")
    model.set_attn_implementation("eager")
    call = {"input_ids": torch.tensor([ids]), "position_ids": torch.from_numpy(row.position)[None]}
    wrong = model(attention_mask=torch.from_numpy(row.visible())[None, None], **call).logits[0]
    assert not torch.allclose(wrong, by_hand(model, ids, tags, "structured"), atol=1e-2)


def test_trap_restarted_positions_without_a_mask_are_not_packed_rows(make_model):
    # transformers takes restarted positions without a mask for several packed rows; we always send a mask.
    model, _, tags = make_model()
    ids = trace_of(tags)
    position = torch.from_numpy(layout(ids, tags, "structured").position)[None]
    packed = model(input_ids=torch.tensor([ids]), position_ids=position, use_cache=False).logits[0]
    got = hooked(model, tags, "structured", input_ids=torch.tensor([ids]), attention_mask=None)[0]
    assert not torch.allclose(packed, got, atol=1e-2)
    torch.testing.assert_close(got, by_hand(model, ids, tags, "structured"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_trap_attention_without_dense_masks_is_refused(make_model, implementation):
    model, _, tags = make_model()
    model.config._attn_implementation_internal = implementation
    with install_layout_hook(model, tags, "structured"), pytest.raises(ValueError, match=implementation):
        model(input_ids=torch.tensor([[1, 2]]), use_cache=False)


def test_mask_takes_the_models_dtype(make_model):
    model, _, tags = make_model()
    model = model.to(torch.bfloat16)
    logits = hooked(model, tags, "structured", input_ids=torch.tensor([trace_of(tags)]))
    assert logits.dtype == torch.bfloat16 and torch.isfinite(logits).all()


def test_engine_attention_is_not_for_plain_calls(make_model):
    model, _, _ = make_model()
    model.set_attn_implementation(TREE_ATTENTION)
    with pytest.raises(ValueError, match="rollout engine"):
        model(input_ids=torch.tensor([[1, 2]]))
