"""A `refold` command while the kernel denies a call that confinement needs, as in some containers."""

from __future__ import annotations

import string

# The arguments are those of the command.
_DENYING = string.Template("""
import ctypes, errno, os, platform, struct, sys
name, seccomp = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, $call), (0x06, 0, 0, 0x00050000 | errno.$code), (0x06, 0, 0, 0x7FFF0000)]
held = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(seccomp, 1, 0, struct.pack("@HP", len(steps), ctypes.addressof(held))) == 0
os.execv(sys.executable, [sys.executable, "-P", "-m", "refold.explorer.cli.main", *sys.argv[1:]])
""")
REFUSING = _DENYING.substitute(call="seccomp", code="EPERM")
WITHOUT_NAMESPACES = _DENYING.substitute(call='{"x86_64": 272, "aarch64": 97}[platform.machine()]', code="EPERM")
WITHOUT_LANDLOCK = _DENYING.substitute(call=444, code="ENOSYS")
