"""The vllm arm of ``rollout.py``: a process in an environment that has vllm, and needs nothing of this project.

Reads one JSON object a line ({"prompts": ids, "num": tokens}), answers {"tokens": ids}.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    name, dtype = sys.argv[1:3]
    engine = LLM(model=name, dtype=dtype, enable_prefix_caching=True, skip_tokenizer_init=True)
    for line in sys.stdin:
        asked = json.loads(line)
        params = SamplingParams(
            max_tokens=asked["num"], min_tokens=asked["num"], temperature=1.0, ignore_eos=True, detokenize=False
        )
        outs = engine.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], params, use_tqdm=False)
        print(json.dumps({"tokens": [list(out.outputs[0].token_ids) for out in outs]}), flush=True)


if __name__ == "__main__":
    main()
