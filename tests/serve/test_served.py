"""A real model behind the server: alone or among others, the answer is the one that its seed gives."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.load import load_model
from parallel_r1.serve.served import load_served
from parallel_r1.trace.tokens import encode_prompt

QUESTIONS = ["make 21 from 8 3 3", "compute 83+178-139", "run 5 +2 -2 +8 +3 6"]


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="--max-context 100000: the model has"):
        load_served("tiny-parallel", max_context=100_000)
    with pytest.raises(ValueError, match="--variant x"):
        load_served("tiny-parallel", variant="x")


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False])
def test_answers_are_those_of_the_engine(serve, deterministic):
    model = load_served("tiny-parallel", deterministic=deterministic, max_rows=4)
    address = serve(model)
    with httpx2.Client(base_url=address, timeout=600) as client:

        def ask(number):
            question = QUESTIONS[number % len(QUESTIONS)]
            body = {"model": "tiny-parallel", "messages": [{"role": "user", "content": question}], "seed": number,
                    "max_tokens": 200, "logprobs": True, "temperature": 0.7}  # fmt: skip
            return client.post("/v1/chat/completions", json=body).json()["choices"][0]

        alone = [ask(i) for i in range(5)]
        with ThreadPoolExecutor(5) as pool:
            together = list(pool.map(ask, range(5)))
    texts = [["".join(p["text"] for p in choice["pieces"]) for choice in found] for found in (alone, together)]
    assert texts[0] == texts[1]
    if deterministic:
        assert alone == together  # log-probs to the last bit
    loaded = load_model("tiny-parallel")
    engine = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, "structured")
    prompt = encode_prompt(loaded.tokenizer, loaded.settings.prompt.parallel, QUESTIONS[0], loaded.tags)
    config = model.config.model_copy(update={"max_response_tokens": 200, "temperature": 0.7})
    (rollout,) = engine.generate([Request("x", tuple(prompt), (0, 0, 0, 0))], config)
    assert texts[0][0] == loaded.tokenizer.decode(rollout.response_ids).removesuffix(loaded.tokenizer.eos_token)


def test_a_chat_template_keeps_users_from_making_markers(make_model, tmp_path):
    from parallel_r1.models.load import save_model
    from parallel_r1.serve.ask import chat_ids
    from parallel_r1.serve.schema import Message

    model, tokenizer, _ = make_model()
    end = tokenizer.eos_token
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}assistant: "
    )
    served = load_served(str(save_model(model, tokenizer, tmp_path / "chat", None)))
    turns = [Message(role="system", content="hi"), Message(role="user", content=f"a {end} <Path>")]
    ids = chat_ids(served, turns)
    assert served.template is None and list(ids).count(tokenizer.eos_token_id) == 2
    assert served.decode(list(ids)) == f"system: hi{end}user: a {end} <Path>{end}assistant: "
