"""Common names of processors: virtual machines say "AMD EPYC", but family and model name the design."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["microarchitecture"]

#: Models by vendor and family, as in /proc/cpuinfo. Source: the lists of x86 models in Linux's
#: arch/x86 (amd.c, intel-family.h).
_MODELS: Mapping[tuple[str, int], Mapping[str, Iterable[int]]] = {
    ("AuthenticAMD", 23): {"Zen": range(0x30), "Zen 2": range(0x30, 0x100)},
    ("AuthenticAMD", 25): {
        "Zen 3": (*range(0x10), *range(0x20, 0x60)),
        "Zen 4": (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)),
    },
    ("AuthenticAMD", 26): {"Zen 5": range(0x80)},
    ("GenuineIntel", 6): {
        "Haswell": (0x3C, 0x3F, 0x45, 0x46),
        "Broadwell": (0x3D, 0x47, 0x4F, 0x56),
        "Skylake": (0x4E, 0x5E, 0x55),
        "Ice Lake": (0x6A, 0x6C, 0x7D, 0x7E),
        "Sapphire Rapids": (0x8F,),
        "Emerald Rapids": (0xCF,),
        "Granite Rapids": (0xAD, 0xAE),
    },
}


def microarchitecture(info: Mapping[str, str]) -> str:
    """Return the name of a processor's design, from the lines of /proc/cpuinfo; empty if it is unknown."""
    family, model = (int(info.get(name) or -1) for name in ("cpu family", "model"))
    known = _MODELS.get((info.get("vendor_id", ""), family), {})
    named = next((name for name, models in known.items() if model in models), "")
    # A virtual machine may hide the model: a CPU with AMX is a Sapphire Rapids or newer.
    return named or ("Intel with AMX" if "amx_tile" in info.get("flags", "").split() else "")
