"""Load and save models: a folder, a hub name, a GGUF file or a built-in name.

No remote code is run, and weights are read from safetensors (or GGUF) only. Embeddings are resized
to the tokenizer's length, so that ids beyond the tokenizer do not exist: sampling and scoring then
normalise over the same vocabulary. What a checkpoint needs to be decoded as it was trained (variant,
prompt templates, engine settings, stop ids) travels beside the weights in ``parallel_r1.json``.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.trace.tags import TAGS, TagIds
from parallel_r1.trace.tokens import stop_ids as find_stop_ids
from parallel_r1.trace.tokens import tag_ids
from parallel_r1.types import Variant

BUILTIN = ("tiny", "tiny-parallel")
SCRATCH = "tiny-scratch"
SETTINGS_FILE = "parallel_r1.json"
_BUILTIN_FOLDER = Path(__file__).parent / "builtin"


class SavedSettings(BaseModel):
    """How a checkpoint was trained to be prompted and decoded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    variant: Variant
    prompt: PromptConfig = PromptConfig()
    engine: EngineConfig = EngineConfig()
    stop_ids: tuple[int, ...] = ()
    """Empty: worked out from the tokenizer and the model's configs."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its tokenizer and what was found beside it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tags: TagIds | None
    """None where the tokenizer has no tags yet; see `parallel_r1.trace.tokens.add_tags`."""
    stop_ids: tuple[int, ...]
    settings: SavedSettings | None
    """None for a model that this project has not saved."""


def load_model(
    name: str | os.PathLike[str],
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Loaded:
    """Load ``name``: a folder, a hub name, a ``.gguf`` file, ``tiny``, ``tiny-parallel`` or ``tiny-scratch``.

    ``tiny-scratch`` is the tiny shape with random weights drawn from ``seed``. ``device`` None: the
    first GPU if there is one, else the CPU.

    Raises:
        ValueError: nothing can be loaded under this name, or what is there is damaged.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype = {dtype!r}: use 'float32' or 'bfloat16'")
    torch_dtype = getattr(torch, dtype)
    source = os.fspath(name)
    folder: Path | None = None
    if source == SCRATCH:
        model, tokenizer = _scratch(seed)
    elif source.endswith(".gguf"):
        model, tokenizer = _from_gguf(Path(source))
    else:
        folder = _folder_of(source)
        model, tokenizer = _from_pretrained(source, folder, torch_dtype)
    if model.get_input_embeddings().num_embeddings != len(tokenizer):
        model.resize_token_embeddings(len(tokenizer))
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = model.to(device=place, dtype=torch_dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    model.eval()
    settings = load_settings(folder) if folder else None
    has_tags = any(tag in tokenizer.get_vocab() for tag in TAGS)
    stops = settings.stop_ids if settings and settings.stop_ids else None
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        tags=tag_ids(tokenizer) if has_tags else None,
        stop_ids=stops or tuple(find_stop_ids(tokenizer, model.config, model.generation_config)),
        settings=settings,
    )


def save_model(
    model: Loaded | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: str | os.PathLike[str],
    settings: SavedSettings | None,
) -> Path:
    """Write weights (safetensors), tokenizer and settings into ``folder``; returns it.

    ``settings`` None writes no settings file.
    """
    if isinstance(model, Loaded):
        tokenizer = tokenizer or model.tokenizer
        model = model.model
    if tokenizer is None:
        raise ValueError("save_model: tokenizer = None; give the tokenizer that belongs to the model")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    if settings is not None:
        (target / SETTINGS_FILE).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return target


def load_settings(folder: str | os.PathLike[str]) -> SavedSettings | None:
    """The settings saved in a model folder, or None.

    Raises:
        ValueError: the file is there but cannot be read as settings.
    """
    path = Path(folder) / SETTINGS_FILE
    if not path.is_file():
        return None
    try:
        return SavedSettings.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
        raise ValueError(f"{path}: not valid settings ({error}); delete it or save the model again") from error


def _scratch(seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from parallel_r1.models.tiny import tiny_config, tiny_tokenizer

    tokenizer: Any = tiny_tokenizer()
    config = tiny_config(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config), tokenizer


def _from_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Unpack a GGUF file to full weights; slow, so save the result once and load the copy."""
    from transformers import GgufConfig

    if not path.is_file():
        raise ValueError(f"model = {str(path)!r}: no such file; give the path of a .gguf file")
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, quantization_config=GgufConfig(dequantize=True), attn_implementation="sdpa", **where
        )
    except ImportError as error:
        raise ValueError(f"model = {str(path)!r}: reading GGUF needs `pip install gguf` ({error})") from error
    except (OSError, ValueError, KeyError, RuntimeError, IndexError, struct.error) as error:
        raise ValueError(f"model = {str(path)!r}: not a readable GGUF model ({_short(error)})") from error
    config: Any = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain now; left in, saving would fail
    return model, tokenizer


def _folder_of(source: str) -> Path | None:
    """The local folder that ``source`` names, or None for a hub name."""
    if source in BUILTIN:
        folder = _BUILTIN_FOLDER / source
        if not (folder / "config.json").is_file():
            raise ValueError(f"model = {source!r}: its weights are not in {folder}; reinstall the package")
        return folder
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model = {source!r}: the folder has no config.json; give a saved model's folder")
        return path
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise ValueError(f"model = {source!r}: no such folder; give an existing folder, or one of {_names()}")
    return None


def _from_pretrained(
    source: str, folder: Path | None, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    where = str(folder or source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, trust_remote_code=False, use_safetensors=True, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        tried = f"the folder {folder}" if folder else f"no folder of that name, then the hub as {source!r}"
        raise ValueError(
            f"model = {source!r}: cannot be loaded (tried {tried}: {_short(error)}); give a folder with "
            f"config.json, safetensors weights and a tokenizer, a reachable hub name, or one of {_names()}"
        ) from error
    return model, tokenizer


def _names() -> str:
    return ", ".join(repr(name) for name in (*BUILTIN, SCRATCH))


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
