"""Training on a cluster: a plug-in to an unmodified verl (Ray, vLLM or SGLang, FSDP). docs/cluster.md."""
