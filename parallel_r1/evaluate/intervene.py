"""What are paths worth? Corrupt the right ones and let the model go on.

In every response with a block that holds a right and a wrong path, the right paths of the first such
block are overwritten by wrong ones of the same block; the model then writes summary and answer anew. A control
goes on from the same place with the paths as they were, with the same random numbers, so that the two
differ in nothing but what the paths say. If the answer is taken from the paths, corrupting them removes
what forking gained over one path; if it is made up from the question, nothing changes.

The engine is not needed here: after ``</Parallel>`` everything is visible, so the rest is plain decoding
behind one pass over prompt, block and opener under the layout hook. No further block may open.

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Engine, Request
from parallel_r1.engine.branch import Rule
from parallel_r1.engine.sampling import Sampler, seed_key, uniforms
from parallel_r1.evaluate import metrics
from parallel_r1.evaluate.modes import mode_engine
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import Loaded
from parallel_r1.tasks.base import Task, final_answer
from parallel_r1.tasks.paths import PATH_CHECKS, candidate_of
from parallel_r1.trace.layout import layout
from parallel_r1.trace.tags import parse_ids, parse_text
from parallel_r1.trace.tokens import decode_response
from parallel_r1.types import Block, Problem, Rollout, Variant

EDITS = ("kept", "corrupted", "dropped", "swapped")


@dataclass(frozen=True, slots=True)
class Edit:
    """One response up to its first informative ``<Summary>``, in four versions.

    ``kept``: as it was. ``corrupted``: right paths overwritten by wrong ones of the block. ``dropped``: without
    its right paths. ``swapped``: the first right path and the first wrong one have changed places.
    """

    index: int
    """Place among the rollouts."""
    kept: tuple[int, ...]
    corrupted: tuple[int, ...]
    dropped: tuple[int, ...]
    swapped: tuple[int, ...]


def corrupt_paths(
    loaded: Loaded,
    engine: Engine,
    task: Task,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    config: EngineConfig,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Run the intervention; ``problems`` and ``requests`` have one entry per response.

    Returns:
        Accuracies over all responses: ``one_path`` (same requests, one path per block), ``forked`` (as
        sampled), ``control`` and ``corrupted``; ``gain`` = control - one_path, ``removed`` = (control -
        corrupted) / gain (None without a gain), ``num_edited``, and ``edited_control`` and
        ``edited_corrupted`` over the edited responses alone (None when none was edited).

    Raises:
        ValueError: a task whose paths cannot be judged, or a model without tags.
    """
    _check(loaded, task)
    forked_config = mode_engine(config, "forked")
    forked = engine.generate(requests, forked_config)
    single = engine.generate(requests, mode_engine(config, "forked", paths=1))
    actual = [_is_right(loaded, task, p, r.response_ids, r.truncated) for p, r in zip(problems, forked, strict=True)]
    one_path = [_is_right(loaded, task, p, r.response_ids, r.truncated) for p, r in zip(problems, single, strict=True)]
    edits = find_edits(loaded, problems, forked)
    outcomes: dict[str, list[bool]] = {}
    for which in ("kept", "corrupted"):
        done = continue_edits(loaded, engine.variant, edits, which, requests, forked_config, batch_size)
        outcomes[which] = list(actual)
        for edit, (ids, cut) in zip(edits, done, strict=True):
            outcomes[which][edit.index] = _is_right(loaded, task, problems[edit.index], ids, cut)
    control, corrupted = outcomes["kept"], outcomes["corrupted"]
    shares = {
        name: metrics.share(flags) or 0.0
        for name, flags in (("one_path", one_path), ("forked", actual), ("control", control), ("corrupted", corrupted))
    }
    gain = shares["control"] - shares["one_path"]
    return {
        **shares,
        "gain": gain,
        "removed": (shares["control"] - shares["corrupted"]) / gain if gain > 0 else None,
        "num_responses": len(forked),
        "num_edited": len(edits),
        "edited_control": metrics.share([control[e.index] for e in edits]),
        "edited_corrupted": metrics.share([corrupted[e.index] for e in edits]),
    }


