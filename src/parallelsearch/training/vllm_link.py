"""What TRL's vLLM support needs around a run: checks before anything is loaded, TRL's options, and weights in step.

TRL starts vLLM (or meets the server) when its trainer is made, and streams the weights over: by NCCL to a server, by
assignment in the process. Here is when that happens, and from what: a LoRA adapter in bfloat16 is streamed from the copy it
is folded into, because TRL would add it to the frozen weights and subtract it again, which rounds them at every step.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
from typing import Any

from parallelsearch.errors import MissingExtraError, TransientError, UsageError, require
from parallelsearch.http import HttpClient, Response, get_now
from parallelsearch.training.guards import TrainingStoppedError
from parallelsearch.training.recipe import Recipe

CHECK_TIMEOUT_S = 10.0
MEET_TIMEOUT_S = 60.0
LOGPROBS_MODE = "processed_logprobs"
"""Log-probabilities at the sampling temperature: those the loss compares with."""
TRAINER_NAMES = ("use_vllm", "vllm_generation")
"""Attributes of TRL's trainer that are read here and in `grpo`."""
GENERATION_NAMES = ("model", "sync_weights", "llm", "vllm_client")
"""Attributes of TRL's `VLLMGeneration` that are read or set here."""


# ---- before anything is loaded ---------------------------------------------------------------------------------------


def check(recipe: Recipe) -> None:
    """Refuse a run that vLLM could not sample for, with what to type."""
    _check_installed()
    check_device()
    if recipe.rollout.vllm_mode == "server":
        check_server(recipe)


def supported_versions() -> Any:
    """The versions of vLLM that the installed TRL names, as a specifier set."""
    requirements = require("packaging.requirements", "train")
    for line in importlib.metadata.requires("trl") or []:
        requirement = requirements.Requirement(line)
        if requirement.name == "vllm":
            return requirement.specifier
    raise UsageError("the installed TRL names no version of vLLM; install the one this project was made for: trl 1.16")


def _check_installed() -> None:
    require("trl", "train")
    versions, advice = supported_versions(), "Type: pip install 'trl[vllm]'; or leave rollout.engine at \"auto\""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(
            f'rollout.engine = "vllm" needs vLLM, which is not installed here (TRL takes vllm{versions}; the trainer needs '
            f"it with a server too). {advice}"
        )
    version = require("packaging.version", "train").Version(importlib.metadata.version("vllm"))
    if not versions.contains(version.base_version):  # without the "+cu129" of a build
        raise UsageError(f"vLLM {version} is installed, and the installed TRL takes vllm{versions}. {advice}")


def check_device() -> None:
    if not require("torch", "train").cuda.is_available():
        raise UsageError(
            'rollout.engine = "vllm" needs a GPU for the trainer, and torch sees none here: the weights go to vLLM from '
            'there. Leave rollout.engine at "auto"'
        )


def base_url(recipe: Recipe) -> str:
    return f"http://{recipe.rollout.vllm_host}:{recipe.rollout.vllm_port}"


def serve_command(recipe: Recipe) -> str:
    """How the server for this recipe is started."""
    settings = recipe.rollout
    words = ["vllm", "serve", recipe.model.name, "--host", settings.vllm_host, "--port", str(settings.vllm_port)]
    words += ["--tensor-parallel-size", str(settings.vllm_tensor_parallel_size)]
    words += ["--gpu-memory-utilization", f"{settings.vllm_gpu_memory_utilization or 0.9:g}"]
    words += ["--max-model-len", str(settings.max_tokens), "--logprobs-mode", LOGPROBS_MODE]
    words += ["--weight-transfer-config", '{"backend": "nccl"}']
    return f"VLLM_SERVER_DEV_MODE=1 {shlex.join(words)}"


