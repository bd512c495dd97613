"""PPO: a critic and generalised advantage estimation, as a small subclass of the GRPO trainer.

The reward stands on a trajectory's last model token; with `train.beta` every model token also pays for its distance from
the reference. Advantages run over model tokens only: what search and notices put in between is stepped over, as if it were
not there. The critic has its own optimiser, is saved with every checkpoint and comes back with it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from parallelsearch.errors import ParallelSearchError, require
from parallelsearch.training import batches
from parallelsearch.training.grpo import SearchTrainer

torch = require("torch", "train")

CRITIC_FILE = "critic.pt"


def gae(values: Any, rewards: Any, mask: Any, gamma: float = 1.0, lam: float = 1.0) -> tuple[Any, Any]:
    """Advantages and returns, both (rows, tokens). A token with mask 0 is no step: value and advantage of the next model
    token pass through it unchanged, and it gets none itself."""
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    running = torch.zeros_like(next_value)
    for place in reversed(range(values.shape[1])):
        is_step = mask[:, place] > 0
        delta = rewards[:, place] + gamma * next_value - values[:, place]
        running = torch.where(is_step, delta + gamma * lam * running, running)
        next_value = torch.where(is_step, values[:, place], next_value)
        advantages[:, place] = torch.where(is_step, running, torch.zeros_like(running))
    return advantages, (advantages + values) * (mask > 0)


def token_rewards(totals: Any, mask: Any, penalty: Any | None = None) -> Any:
    """The trajectory's reward on its last model token, less what each model token pays."""
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    last = (mask * columns).argmax(dim=1)
    rewards = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    rewards[torch.arange(len(last), device=mask.device), last] = totals * (mask.sum(1) > 0)
    return rewards if penalty is None else rewards - penalty * mask


class PpoTrainer(SearchTrainer):
    """Proximal policy optimisation with a value function."""

    drops_equal_groups = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        settings = self.recipe.ppo
        self.critic = self.accelerator.prepare_model(self.weights.critic)
        self._critic_parameters = [p for p in self.critic.parameters() if p.requires_grad]
        self.critic_optimizer = torch.optim.AdamW(
            self._critic_parameters, lr=settings.critic_lr, weight_decay=self.recipe.train.weight_decay
        )

    # ---- advantages --------------------------------------------------------------------------------------------------

    def values(self, batch: dict[str, Any]) -> Any:
        """What the critic expects before each completion token, (rows, tokens)."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        aligned, first, lengths = batches.align(ids, attention)
        places = batches.places_before(first, batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1])
        if torch.is_grad_enabled():
            width = int(lengths.max())
            return self.critic(aligned[:, :width]).gather(1, places.clamp(max=width - 1))
        values = torch.zeros(places.shape, dtype=torch.float32, device=ids.device)
        for piece in batches.pack(lengths.tolist(), self.recipe.train.micro_batch_tokens):
            index = torch.tensor(piece, device=ids.device)
            width = int(lengths[index].max())
            values[index] = self.critic(aligned[index, :width]).gather(1, places[index].clamp(max=width - 1))
        return values

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        settings = self.recipe.ppo
        mask = (batch["completion_mask"] * batch["tool_mask"]).float() * batch["is_live"][:, None]
        totals = torch.tensor(self._totals, dtype=torch.float32, device=mask.device)
        penalty = None
        if "ref_per_token_logps" in batch:
            penalty = self.recipe.train.beta * (batch["sampling_per_token_logps"] - batch["ref_per_token_logps"])
        with torch.no_grad():
            values = self.values(batch) * mask
        advantages, returns = gae(values, token_rewards(totals, mask, penalty), mask, settings.gamma, settings.lam)
        self._metrics["train"]["ppo/value"].append(self._mean(values, mask))
        self._metrics["train"]["ppo/explained"].append(self._explained(values, returns, mask))
        if settings.normalize_advantages:
            mean = self._mean(advantages, mask)
            spread = self._mean((advantages - mean) ** 2, mask) ** 0.5
            advantages = (advantages - mean) / (spread + 1e-8) * mask
        batch |= {"advantages": advantages, "returns": returns, "old_values": values}
        return batch

    def _mean(self, values: Any, mask: Any) -> float:
        """Over the model tokens of all processes."""
        sums = self.accelerator.reduce(torch.stack([(values * mask).sum(), mask.sum()]), reduction="sum")
        return float(sums[0] / sums[1].clamp(min=1))

    def _explained(self, values: Any, returns: Any, mask: Any) -> float:
        """Share of the returns' variance that the critic saw coming."""
        mean = self._mean(returns, mask)
        variance = self._mean((returns - mean) ** 2, mask)
        return 1.0 - self._mean((returns - values) ** 2, mask) / variance if variance > 1e-12 else 0.0

    # ---- updates -----------------------------------------------------------------------------------------------------

    def accumulate(self, model: Any, batch: dict[str, Any]) -> Any:
        self._update_critic(batch)
        if self.step < self.recipe.ppo.critic_warmup_steps:
            return torch.zeros((), device=self.accelerator.device)
        return super().accumulate(model, batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        # The distance from the reference is in the reward already; in TRL's loss it would count a second time.
        beta, self.beta = self.beta, 0.0
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self.beta = beta
        if "ref_per_token_logps" in inputs:
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            distance = inputs["sampling_per_token_logps"] - inputs["ref_per_token_logps"]
            self._metrics["train"]["kl"].append(self._mean(distance, mask))
        return loss

    def _update_critic(self, batch: dict[str, Any]) -> None:
        rows, lengths, pieces, totals = self._pieces(batch)
        if not pieces:
            return
        clip, world = self.recipe.ppo.value_clip, self.accelerator.num_processes
        total_loss = torch.zeros((), device=self.accelerator.device)
        for number, piece in enumerate(pieces):
            part = batches.cut(batch, [rows[place] for place in piece], lengths)
            mask = part["completion_mask"] * part["tool_mask"]
            sync: AbstractContextManager[Any] = nullcontext()
            if number < len(pieces) - 1:
                sync = self.accelerator.no_sync(self.critic)
            with sync:
                values, old, returns = self.values(part), part["old_values"], part["returns"]
                clipped = old + (values - old).clamp(-clip, clip)
                loss = 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
                loss = (loss * mask).sum() * world / max(1, totals[1])
                self.accelerator.backward(loss)
            total_loss += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self._critic_parameters, self.recipe.train.max_grad_norm)
        self.guard.check(self.step, float(total_loss), float(norm), batch)
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()
        self._metrics["train"]["ppo/value_loss"].append(float(self.accelerator.reduce(total_loss, reduction="mean")))

    # ---- saved and resumed with its critic ---------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.accelerator.is_main_process:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            critic = self.accelerator.unwrap_model(self.critic)
            state = {"critic": critic.state_dict(), "optimizer": self.critic_optimizer.state_dict()}
            torch.save(state, folder / CRITIC_FILE)

    def load_extra(self, checkpoint: Path) -> None:
        path = checkpoint / CRITIC_FILE
        if not path.is_file():
            raise ParallelSearchError(f"{checkpoint} has no {CRITIC_FILE}: it was not written by PPO")
        state = torch.load(path, map_location=self.accelerator.device, weights_only=True)
        self.accelerator.unwrap_model(self.critic).load_state_dict(state["critic"])
        self.critic_optimizer.load_state_dict(state["optimizer"])
