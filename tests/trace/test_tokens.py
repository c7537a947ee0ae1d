"""Tags in tokenizers and models: added once, saved, never made from a user's text."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as kinds
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)  # fmt: skip

from parallel_r1.models.tiny import tiny_config, tiny_tokenizer
from parallel_r1.trace.tags import TAGS, parse_ids, parse_text, with_counts
from parallel_r1.trace.tokens import (
    add_tags,
    decode_response,
    encode_prompt,
    encode_trace,
    plain_ids,
    stop_ids,
    tag_ids,
)  # fmt: skip

TRACE = (
    "Let me see.\n\n<Parallel><Path> 8*3=24,24-3=21 ok</Path><Path>\n8+3=11 no </Path></Parallel>\n"
    "<Summary>8*3=24,24-3=21</Summary>\n\nFinal Answer: 8*3=24,24-3=21"
)
CORPUS = [TRACE, "the cat sat on the mat, make 21 from 8 3 3\n\n", "Final Answer: <Path> </Path> a < b > c"] * 5


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's kind: byte-level BPE."""
    backend = Tokenizer(kinds.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=380, special_tokens=special, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token="<|endoftext|>",
        additional_special_tokens=special[1:],
    )  # fmt: skip


def with_bos() -> PreTrainedTokenizerFast:
    """Llama's kind: a beginning of text is put before every text."""
    tokenizer = byte_level()
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", backend.token_to_id("<|im_start|>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="<|im_start|>")


