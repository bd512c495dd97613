"""Training on one machine: cold start, GRPO and PPO. The rollout, rewards and masks are the core's; this only adapts."""
