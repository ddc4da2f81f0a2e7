"""Builds the one compiled module; everything else is in pyproject.toml.

Without a C compiler (or with FENCEPOST_NO_KERNEL=1) the install goes on with the Python twin and says so:
`fencepost.kernel` warns loudly at run time as well.
"""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

TWIN = "fencepost: the compiled kernel was not built ({why}); installing with the slower Python twin"


class OptionalKernel(build_ext):
    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - any failure of the toolchain means the same: use the twin
            print(TWIN.format(why=error), file=sys.stderr)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001
            print(TWIN.format(why=error), file=sys.stderr)


flags = os.environ.get("FENCEPOST_CFLAGS", "-O3").split()
kernel = Extension(
    "fencepost.kernel._batch",
    ["src/fencepost/kernel/_batch.pyx"],
    depends=[
        f"src/fencepost/kernel/{part}"
        for part in (
            "_ahead.pxi",
            "_bytes.pxi",
            "_columns.pxi",
            "_intake.pxi",
            "_rows.pxi",
            "_walk.pxi",
            "_native.h",
        )
    ],
    extra_compile_args=flags,
    extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
)
setup(
    ext_modules=[] if os.environ.get("FENCEPOST_NO_KERNEL") else [kernel],
    cmdclass={"build_ext": OptionalKernel},
)
