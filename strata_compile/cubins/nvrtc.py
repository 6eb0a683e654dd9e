"""NVRTC through ctypes: versions 12 and 13 in one process, and no driver.

NVIDIA's own binding loads one NVRTC per process; a bundle for sm_70 and sm_120 needs two.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import re

from strata_compile.cubins.wheels import COMPILERS, wheel_file
from strata_compile.errors import KernelCompileError

_LOG = logging.getLogger(__name__)

MAJORS = (13, 12)  # in the order of preference
NEWEST_ONLY_12 = 72  # NVRTC 13 starts at sm_75
_ARCH = re.compile(r"sm_(\d{2,3})[af]?")
_ERROR = re.compile(r".+\(\d+\): (catastrophic )?error|nvrtc: error|ptxas (error|fatal)")


class Nvrtc:
    """One loaded NVRTC.

    `version` is (major, minor); `build` has the wheel's patch number too, as far as it is known;
    `supported` holds architectures as numbers: 86 for sm_86.
    """

    def __init__(self, library: ctypes.CDLL, wheel_version: str | None) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version: tuple[int, int] = (major.value, minor.value)
        self.build: str = wheel_version or f"{major.value}.{minor.value}"
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        self.supported: frozenset[int] = frozenset(archs)

    @staticmethod
    def load(major: int) -> Nvrtc | None:
        """The NVRTC of this major version: the wheel's, else the system's; None without either.

        KernelCompileError for a wheel whose library cannot be loaded.
        """
        return _load(major)

    def compile(self, source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
        """A cubin; KernelCompileError with the first error and the whole log.

        `name` stands for the source in messages, and in what C++ derives from a file's name
        (`__FILE__`, anonymous namespaces). Warnings go to this module's logger, at level debug.
        """
        assert "\0" not in source + name, "C would stop reading there"
        given = [option.encode() for option in (*options, f"--gpu-architecture={arch}")]
        if self.version >= (12, 9):  # the compiler's own cache came then, and loads the driver
            given.append(b"--no-cache")
        program = ctypes.c_void_p()
        texts = source.encode(), name.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), *texts, 0, None, None)
        try:
            array = (ctypes.c_char_p * len(given))(*given)
            result = self._library.nvrtcCompileProgram(program, len(given), array)
            log = self._content("nvrtcGetProgramLog", program).decode(errors="replace").rstrip("\0")
            if result:
                raise KernelCompileError(_first_error(log) or self._words(result), log=log)
            if log:
                _LOG.debug("%s for %s: %s", name, arch, log)
            return self._content("nvrtcGetCUBIN", program)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _content(self, getter: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw

    def _call(self, name: str, *args: object) -> None:
        result: int = getattr(self._library, name)(*args)
        if result:
            raise KernelCompileError(f"{name}: {self._words(result)}")

    def _words(self, result: int) -> str:
        return bytes(self._library.nvrtcGetErrorString(result)).decode()


def compiler_for(arch: str) -> Nvrtc:
    """The NVRTC for an architecture such as sm_86: version 13 where it can, else 12.

    KernelCompileError says what to install, or which architectures there are.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise KernelCompileError(f"{arch}: not an architecture, as sm_86 is one")
    number, found = int(match[1]), []
    for major in MAJORS:
        nvrtc = Nvrtc.load(major)
        if nvrtc is not None and number in nvrtc.supported:
            return nvrtc
        if nvrtc is not None:
            found.append(nvrtc)
    raise KernelCompileError(_why_not(arch, number, found))


def _why_not(arch: str, number: int, found: list[Nvrtc]) -> str:
    if number <= NEWEST_ONLY_12 and all(nvrtc.version[0] != 12 for nvrtc in found):
        return f"{arch} needs NVRTC 12: install the extra cuda12"
    if not found:
        return f"{arch} needs NVRTC: install the extra cuda"
    versions = " and ".join(nvrtc.build for nvrtc in found)
    known = sorted(frozenset().union(*(nvrtc.supported for nvrtc in found)))
    return f"{arch} is unknown to NVRTC {versions}: {', '.join(f'sm_{n}' for n in known)}"


@functools.cache
def _load(major: int) -> Nvrtc | None:
    soname = f"libnvrtc.so.{major}"
    wheel = wheel_file(COMPILERS[major], soname)
    try:
        if wheel is not None:
            # NVRTC asks for these by name alone; older wheels do not say where they are.
            for builtins in wheel.path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
            return Nvrtc(ctypes.CDLL(str(wheel.path)), wheel.version)
        return Nvrtc(ctypes.CDLL(soname), None)
    except OSError as error:
        if wheel is None:
            return None
        raise KernelCompileError(f"NVRTC {major} cannot be loaded: {error}") from error


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if _ERROR.match(line)), "")