def check_server(recipe: Recipe) -> None:
    """The server answers, lets itself be given weights, and gives what the loss needs."""
    url = base_url(recipe)

    def refuse(problem: str) -> UsageError:
        return UsageError(f"the vLLM server {url} {problem}. Start it with:\n  {serve_command(recipe)}")

    try:
        health = _get(f"{url}/health")
        facts = _get(f"{url}/server_info?config_format=json")
    except _LateError as error:
        raise refuse(f"does not answer within {CHECK_TIMEOUT_S:g} s") from error
    except (UsageError, TransientError) as error:
        raise refuse(f"cannot be reached ({error})") from error
    if health.status != 200:
        raise refuse(f"says that it is not well ({health.status} from /health)")
    if facts.status == 404:
        raise refuse("hides what TRL needs to send it weights: VLLM_SERVER_DEV_MODE=1 is not in its environment")
    try:
        config = facts.json()["vllm_config"]
        transfer, model = config["weight_transfer_config"], config["model_config"]
        mode, room = model["logprobs_mode"], int(model["max_model_len"])
    except (ValueError, KeyError, TypeError) as error:
        raise refuse(f"does not say how it was started ({facts.status} from /server_info)") from error
    if transfer is None:
        raise refuse("was started without --weight-transfer-config, so it cannot be given new weights")
    if mode != LOGPROBS_MODE:
        raise refuse(f"was started with --logprobs-mode {mode}, and training needs {LOGPROBS_MODE}")
    if room < recipe.rollout.max_tokens:
        raise refuse(f"takes {room} tokens, fewer than rollout.max_tokens = {recipe.rollout.max_tokens}")


class _LateError(UsageError):
    """No answer within the time-out."""


def _get(url: str) -> Response:
    client = HttpClient("vLLM server", permanent=UsageError, late=_LateError, connect_timeout_s=CHECK_TIMEOUT_S)
    return get_now(client, url, timeout_s=CHECK_TIMEOUT_S)


def served_model(recipe: Recipe) -> str:
    """The name the server knows its model by."""
    try:
        return str(_get(f"{base_url(recipe)}/v1/models").json()["data"][0]["id"])
    except (UsageError, TransientError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"the vLLM server {base_url(recipe)} does not name its model: {error}") from error


# ---- TRL -------------------------------------------------------------------------------------------------------------


def config_options(recipe: Recipe) -> dict[str, Any]:
    """The recipe's vLLM in TRL's words."""
    settings = recipe.rollout
    has_correction = settings.vllm_correction != "none"
    options: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": settings.vllm_mode,
        "vllm_server_base_url": base_url(recipe),
        "vllm_server_timeout": MEET_TIMEOUT_S,
        "vllm_group_port": settings.vllm_group_port,
        "vllm_gpu_memory_utilization": settings.vllm_gpu_memory_utilization or 0.3,
        "vllm_max_model_length": settings.max_tokens,
        "vllm_importance_sampling_correction": has_correction,
    }
    return options | ({"vllm_importance_sampling_mode": settings.vllm_correction} if has_correction else {})


class WeightLink:
    """Keeps vLLM's weights those of the trainer. Made once TRL's trainer is."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._generation = trainer, trainer.vllm_generation
        self._synced_step = -1
        if not trainer.weights.samples_itself:
            self._generation.model = trainer.weights.sampler
        attach = getattr(trainer.collector.policy.engine, "attach", None)
        if attach is not None:
            attach(self._generation.llm, require("vllm", "train").SamplingParams)

    def sync(self) -> None:
        """Bring the newest weights over, once for each update. All processes call it; none goes on before all have."""
        step = int(self._trainer.state.global_step)
        if step == self._synced_step:
            return
        try:
            self._generation.sync_weights()
        except Exception as error:  # TRL lets through whatever its HTTP client or NCCL raises
            raise TrainingStoppedError(
                f"stopped at step {self._trainer.step}: vLLM did not take the new weights "
                f"({type(error).__name__}: {error}). Start the server again, then the run: it goes on from its newest "
                f"checkpoint. The server is started with:\n  {serve_command(self._trainer.recipe)}"
            ) from error
        self._synced_step = step
        self._trainer.accelerator.wait_for_everyone()
