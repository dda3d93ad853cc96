# SPDX-License-Identifier: Apache-2.0
"""What stands in for a GPU, its libraries and compiled kernels while the real Python of FlashInfer runs.

Each stub says so: "stub: ..." on standard error and a line {"stub": ...} on standard output. Nothing that
builds keys, maps buckets, reads files or compares versions is ever replaced.
"""
import json
import re
import sys
import types

# Names in an environment, with "capability" (default below); what a FlashInfer does not collect is ignored by it.
FIELDS = ("gpu", "cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version", "cutlass_dsl_version")
# The environment of the fixtures: a look-alike of a Blackwell node, no machine of anybody's.
LOOK_ALIKE = {
    "gpu": "NVIDIA B300 SXM6 AC",
    "cuda_version": "13.0",
    "cublas_version": "13.1.0",
    "cudnn_version": "91900",
    "cudnn_frontend_version": "1.26.0",
    "cutlass_dsl_version": "cpython-312;look-alike",
}
CAPABILITY = (10, 3)
SOURCE_OF_KERNELS = re.compile(r"gen_\w*module\w*")


def say(text):
    print(f"stub: {text}", file=sys.stderr, flush=True)
    print(json.dumps({"stub": text}), flush=True)


def modules():
    """The loaded modules of FlashInfer."""
    return [m for name, m in list(sys.modules.items()) if m and name.split(".")[0] == "flashinfer"]


class Module:
    """A compiled library: its functions can be taken, and called while a runner is made; they do nothing.
    FlashInfer 0.7 puts the class's name into its keys, so it is that of a loaded library (see kernels())."""

    def __getattr__(self, name):
        return lambda *args, **options: Module()


class Spec:
    """What builds a compiled library."""

    def build_and_load(self):
        return Module()

    def get_library_path(self):
        return "none"

    def get_library_paths(self):
        return []


def kernels():
    """Compiled kernels: need a GPU's compiler and a download."""
    import tvm_ffi

    Module.__name__ = tvm_ffi.Module.__name__
    replaced = 0
    for module in modules():
        for name, value in list(vars(module).items()):
            if callable(value) and SOURCE_OF_KERNELS.fullmatch(name):
                setattr(module, name, lambda *args, **options: Spec())
                replaced += 1
            elif name == "setup_cubin_loader":
                setattr(module, name, lambda *args: None)
    say(f"compiled kernels ({replaced} names gen_*_module): never built, loaded or run")


def device(gpu, capability=CAPABILITY):
    """The GPU that PyTorch sees."""
    import torch

    properties = types.SimpleNamespace(name=gpu, major=capability[0], minor=capability[1], multi_processor_count=148,
                                       total_memory=1 << 38)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda device=None: gpu
    torch.cuda.get_device_capability = lambda device=None: capability
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = lambda device: -1

    def scratch(name, size, device, zero_init=False):
        return torch.empty(size, dtype=torch.uint8, device=device)

    for module in modules():
        if hasattr(module, "_get_stream_cache_buf"):
            module._get_stream_cache_buf = scratch
    say(f"GPU: name {gpu}, compute capability {capability[0]}.{capability[1]}, tensors without memory")


def versions(environment):
    """The probes of library versions."""
    import torch
    from flashinfer.autotuner import autotuner

    torch.version.cuda = environment["cuda_version"]
    autotuner._get_cublas_version = lambda: environment["cublas_version"]
    autotuner._get_cudnn_backend_version = lambda: environment["cudnn_version"]
    sys.modules["cudnn"] = types.SimpleNamespace(__version__=environment["cudnn_frontend_version"])
    try:
        from flashinfer.jit import cute_dsl_core
    except ImportError:
        cute_dsl_core = None
    if hasattr(cute_dsl_core, "_get_cute_dsl_version"):
        cute_dsl_core._get_cute_dsl_version = lambda: environment["cutlass_dsl_version"]
    say("versions: " + ", ".join(f"{name} {environment[name]}" for name in FIELDS[1:]))


def install(environment=None):
    """Compiled kernels always; GPU and versions only if an environment is given."""
    if environment is not None:
        device(environment["gpu"], tuple(environment.get("capability", CAPABILITY)))
        versions(environment)
    kernels()
