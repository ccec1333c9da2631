"""The rules of the source itself: imports point down, files and functions stay short."""

import ast
from collections.abc import Iterator
from pathlib import Path

import siafu

PACKAGE = Path(siafu.__file__).parent
LAYERS = [
    {"errors", "collector", "files", "memory"},
    {"options", "signals", "record", "ops", "graph"},
    {"ingest", "partitioning", "comm"},
    {"shard", "nn"},
    {"strategy", "checkpoint", "minibatch", "elastic"},
    {"pipeline"},
    {"config"},
    {"plan"},
    {"engine", "report"},
    {"launch"},
    {"cli"},
]
RANK = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FILE_OF_KERNELS = 500
MOST_LINES_OF_A_FUNCTION = 60
COMPILERS = {"kernel", "strict_kernel", "callee", "jit", "keyed"}
"""Decorators of functions compiled by Numba or Triton: kernels may be as long as they need be."""


def home_of(path: Path) -> str:
    """Return the package a file belongs to; files beside the packages are above them all."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for each module, or name of one, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= RANK.keys()


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in FILES
        if (home := home_of(path)) in RANK
        for line, name in imported(path)
        if name.startswith("siafu.")
        and (target := name.split(".")[1]) != home
        and RANK.get(target, len(LAYERS)) >= RANK[home]
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_distributed_is_used_by_comm_alone() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in FILES
        for line, name in imported(path)
        if name.startswith("torch.distributed") and not _may_use(home_of(path), name)
    ]
    assert not wrong, "\n".join(wrong)


def _may_use(home: str, name: str) -> bool:
    return home == "comm" or (home == "launch" and name.startswith("torch.distributed.elastic"))


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Numba or Triton compiles the function."""
    return any(isinstance(d, ast.Name) and d.id in COMPILERS for d in function.decorator_list)


def test_files_are_short() -> None:
    long = []
    for path in FILES:
        lines = len(path.read_text().splitlines())
        if lines > MOST_LINES_OF_A_FILE:
            of_kernels = any(map(is_kernel, functions(path)))
            if not of_kernels or lines > MOST_LINES_OF_A_FILE_OF_KERNELS:
                long.append(f"{path.relative_to(PACKAGE)}: {lines} lines")
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}: {lines} lines"
        for path in FILES
        for node in functions(path)
        if not is_kernel(node)
        and (lines := node.end_lineno - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not long, "\n".join(long)
