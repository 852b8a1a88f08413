"""Around calls into vLLM: its variables, what it prints, how it fails, what breaks it, and its kernels."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.contract import last_line

# Environment variables, where the user did not set them.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # A forked process would inherit the locks of threads that torch and tokenizers have started here.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}


def set_environment() -> None:
    """Set vLLM's environment variables where the user did not, for this process."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # vLLM wants room for one more token than it is given, past the model's maximum too.
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    # On a CPU it complains that Triton is not there.
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)


def mend_llvmlite() -> None:
    """Where numba is loaded, have its handle of LLVM take no `__name__` for a function of LLVM.

    vLLM's CPU build reads the `__dict__` of whatever any module holds, and breaks on a function.
    """
    bindings = sys.modules.get("llvmlite.binding.ffi")
    if bindings is None or not hasattr(bindings.lib, "__dict__"):
        return
    handle = type(bindings.lib)
    function = handle.__getattr__

    def only_functions(self: object, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return function(self, name)

    handle.__getattr__ = only_functions


def torch_kernels() -> dict[str, object]:
    """Have vLLM's CPU build take torch's kernels for linear layers, norms and activations.

    They add in the order in which transformers adds. A setting of vLLM chooses all but the linear layers;
    for these it looks at a name of its own, and a vLLM without it keeps its kernels.

    Returns:
        Arguments of vLLM.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    return {"compilation_config": {"custom_ops": ["none"]}}


@contextmanager
def quiet() -> Iterator[None]:
    """Without Python warnings, and with stdout, which is for results, going to stderr.

    Redirecting the file descriptor covers what C++ and child processes print.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Any failure of vLLM as an engine error that ends with its last line."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # vLLM raises its own, pydantic's, torch's and built-in errors.
        raise EngineError(
            f"vLLM {what}: {last_line(error)}\n"
            "Set VLLM_LOGGING_LEVEL=INFO to see its log, or use `engine='transformers'`."
        ) from error
