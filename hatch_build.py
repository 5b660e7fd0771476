"""The optional compiled build: REFOLD_COMPILE=1 lets mypyc turn the hot path into C, from the same typed Python.

    REFOLD_COMPILE=1 pip install .

1. Copy src/refold with its links followed, for mypyc writes beside what it reads.
2. Compile the modules of the hot path there, as one group.
3. Put the extension modules into the wheel beside their sources; Python takes the extension of a name first.
Editable installs stay plain Python: an extension would hide every later edit. Where no C compiler is found the wheel is
plain too, and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOT_PATH = (
    *(f"avro/{name}.py" for name in ("canonical", "codec", "decoder", "encoder", "fast_reader", "ids")),
    *(f"reducers/{name}.py" for name in (
        "arithmetic", "cells", "collection", "custom", "dedup_state", "entity", "fold", "links", "order", "scalar",
        "state",
    )),
    *(f"streams/{name}.py" for name in (
        "change_codec", "changes", "digest", "history", "partition", "rebuild/replay", "snapshots/buckets",
        "snapshots/chunk", "snapshots/layers", "snapshots/seal", "sources", "table/batch",
        "table/folds", "table/keys", "table/pinned",
    )),
)  # fmt: skip
# The one name that stands at the top level of site-packages beside refold itself.
GROUP = "refold_compiled"
# The C compiler's -O. A build that is only to be tested does with 0, in little more than half the time.
OPTIMIZATION = os.environ.get("REFOLD_COMPILE_OPTIMIZATION", "3")
COMPILE = """
import sys
from mypyc.build import mypycify
from setuptools import setup

optimization, group, *modules = sys.argv[1:]
# What is compiled reaches, by its types, modules that are not, and libraries that a build has not: no matter here.
flags = ["--ignore-missing-imports", "--follow-imports=silent", "--namespace-packages", "--explicit-package-bases"]
setup(name="refold-compiled", packages=[], py_modules=[], script_args=["build_ext", "--inplace"],
      ext_modules=mypycify([*flags, *modules], opt_level=optimization, group_name=group))
"""


def wanted() -> bool:
    """Whether this build is asked to compile."""
    return os.environ.get("REFOLD_COMPILE", "") not in ("", "0")


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled hot path to a wheel."""

    def dependencies(self) -> list[str]:
        return ["mypy>=2.4.1,<2.5", "setuptools>=77"] if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not wanted():
            return
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        if shutil.which(compiler) is None:
            self.app.display_warning(f"no C compiler ({compiler}) is found: this build is plain Python")
            return
        self._folder = tempfile.mkdtemp(prefix="refold-compile-")
        build = Path(self._folder)
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(self.root, "src", "refold"), build / "refold", ignore=caches)
        command = [sys.executable, "-c", COMPILE, OPTIMIZATION, GROUP, *(f"refold/{module}" for module in HOT_PATH)]
        done = subprocess.run(command, cwd=build, env={**os.environ, "MYPYPATH": self._folder},
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"mypyc could not compile the hot path:\n{done.stdout}\n{done.stderr}")
        for extension in build.glob("**/*.so"):
            if "build" not in extension.relative_to(build).parts:
                build_data["force_include"][str(extension)] = str(extension.relative_to(build))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
