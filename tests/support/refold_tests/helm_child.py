"""Helm as its own library, controlled by lines of JSON. So Go's runtime stays out of the process that runs the tests.

    python -m refold_tests.helm_child LIBRARY

Each line on standard input is {"do": "template", "chart", "values" (files), "kube", "namespace", "name"},
{"do": "notes", the same} or {"do": "lint", "chart"}; each line of output is {"said", "error"}: text, or null.
The library is from com.marcnuri.helm-java, which wraps helm.sh/helm/v3; its header is next to it in the jar.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any


class _Result(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("out", "err", "std_out", "std_err")]


def _options(name: str, fields: str) -> type[ctypes.Structure]:
    kinds = {"*": ctypes.c_char_p, "+": ctypes.c_int}
    members = [(field.rstrip("*+"), kinds[field[-1]]) for field in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


# In the order of the header: + is an int, * a string.
_TEMPLATE = _options("_Template", (
    "name* version* chart* namespace* kube_version* dependency_update+ skip_crds+ values* set_files* values_files* "
    "cert_file* key_file* ca_file* insecure+ plain_http+ keyring* debug+ repository_config*"
))  # fmt: skip
_INSTALL = _options("_Install", (
    "name* generate_name+ name_template* version* chart* namespace* kube_version* atomic+ create_namespace+ "
    "description* devel+ dependency_update+ disable_open_api_validation+ dry_run+ dry_run_option* skip_crds+ wait+ "
    "timeout+ values* set_files* values_files* kube_config* kube_config_contents* cert_file* key_file* ca_file* "
    "insecure+ plain_http+ keyring* debug+ client_only+ repository_config*"
))  # fmt: skip
_LINT = _options("_Lint", "path* strict+ quiet+")


def _answer(library: Any, asked: dict[str, Any]) -> dict[str, str | None]:
    if asked["do"] == "lint":
        result = library.Lint(ctypes.byref(_LINT(path=asked["chart"].encode(), strict=1)))
    else:
        given = {
            "name": asked["name"].encode(), "chart": asked["chart"].encode(), "namespace": asked["namespace"].encode(),
            "kube_version": asked["kube"].encode(), "values_files": ",".join(asked["values"]).encode(),
        }  # fmt: skip
        if asked["do"] == "template":
            result = library.Template(ctypes.byref(_TEMPLATE(**given)))
        else:
            dry = {"dry_run": 1, "dry_run_option": b"client", "client_only": 1}
            result = library.Install(ctypes.byref(_INSTALL(**given, **dry)))
    said, error = (None if each is None else each.decode() for each in (result.out, result.err))
    return {"said": said, "error": error}


def main(path: str) -> None:
    """Answer requests until standard input ends."""
    # Nothing of this machine's own configuration is used, least of all a cluster.
    os.environ["KUBECONFIG"] = os.devnull
    library = ctypes.CDLL(path)
    for function in (library.Template, library.Install, library.Lint):
        function.restype = _Result
    for line in sys.stdin:
        print(json.dumps(_answer(library, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
