"""bayescope: one model, any posterior, one honest answer.

Estimators for tables, inference for any log density, and a comparison of every posterior against NUTS. Whatever the
approximation, the answer is a `Posterior` whose `predict` gives a `Predictive`.

Each public name is imported where it is first used, so that `import bayescope` takes no time: `__init__.pyi`
beside this file lists them with their homes.
"""

import ast
import importlib
import pkgutil
import sys
from types import ModuleType

import bayescope_command.process  # noqa: F401  # from here on a signal ends `python -m bayescope` in one line

_HOMES = {
    alias.name: statement.module
    for statement in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = importlib.import_module("importlib.metadata").version(__name__)
    elif (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif home == __name__:
        value = _imported(f"{home}.{name}")
    else:
        value = getattr(_imported(home), name)
    globals()[name] = value
    return value


def _imported(home: str) -> ModuleType:
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:  # the docs say what a slim install does without
        from bayescope.errors import MissingDependencyError

        raise MissingDependencyError.of_slim_install(error) from error


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Functions keep their names: an import of the module `bayescope.laplace` does not hide `bayescope.laplace()`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and _HOMES.get(name, __name__) != __name__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
