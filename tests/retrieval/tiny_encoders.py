"""Very small encoders with random weights, saved as real folders: for tests of mechanics, where quality does not matter."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
# On a busy machine two threads spend their time waiting for each other; these models need one.
torch.set_num_threads(1)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY += [*string.ascii_lowercase, *string.digits, *string.punctuation]
VOCABULARY += [f"##{letter}" for letter in string.ascii_lowercase + string.digits]


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordPiece({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    ).save_pretrained(folder)


def bert_config(dim: int, **more: int) -> object:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=dim,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * dim,
        max_position_embeddings=512,
        **more,
    )


def tiny_encoder(
    folder: Path, *, dim: int = 32, seed: int = 0, pooling: str | None = None, prompts: dict[str, str] | None = None
) -> Path:
    """A BERT encoder folder; with `pooling` (mean, cls) also the files sentence-transformers writes."""
    from transformers import BertModel

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    BertModel(bert_config(dim)).save_pretrained(folder)
    save_tokenizer(folder)
    if pooling is not None:
        kinds = ("Transformer", ""), ("Pooling", "1_Pooling")
        modules = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (kind, path) in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}))
        (folder / "1_Pooling").mkdir()
        settings = {
            "word_embedding_dimension": dim,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        }
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder


def tiny_cross_encoder(folder: Path, *, num_labels: int = 1, seed: int = 0) -> Path:
    from transformers import BertForSequenceClassification

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    BertForSequenceClassification(bert_config(32, num_labels=num_labels)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder
