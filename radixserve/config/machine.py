"""What this computer is, as far as "auto" settings ask.

Owns: reading core counts, CPU features and the presence of a GPU. Must not know: settings, torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
from dataclasses import dataclass

import psutil

from radixserve import env
from radixserve.ints import ceil_div

_CPUINFO = pathlib.Path("/proc/cpuinfo")
_CPU_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")
_NATIVE = pathlib.Path(__file__).parents[1] / "kernels" / "cpu" / "libradixserve_cpu.so"
_DEVICES = pathlib.Path("/dev")
_CUDA_LIBRARY = "libtorch_cuda.so"  # in a torch that was built for CUDA


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: physical cores that this process may use. cpu_features: Linux's names, or empty.

    has_gpu: there is an NVIDIA GPU, and the torch that is installed was built for CUDA.
    has_native: the native CPU kernels were built, load, and are not switched off.
    """

    cores: int
    cpu_features: frozenset[str] = frozenset()
    has_gpu: bool = False
    has_native: bool = False


def this_machine() -> Machine:
    """The computer this process runs on."""
    cpuinfo = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    quota = _CPU_QUOTA.read_text() if _CPU_QUOTA.exists() else "max"
    return Machine(
        cores=usable_cores(psutil.cpu_count(logical=False), _allowed_cpus(), quota),
        cpu_features=cpu_features(cpuinfo),
        has_gpu=has_gpu(_DEVICES, _torch_libraries()),
        has_native=env.isa() != "off" and _loads(_NATIVE),
    )


def has_gpu(devices: pathlib.Path, libraries: pathlib.Path | None) -> bool:
    """Whether a GPU is among `devices` and torch's `libraries` can use it; torch is not loaded."""
    if libraries is None or not (libraries / _CUDA_LIBRARY).exists():
        return False
    return any(path.name[len("nvidia") :].isdigit() for path in devices.glob("nvidia*"))


def _torch_libraries() -> pathlib.Path | None:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    return pathlib.Path(found.origin).parent / "lib"


def _loads(library: pathlib.Path) -> bool:
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def usable_cores(physical: int | None, allowed: int | None, quota: str) -> int:
    """The least of physical cores, CPUs this process is bound to, and the container's quota.

    quota: text of cgroup's cpu.max, "max 100000" or microseconds per period: "150000 100000" is
    one CPU and a half and counts as 2.
    """
    limits = [count for count in (physical, allowed) if count]
    share = quota.split()
    if len(share) == 2 and share[0].isdigit() and int(share[1]) > 0:
        limits.append(max(1, ceil_div(int(share[0]), int(share[1]))))
    return min(limits, default=1)


def cpu_features(cpuinfo: str) -> frozenset[str]:
    """Feature names in the text of /proc/cpuinfo ("flags" on x86, "Features" on Arm)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _allowed_cpus() -> int | None:
    bound_to = getattr(psutil.Process(), "cpu_affinity", None)  # some systems have none
    return len(bound_to()) if bound_to else None
