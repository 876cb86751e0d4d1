"""Loading the native library: where it is, which instruction set it uses, how many threads.

Owns: the one loaded library of the process and the reason why there is none. Must not know: models,
requests, tensors.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p

from radixserve import env
from radixserve.kernels.cpu.structs import (
    LinearArgs,
    ModelArgs,
    NormArgs,
    RotaryArgs,
    RowsArgs,
    SamplingArgs,
    ShapeArgs,
)
from radixserve.log import logger

_PATH = pathlib.Path(__file__).parent / "libradixserve_cpu.so"

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "rs_set_threads": (c_int32,),
    "rs_linear": (POINTER(LinearArgs),),
    "rs_gather": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int32),
    "rs_rms_norm": (POINTER(NormArgs), c_int64),
    "rs_rotary": (POINTER(RotaryArgs), c_int64),
    "rs_plan_free": (c_void_p,),
    "rs_plan_fill": (c_void_p, POINTER(RowsArgs)),
    "rs_attend": (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64),
    "rs_decoder": (POINTER(ModelArgs), *(c_void_p,) * 5, c_int64, c_void_p),
    "rs_sample": (POINTER(SamplingArgs),),
    "rs_logprobs": (c_void_p, c_int64, c_int64, c_void_p, c_void_p),
}


class Library:
    """The loaded library; every call blocks until it is done and holds no lock of Python.

    isa: the instruction set in use (avx512_bf16, avx2, neon, plain).
    """

    def __init__(self, path: pathlib.Path, isa: str) -> None:
        """isa: "" for the machine's best, or the beginning of a path's name.

        Raises OSError when the file cannot be loaded, ValueError when no such path runs here.
        """
        self.calls = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.calls, name)
            function.argtypes = arguments
            function.restype = None
        self.calls.rs_use.argtypes, self.calls.rs_use.restype = (c_char_p,), c_char_p
        self.calls.rs_plan_new.argtypes = (POINTER(ShapeArgs),)
        self.calls.rs_plan_new.restype = c_void_p
        self.calls.rs_plan_slots.argtypes = (c_void_p,)
        self.calls.rs_plan_slots.restype = POINTER(c_int64)
        self.isa = ""
        self.use(isa)

    def use(self, isa: str) -> None:
        """Compute on another path from now on. ValueError when none of the name runs here."""
        found = self.calls.rs_use(isa.encode())
        if found is None:
            raise ValueError(f"this machine or build has no native path {isa!r}")
        self.isa = found.decode()

    def set_threads(self, count: int) -> None:
        """Threads that compute, the calling one included; for the whole process."""
        self.calls.rs_set_threads(count)

    def new_plan(self, shape: ShapeArgs) -> int:
        """A plan of attention, to be freed with rs_plan_free."""
        return int(self.calls.rs_plan_new(byref(shape)))


@functools.cache
def load() -> Library | None:
    """The library, or None where torch has to do; which one and why is logged once."""
    library, reason = _load()
    if library is None:
        logger.info("kernels: torch (%s)", reason)
    else:
        logger.info("kernels: native %s", library.isa)
    return library


def _load() -> tuple[Library | None, str]:
    isa = env.isa()
    if isa == "off":
        return None, "RADIXSERVE_ISA=off"
    path = env.native_library() or _PATH
    if not path.exists():
        return None, "no compiler at install"
    try:
        return Library(path, isa), ""
    except (OSError, ValueError) as error:
        return None, str(error)