def knock_out(
    loaded: Loaded,
    engine: Engine,
    task: Task,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    config: EngineConfig,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Does the answer follow the path that holds it? Every version of every edit, with the same random numbers.

    Returns:
        ``num_responses``, ``num_edited``, and per version of `Edit` the share of right answers and the share
        that is word for word a candidate of its block (``right``, ``from_a_path``).

    Raises:
        ValueError: as `corrupt_paths`, or no response with both a right and a wrong path.
    """
    _check(loaded, task)
    forked_config = mode_engine(config, "forked")
    edits = find_edits(loaded, problems, engine.generate(requests, forked_config))
    if not edits:
        raise ValueError(f"none of {len(requests)} responses has a block with a right and a wrong path; ask for more")
    found: dict[str, Any] = {"num_responses": len(requests), "num_edited": len(edits)}
    for which in EDITS:
        done = continue_edits(loaded, engine.variant, edits, which, requests, forked_config, batch_size)
        right = [
            _is_right(loaded, task, problems[e.index], ids, cut) for e, (ids, cut) in zip(edits, done, strict=True)
        ]
        copied = [_answer_is_a_candidate(loaded, problems[edits[0].index].task, ids) for ids, _ in done]
        found[which] = {"right": metrics.share(right), "from_a_path": metrics.share(copied)}
    return found


def find_edits(loaded: Loaded, problems: Sequence[Problem], rollouts: Sequence[Rollout]) -> list[Edit]:
    """The edits of all responses that have one."""
    pairs = enumerate(zip(problems, rollouts, strict=True))
    return [edit for i, (p, r) in pairs if (edit := find_edit(loaded, p, r, i)) is not None]


def find_edit(loaded: Loaded, problem: Problem, rollout: Rollout, index: int) -> Edit | None:
    """The edit of a response; None where no block holds both a right and a wrong path before a summary."""
    assert loaded.tags is not None
    check = PATH_CHECKS[problem.task]
    ids = rollout.response_ids
    for block in parse_ids(ids, loaded.tags, rollout.truncated).blocks:
        inner = [tuple(ids[path.inner_start : path.inner_end]) for path in block.paths]
        right = [check(problem, decode_response(loaded.tokenizer, content)) for content in inner]
        wrong = [content for content, is_right in zip(inner, right, strict=True) if not is_right and content]
        if not any(right) or not wrong or block.summary_start is None:
            continue
        spare = cycle(wrong)
        first, other = right.index(True), inner.index(wrong[0])
        swapped = list(inner)
        swapped[first], swapped[other] = inner[other], inner[first]

        def version(contents: Sequence[tuple[int, ...]], block: Block = block) -> tuple[int, ...]:
            opener, closer = ids[block.paths[0].start], ids[block.paths[0].end - 1]
            written = [token for content in contents for token in (opener, *content, closer)]
            assert block.summary_start is not None
            return (*ids[: block.paths[0].start], *written, *ids[block.paths[-1].end : block.summary_start + 1])

        return Edit(
            index,
            kept=tuple(ids[: block.summary_start + 1]),
            corrupted=version([next(spare) if r else content for r, content in zip(right, inner, strict=True)]),
            dropped=version(wrong),
            swapped=version(swapped),
        )
    return None


def continue_edits(
    loaded: Loaded,
    variant: Variant,
    edits: Sequence[Edit],
    which: str,
    requests: Sequence[Request],
    config: EngineConfig,
    batch_size: int,
) -> list[tuple[tuple[int, ...], bool]]:
    """`continue_responses` over one version of all edits, ``batch_size`` at a time."""
    rows = [(requests[edit.index], getattr(edit, which)) for edit in edits]
    return [
        done
        for start in range(0, len(rows), batch_size)
        for done in continue_responses(loaded, variant, rows[start : start + batch_size], config)
    ]


@torch.no_grad()
def continue_responses(
    loaded: Loaded, variant: Variant, rows: Sequence[tuple[Request, tuple[int, ...]]], config: EngineConfig
) -> list[tuple[tuple[int, ...], bool]]:
    """Go on with responses that end in ``<Summary>``: (whole response, was it cut by the limit) per row.

    ``rows``: the request (prompt and seed) and the response so far. Draws are counted per row, so a
    row does not depend on the batch.
    """
    tags = loaded.tags
    assert tags is not None
    model = loaded.model
    prefixes = [request.prompt_ids + response for request, response in rows]
    ids, mask = _left_padded(prefixes, loaded.stop_ids[0], model.device)
    with install_layout_hook(model, tags, variant):
        out = model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
    position = torch.tensor([int(layout(p, tags, variant).position[-1]) for p in prefixes], device=model.device)
    sampler = Sampler(len(loaded.tokenizer), tags, loaded.stop_ids, model.device)
    keys = [seed_key(request.seed) for request, _ in rows]
    written = [list(response) for _, response in rows]
    in_summary, live = [True] * len(rows), [True] * len(rows)
    for step in range(config.max_response_tokens):
        rules = [Rule.SUMMARY if s else Rule.MAIN for s in in_summary]
        # Block 1, path 0: numbers that the engine never drew for this request.
        draws = sampler.draw(out.logits[:, -1], rules, uniforms(keys, [(1, 0, step)] * len(rows)), (), config)
        tokens = draws.tokens.tolist()
        for row, token in enumerate(tokens):
            if live[row]:
                written[row].append(token)
                in_summary[row] &= token != tags.summary_close
                live[row] = token not in loaded.stop_ids and len(written[row]) < config.max_response_tokens
        if not any(live):
            break
        position = position + 1
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        out = model(
            input_ids=draws.tokens[:, None], attention_mask=mask, position_ids=position[:, None],
            past_key_values=out.past_key_values, use_cache=True,
        )  # fmt: skip
    return [(tuple(ids), ids[-1] not in loaded.stop_ids) for ids in written]


def _left_padded(
    rows: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, both (B, T), with the last token of every row in the last column."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), padding, device=device)
    mask = torch.zeros_like(ids)
    for b, row in enumerate(rows):
        ids[b, width - len(row) :] = torch.tensor(row, device=device)
        mask[b, width - len(row) :] = 1
    return ids, mask


def _check(loaded: Loaded, task: Task) -> None:
    if task.name not in PATH_CHECKS:
        raise ValueError(f"task = {task.name!r}: its paths cannot be judged; use one of {', '.join(PATH_CHECKS)}")
    if loaded.tags is None:
        raise ValueError("the tokenizer has no tags, so there are no paths to edit; load a cold-started model")


def _answer_is_a_candidate(loaded: Loaded, task: str, ids: Sequence[int]) -> bool:
    """Whether the answer stands in a path of the response as that path's candidate."""
    trace = parse_text(decode_response(loaded.tokenizer, ids))
    answer = final_answer(str(trace.answer_region))
    paths = [str(path.content) for block in trace.blocks for path in block.paths]
    return answer in {candidate_of(task, path) for path in paths}


def _is_right(loaded: Loaded, task: Task, problem: Problem, ids: Sequence[int], truncated: bool) -> bool:
    trace = parse_text(decode_response(loaded.tokenizer, ids), truncated)
    return task.verify(problem, str(trace.answer_region)).right
