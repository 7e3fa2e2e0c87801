"""Loaded by Python at its start, through PYTHONPATH, in programs of ``vramscope run --why``: imports the package, which then
answers requests. The program's own sitecustomize, if any, is executed as well."""

import glob
import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_original() -> None:
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _import_package() -> None:
    try:
        import vramscope
    except ImportError:
        # Another environment than the one that vramscope is installed in, which has this file in `lib/vramscope/python`.
        packages = glob.glob(os.path.join(os.path.dirname(os.path.dirname(_here)), "python3*", "*-packages"))
        sys.path.extend(packages)
        try:
            import vramscope  # noqa: F401
        except ImportError as error:
            sys.stderr.write(f"vramscope: cannot be imported for --why: {error}\n")
        finally:
            del sys.path[len(sys.path) - len(packages) :]


_import_package()
_run_original()
