"""An encoder by transformers alone, for machines without sentence-transformers (a bare GPU machine, a training image).

Most encoders are a transformer and one way of pooling its last layer, written down in three small files that
sentence-transformers saves beside the weights; a folder without them gets mean pooling. What has more parts (a projection,
several poolings) is refused with the name of the library that can run it: a vector that is nearly right is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import UsageError, install_command, require

POOLINGS = ("mean", "cls")
# Names of the flags by which files of sentence-transformers before 5.5 say the pooling.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class PooledModel:
    """Has what `Encoder` uses of a SentenceTransformer: `max_seq_length`, `prompts`, `encode`."""

    def __init__(self, source: str, *, device: str, dtype: str) -> None:
        transformers = require("transformers", "dense")
        self._torch: Any = require("torch", "dense")
        self._device = device
        folder = _fetched(source)
        self.pooling = _pooling(folder)
        settings = _read_json(folder, "sentence_bert_config.json") or {}
        own_prompts = (_read_json(folder, "config_sentence_transformers.json") or {}).get("prompts")
        self.prompts: dict[str, str] = own_prompts or {}
        self._lower_case = bool(settings.get("do_lower_case"))
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._model: Any = transformers.AutoModel.from_pretrained(folder, dtype=getattr(self._torch, dtype))
        self._model.to(device).eval()
        limits = (
            settings.get("max_seq_length"),
            getattr(self._model.config, "max_position_embeddings", None),
            self._tokenizer.model_max_length,
        )
        known = [int(limit) for limit in limits if limit is not None and limit < 1_000_000]
        self.max_seq_length: int | None = min(known) if known else None

    def encode(self, texts: Sequence[str], *, batch_size: int, **_: object) -> npt.NDArray[np.float32]:
        """One vector a text, in the order of the texts; not yet of length one."""
        torch = self._torch
        clean = [text.strip().lower() if self._lower_case else text.strip() for text in texts]
        ids: list[list[int]] = self._tokenizer(clean, truncation=True, max_length=self.max_seq_length)["input_ids"]
        # Long ones first: what does not fit into memory shows at once, and a batch is padded by little.
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))
        pooled: list[Any] = []
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                padded, mask = self._padded([ids[n] for n in order[start : start + batch_size]])
                states = self._model(input_ids=padded, attention_mask=mask).last_hidden_state
                pooled.append(self._pool(states, mask))
            # One transfer at the end: the device never waits for the host between batches.
            together: npt.NDArray[np.float32] = torch.cat(pooled).cpu().numpy()
        found = np.empty_like(together)
        found[order] = together
        return found

    def _padded(self, batch: list[list[int]]) -> tuple[Any, Any]:
        """Ids and mask on the device, padded on the right; the first is the longest. The tokenizer's own `pad` does 10,000
        texts a second, fewer than a GPU encodes."""
        ids = np.full((len(batch), len(batch[0])), self._tokenizer.pad_token_id or 0, np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return self._torch.from_numpy(ids).to(self._device), self._torch.from_numpy(mask).to(self._device)

    def _pool(self, states: Any, mask: Any) -> Any:
        if self.pooling == "cls":
            return states[:, 0].float()
        weights = mask.unsqueeze(-1).float()
        return (states.float() * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _fetched(source: str) -> Path:
    """The encoder's folder; a hub name is fetched, or found where an earlier fetch left it."""
    if Path(source).is_dir():
        return Path(source)
    hub = require("huggingface_hub", "dense")
    return Path(hub.snapshot_download(source, allow_patterns=["*.json", "*.txt", "*.model", "*.safetensors"]))


def _pooling(folder: Path) -> str:
    """The pooling the files ask for; an error where they ask for more than a transformer and a pooling."""
    modules = _read_json(folder, "modules.json")
    if modules is None:
        return "mean"
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    path = next((str(module["path"]) for module in modules if str(module.get("type", "")).endswith(".Pooling")), None)
    settings = {} if path is None else _read_json(folder, f"{path}/config.json") or {}
    flagged = [name for flag, name in _POOLING_FLAGS.items() if settings.get(flag)]
    named = settings.get("pooling_mode") or flagged or ["mean"]
    names = [named] if isinstance(named, str) else list(named)
    if unknown or len(names) != 1 or names[0] not in POOLINGS:
        what = f"has the parts {', '.join(kinds)}" if unknown else f"pools by {' and '.join(names)}"
        raise UsageError(
            f"the encoder '{folder}' {what}, which needs sentence-transformers. Type: {install_command('dense')}"
        )
    return str(names[0])


def _read_json(folder: Path, name: str) -> Any:
    """A file of the encoder; nothing where it has none."""
    path = folder / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else None