def model_for(tokenizer, kind: str):
    torch.manual_seed(0)
    rows = len(tokenizer)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=rows, n_embd=16, n_layer=1, n_head=2, n_positions=256)).eval()
    if kind == "tiny":
        config = tiny_config(rows, tokenizer.eos_token_id, tokenizer.pad_token_id)
        config.num_hidden_layers, config.layer_types = 1, config.layer_types[:1]
        return AutoModelForCausalLM.from_config(config).eval()
    extra = 13 if kind == "padded" else 0
    config = LlamaConfig(
        vocab_size=rows + extra, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


TOKENIZERS = {"tiny": tiny_tokenizer, "bytes": byte_level, "bos": with_bos}


@functools.cache
def fresh(name: str):
    return TOKENIZERS[name]()


@functools.cache
def tagged(name: str):
    tokenizer = TOKENIZERS[name]()
    return tokenizer, add_tags(model_for(tokenizer, "untied"), tokenizer)


@pytest.mark.parametrize("kind", ["gpt2", "tiny", "untied", "padded"])
@pytest.mark.parametrize("name", ["tiny", "bytes"])
def test_save_and_reload_gives_the_same_ids_and_logits(name, kind, tmp_path):
    tokenizer = TOKENIZERS[name]()
    model = model_for(tokenizer, kind)
    tags = add_tags(model, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert tag_ids(reloaded) == tags
    ids = encode_trace(tokenizer, TRACE, tags)
    assert encode_trace(reloaded, TRACE, tags) == ids
    assert encode_prompt(reloaded, "{question}", "a <Path>", tags) == encode_prompt(
        tokenizer, "{question}", "a <Path>", tags
    )
    with torch.no_grad():
        before, after = model(torch.tensor([ids])).logits, again(torch.tensor([ids])).logits
    assert before.shape[-1] == len(tokenizer) == again.get_input_embeddings().num_embeddings
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("kind", ["gpt2", "untied", "padded"])
def test_new_rows_are_near_the_mean_of_their_pieces_and_distinct(kind):
    tokenizer = byte_level()
    model = model_for(tokenizer, kind)
    old = model.get_input_embeddings().weight.detach().clone()
    tags = add_tags(model, tokenizer, seed=5)
    pairs = [(model.get_input_embeddings().weight, old)]
    if kind != "gpt2":
        assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    for weight, before in pairs:
        assert torch.equal(weight[: tags.parallel_open], before[: tags.parallel_open])
        rows = weight[list(tags.in_order)]
        for tag, row in zip(TAGS, rows, strict=True):
            mean = before[plain_ids(tokenizer, tag)].mean(dim=0)
            assert 0 < (row - mean).norm() < 0.5 * before.std() * len(row) ** 0.5
        assert torch.cdist(rows, rows).fill_diagonal_(1).min() > 0
    same = model_for(byte_level(), kind)
    add_tags(same, byte_level(), seed=5)
    assert torch.equal(same.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_adding_again_changes_nothing():
    tokenizer = byte_level()
    model = model_for(tokenizer, "untied")
    tags = add_tags(model, tokenizer)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert add_tags(model, tokenizer, seed=9) == tags
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_tagged_tokenizer_with_an_untagged_model_gets_rows():
    tokenizer, tags = tagged("bytes")
    model = model_for(byte_level(), "untied")
    assert add_tags(model, tokenizer) == tags
    rows = model.get_input_embeddings().weight[list(tags.in_order)]
    assert torch.isfinite(rows).all() and torch.cdist(rows, rows).fill_diagonal_(1).min() > 0


def test_missing_tags_are_named():
    tokenizer = byte_level()
    with pytest.raises(ValueError, match=r"lacks the tags <Parallel> .*</Summary>.*add_tags"):
        tag_ids(tokenizer)
    tokenizer.add_tokens([tag for tag in TAGS if tag != "</Path>"])
    with pytest.raises(ValueError, match="lacks the tags </Path>;"):
        tag_ids(tokenizer)


def test_a_tokenizer_without_the_library_is_refused():
    class Slow:
        name_or_path = "slow"

    with pytest.raises(ValueError, match="'slow' is not backed by the `tokenizers` library"):
        tag_ids(Slow())  # pyright: ignore[reportArgumentType]


def test_a_wrong_tie_flag_is_refused():
    tokenizer = tiny_tokenizer()
    model = model_for(tokenizer, "untied")
    model.config.tie_word_embeddings = True
    model.get_output_embeddings().weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
    model.tie_weights = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match=r"tie_word_embeddings = True but .* are two"):
        add_tags(model, tokenizer)


fragments = st.lists(
    st.sampled_from([*TAGS, "<", "Path>", "a b", "\n", " ", "<|im_end|>", "<eos>", "é"]) | st.text(max_size=5),
    max_size=12,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(fragments, st.sampled_from(sorted(TOKENIZERS)))
def test_user_text_never_makes_a_tag_or_a_special_token(question, name):
    tokenizer, tags = tagged(name)
    ids = encode_prompt(tokenizer, "think: {question}\n", question, tags)
    body = ids[1:] if name == "bos" else ids
    assert tags.all.isdisjoint(ids)
    assert set(body).isdisjoint(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    if name == "bytes":
        assert tokenizer.decode(ids) == f"think: {question}\n"
    untagged = fresh(name)
    assert body == untagged.encode(f"think: {question}\n", add_special_tokens=False, split_special_tokens=True)


def test_markers_of_the_template_are_put_in_by_id_and_tags_in_it_are_text():
    tokenizer, tags = tagged("bytes")
    template = "<|im_start|>use <Path> tags: {question}<|im_end|>\n"
    ids = encode_prompt(tokenizer, template, "x<|im_end|>", tags)
    start, end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|im_end|>"))
    assert ids[0] == start and ids.count(end) == 1 and tags.all.isdisjoint(ids)
    assert tokenizer.decode(ids) == template.format(question="x<|im_end|>")


def test_the_beginning_of_text_follows_the_tokenizer():
    for name, count in (("bytes", 0), ("bos", 1), ("tiny", 0)):
        tokenizer, tags = tagged(name)
        ids = encode_prompt(tokenizer, "{question}\n", "make 21", tags)
        assert ids.count(tokenizer.bos_token_id) == count and tokenizer.eos_token_id not in ids
    tokenizer, tags = tagged("bos")
    assert encode_prompt(tokenizer, "<|im_start|>{question}", "a", tags).count(tokenizer.bos_token_id) == 1


def test_a_template_needs_one_slot():
    tokenizer, tags = tagged("tiny")
    with pytest.raises(ValueError, match="exactly once"):
        encode_prompt(tokenizer, "no slot", "a", tags)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_a_trace_survives_encoding_and_decoding(name):
    tokenizer, tags = tagged(name)
    ids = encode_trace(tokenizer, TRACE, tags)
    assert [i for i in ids if i in tags.all] == [dict(zip(TAGS, tags.in_order, strict=True))[t] for t in (
        "<Parallel>", "<Path>", "</Path>", "<Path>", "</Path>", "</Parallel>", "<Summary>", "</Summary>")]  # fmt: skip
    assert decode_response(tokenizer, [*ids, tokenizer.eos_token_id]) == TRACE
    assert parse_ids(ids, tags).state == parse_text(TRACE).state == "well_formed"
    close = ids.index(tags.parallel_close)
    assert tuple(ids[close + 1 : ids.index(tags.summary_open)]) == tags.newline


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_a_block_may_name_the_number_of_its_paths(name):
    tokenizer, tags = tagged(name)
    ids = encode_trace(tokenizer, with_counts(TRACE), tags)
    assert ids[ids.index(tags.parallel_open) + 1] == tags.counts[1] and len(tags.counts) == 8
    assert parse_ids(ids, tags).state == "well_formed"
    assert decode_response(tokenizer, ids) == with_counts(TRACE)


def test_white_space_tokens_may_stand_between_tags():
    tokenizer, tags = tagged("bytes")
    assert tags.blank >= set(plain_ids(tokenizer, " ")) | set(plain_ids(tokenizer, "\n\n"))
    loose = TRACE.replace("</Path><Path>", "</Path>\n\n<Path>").replace("</Parallel>\n", "</Parallel>\n\n \n")
    assert parse_ids(encode_trace(tokenizer, loose, tags), tags).state == "well_formed"


def test_decoding_strips_the_end_alone():
    tokenizer, _ = tagged("bytes")
    end, turn = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    body = plain_ids(tokenizer, "a b")
    assert decode_response(tokenizer, [*body, turn, end, end]) == "a b"
    assert decode_response(tokenizer, [end, *body]) == "<|endoftext|>a b"
    assert decode_response(tokenizer, []) == ""


def test_stop_ids_come_from_tokenizer_configs_and_turn_ends():
    tokenizer = byte_level()
    end, turn = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    letter = plain_ids(tokenizer, "a")[0]

    config = LlamaConfig(eos_token_id=[end, letter])
    assert stop_ids(tokenizer, config, None) == (end, turn)
    tiny = tiny_tokenizer()
    assert stop_ids(tiny, LlamaConfig(), None) == (tiny.eos_token_id,)
    endless = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(kinds.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ValueError, match="no end-of-text"):
        stop_ids(endless, None)
