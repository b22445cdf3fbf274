"""What every engine loads or makes when it starts, done once before processes are forked."""

import gc
from importlib import import_module
from importlib.util import find_spec

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")  # compiles hundreds of patterns

if find_spec("vllm"):
    from torch._dynamo import config as compiling
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging_if_needed
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform

    # Engines set it, but torch reads it at its import
    compiling.disable = current_platform.is_cpu()
    # Goes through all loggers that there are
    configure_logging_if_needed(LoggingConfig())

    for name in (
        "mia_batch.evidence.engines.vllm",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.v1.core.sched.scheduler",
        "vllm.v1.engine.llm_engine",
        *(["vllm.v1.worker.cpu_worker"] if current_platform.is_cpu() else []),
    ):
        import_module(name)
    current_platform.register_triton_kernel_overrides()  # looks at all there is in all modules
    current_platform.register_triton_kernel_overrides = lambda: None
    # Else vLLM starts a process that loads all libraries anew, to look at a model's class
    for module in ("llama", "mixtral"):
        models = import_module(f"vllm.model_executor.models.{module}")
        name = f"{module.title()}ForCausalLM"
        ModelRegistry.register_model(name, getattr(models, name))

gc.freeze()  # no forked process looks through all this for garbage
gc.unfreeze = lambda: None  # nor does vLLM when it ends
