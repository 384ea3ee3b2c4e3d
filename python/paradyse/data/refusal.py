"""What a user can mend, said so that they can: what, where, why, what to do."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

PACKAGES = "all that paradyse-data can use, in a clone of the repository: pip install '.[data]'"


class Refused(Exception):
    """Ends a command with its message and exit code 2."""


def refuse(where: object, what: str) -> NoReturn:
    raise Refused(f"{where}: {what}")


def need(module: str, package: str, use: str) -> Any:
    """The module of an optional package, which `use` says what for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refused(f"{use} needs the Python package {package} ({error}); install it: pip install {package} "
                      f"({PACKAGES})") from error
