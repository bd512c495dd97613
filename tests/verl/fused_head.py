"""`fused_head.py MODEL`: log-probabilities and gradients through verl's fused head against plain ones; prints the worst of each.

Rows are padded on the right and the temperature is not 1, as in a training pass of a recipe with `attention = "sdpa"`.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch

TEMPERATURE = 0.7

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
ids = torch.randint(5, model.config.vocab_size, (2, 40))
attention = torch.ones(2, 40, dtype=torch.long)
attention[1, 23:] = 0
inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": torch.arange(40) * attention}
weight = torch.randn(2, 40) * attention
weight[0, 39] = weight[1, 22] = 0  # what comes after the last token is not scored
scores = torch.log_softmax(model(**inputs).logits / TEMPERATURE, dim=-1)
plain = scores.gather(-1, ids.roll(-1, dims=-1)[..., None])[..., 0]
(plain * weight).sum().backward()
expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
model.zero_grad()
apply_monkey_patch(
    model, use_remove_padding=False, ulysses_sp_size=1, use_fused_kernels=True, fused_kernels_backend="torch"
)
fused = model(**inputs, temperature=TEMPERATURE, return_dict=True).log_probs
(fused * weight).sum().backward()
worst = (fused - plain)[weight != 0].abs().max().item()
gradient = max(
    ((parameter.grad - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-6)).item()
    for name, parameter in model.named_parameters()
)
sys.stdout.write(f"{worst} {gradient}\n")
