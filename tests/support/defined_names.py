"""What a source file defines, for pages that name it as `path:Name`."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def defined(file: Path) -> set[str]:
    """Functions, classes and methods: `name`, `Class.name`."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":  # Cython: its classes and functions, without their methods
        return set(re.findall(r"^(?:cdef class|class|def|cpdef \w+) (\w+)", text, re.MULTILINE))
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return found
