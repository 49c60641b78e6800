"""`penstock compile`: compiles all kernels, for an image or before the first job."""

from __future__ import annotations

from penstock.cli.options import JsonOption, print_json, say
from penstock.client.kernels import compile_kernels, kernel_modules


def compile_all(*, json: JsonOption = False) -> None:
    """Compile the kernels before the first job needs them.

    Otherwise the first job of an installation does it. The result is stored in the package's folder, or in
    ~/.cache/penstock if that folder is not writable.
    """
    compiled, modules = compile_kernels(benchmarks=True), len(kernel_modules(benchmarks=True))
    if json:
        print_json({"modules": modules, "compiled": compiled})
    elif not compiled:
        say(f"the kernels of {modules} modules are already compiled")
