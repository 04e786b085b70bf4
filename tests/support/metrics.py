"""``make metrics``: how large and how entangled the package is, beside bounds and goals.

``metrics.toml`` says what each number counts, its bound and its goal. A unit test holds the numbers
to their bounds; ``--loaded`` adds those that need processes.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomllib
from loaded_modules import measure_loaded
from places import ROOT, SUPPORT

PACKAGE = ROOT / "dlperf_hpc"
BOUNDS = SUPPORT / "metrics.toml"
_COUNTED = (".py", ".js", ".css", ".j2", ".html", ".toml", ".json")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)
_COMPARING = (
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "search",
    "match",
    "compile",
)
_NAMED = {
    **{ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"},
    **dict.fromkeys((ast.ClassDef, *_FUNCTIONS, ast.alias, ast.ExceptHandler), "name"),
}
_WORDS = re.compile(r"[a-z]{2,} [a-z]{2,}")


@dataclass(frozen=True)
class Module:
    """A file of the package and its syntax tree."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def _nodes(self) -> dict[type[ast.AST], list[Any]]:
        found = defaultdict(list)
        for node in walk(self.tree):
            found[type(node)].append(node)
        return found

    def all(self, *kinds: type[ast.AST]) -> list[Any]:
        """The nodes of some kinds."""
        return [node for kind in kinds for node in self._nodes.get(kind, ())]

    def docstrings(self) -> list[ast.Expr]:
        """Strings that stand as statements, docstrings of attributes among them."""
        return [node for node in self.all(ast.Expr) if _string(node.value) is not None]


def walk(root: ast.AST) -> list[ast.AST]:
    """All nodes at and below one, as :func:`ast.walk`, in half the time."""
    found = [root]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
    return found


def _string(node: ast.AST | None) -> str | None:
    """The text of a constant, of bytes as well; None of everything else."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
        return None
    return node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def read_modules(package: Path = PACKAGE) -> list[Module]:
    """All modules below a package, in the order of their paths."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, path.read_text(encoding="utf-8")))
    return found


def counted_files(package: Path = PACKAGE) -> list[Path]:
    """Everything that somebody wrote and maintains: no vendored file, no table of results."""
    files = (path for path in package.rglob("*") if path.suffix in _COUNTED)
    return [path for path in files if "vendor" not in path.parts]


def code_lines(module: Module) -> int:
    """Lines that are not blank, no comment and no docstring."""
    documented = {
        line
        for node in module.docstrings()
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate((line.strip() for line in module.text.splitlines()), 1)
    return sum(1 for n, text in lines if text and text[0] != "#" and n not in documented)


def imports(module: Module, names: Iterable[str]) -> Iterator[str]:
    """The package's modules that a module names in an import, wherever in it."""
    for node in module.all(ast.Import):
        yield from (alias.name for alias in node.names if alias.name in names)
    for node in module.all(ast.ImportFrom):
        base = _absolute(module, node)
        for alias in node.names:
            name = f"{base}.{alias.name}"
            yield name if name in names else base


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    levels = node.level - (module.path.name == "__init__.py")
    parent = module.name.rsplit(".", levels)[0] if levels else module.name
    return f"{parent}.{node.module}" if node.module else parent


def circles(modules: Sequence[Module]) -> list[list[str]]:
    """Strongly connected modules, imports for types and inside functions counted."""
    names = {module.name for module in modules}
    reached = {each.name: set(imports(each, names)) & names for each in modules}
    for via in names:  # Warshall
        for targets in reached.values():
            if via in targets:
                targets |= reached[via]
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in names
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def complexity(function: ast.AST) -> int:
    """One, and one for each branch, condition's operand and loop, those of comprehensions too."""
    total = 1
    for node in walk(function):
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
    return total


def _identifiers(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for kind, field in _NAMED.items():
            yield from (name for node in module.all(kind) if (name := getattr(node, field)))


def _twins(paths: Iterable[Path]) -> set[str]:
    """Rooms of a class; a model's PyTorch and TensorFlow form mean the same thing."""
    return {re.sub(r"train/(torch|tensorflow)/.*", "models", path.as_posix()) for path in paths}


def ambiguous_classes(modules: Iterable[Module]) -> list[str]:
    """Names of classes that are defined with more than one meaning."""
    places = defaultdict(set)
    for module in modules:
        for node in module.all(ast.ClassDef):
            places[node.name].add(module.path)
    return sorted(name for name, paths in places.items() if len(_twins(paths)) > 1)


def _documented(module: Module) -> Iterator[bool]:
    """Of each public class, function and method: has it a docstring?"""
    public = (node for node in module.all(ast.ClassDef) if node.name[0] != "_")
    for owner in (module.tree, *public):
        for node in owner.body:
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name[0] != "_":
                yield ast.get_docstring(node) is not None


def _tables(module: Module) -> Iterator[ast.expr]:
    """Values of a module's constants."""
    for node in module.tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            yield node.value


def failure_tables(modules: Iterable[Module], words: Sequence[str]) -> list[str]:
    """Modules whose constants hold at least two of the words that failures are known by."""
    found = []
    for module in modules:
        constants = (_string(node) for table in _tables(module) for node in walk(table))
        text = "\n".join(filter(None, constants)).lower()
        if sum(word in text for word in words) > 1:
            found.append(module.name)
    return found


def compared_sentences(modules: Iterable[Module], others: Sequence[str]) -> list[str]:
    """Texts of two words or more that are compared and stand in what another module says.

    Compared are operands of a comparison, arguments of ``startswith`` and of patterns, and tables
    of tuples. ``others`` are rooms that read what other programs print.
    """
    own = [module for module in modules if not module.name.startswith(tuple(others))]
    said: dict[str, str] = {}
    for module in own:
        documented = {id(node.value) for node in module.docstrings()}
        constants = (node for node in module.all(ast.Constant) if id(node) not in documented)
        texts = (_string(node) or "" for node in constants)
        said[module.name] = "\n".join(texts)
    found = set()
    for module in own:
        for node in _compared(module):
            plain = re.split(r"[.*+?|()\[\]^$]+", (_string(node) or "").replace("\\", ""))
            pieces = [piece for piece in plain if _WORDS.search(piece)]
            others_say = (text for name, text in said.items() if name != module.name)
            if pieces and any(piece in text for text in others_say for piece in pieces):
                found.add(f"{module.name}:{node.lineno}")
    return sorted(found)


def _compared(module: Module) -> Iterator[ast.Constant]:
    """The constants that a module compares with."""
    roots: list[ast.AST] = []
    for node in module.all(ast.Compare):
        roots += [node.left, *node.comparators]
    for node in module.all(ast.Call):
        if getattr(node.func, "attr", "") in _COMPARING:
            roots += node.args[:1]
    for table in _tables(module):
        if isinstance(table, ast.Tuple) and any(isinstance(row, ast.Tuple) for row in table.elts):
            roots.append(table)
    for root in roots:
        yield from (node for node in walk(root) if isinstance(node, ast.Constant))


def present(modules: Sequence[Module], anchors: Sequence[str]) -> int:
    """How many of ``MODULE:NAME`` are defined, of ``MODULE:`` there, of ``import:NAME`` used."""
    defined = {f"{module.path.stem}:" for module in modules}
    for module in modules:
        for node in module.all(ast.ClassDef, *_FUNCTIONS):
            defined.add(f"{module.path.stem}:{node.name}")
        for node in module.all(ast.ImportFrom):
            defined.add(f"import:{(node.module or '').partition('.')[0]}")
    return len(defined & set(anchors))


def measure(rules: Mapping[str, Any]) -> dict[str, float]:
    """Every number that needs no process, by its name in ``metrics.toml``."""
    modules, files = read_modules(), counted_files()
    lengths = {path: len(path.read_bytes().splitlines()) for path in files}
    total = sum(lengths.values())
    functions = [function for module in modules for function in module.all(*_FUNCTIONS)]
    sizes = sorted((each.end_lineno or 0) - each.lineno + 1 for each in functions)
    thousands = sum(map(code_lines, modules)) / 1000
    stems = Counter(path.name for path in files if not path.name.startswith("__"))
    documented = [each for module in modules for each in _documented(module)]
    pages = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]

    def count(*kinds: type[ast.AST]) -> int:
        return sum(len(module.all(*kinds)) for module in modules)

    return {
        "lines": total,
        "files": len(files),
        "lines_per_unit": round(total / rules["units"], 1),
        "longest_file": max(lengths.values()),
        "function_median": statistics.median_low(sizes),
        "function_p95": sizes[int(0.95 * len(sizes))],
        "function_longest": sizes[-1],
        "complex_functions": sum(complexity(each) > 10 for each in functions),
        "conditional_expressions": round(count(ast.IfExp) / thousands, 1),
        "comprehensions": round(count(*_COMPREHENSIONS) / thousands, 1),
        "documented": round(100 * sum(documented) / len(documented), 1),
        "circles": len(circles(modules)),
        "failure_tables": len(failure_tables(modules, rules["failures"])),
        "validators": present(modules, rules["validators"]),
        "line_descriptions": present(modules, rules["line_descriptions"]),
        "ambiguous_classes": len(ambiguous_classes(modules)),
        "repeated_files": sum(count > 1 for count in stems.values()),
        "vague_identifiers": sum(
            word in name.lower() for name in _identifiers(modules) for word in rules["words"]
        ),
        "compared_sentences": len(compared_sentences(modules, rules["others"])),
        "batch_size_modules": sum(bool(re.search(r"\bbatch_size\b", m.text)) for m in modules),
        "docs_pages": len(pages) - 1,
        "docs_words": sum(len(path.read_text(encoding="utf-8").split()) for path in pages),
    }


def read_bounds() -> dict[str, Any]:
    """The content of ``metrics.toml``."""
    return tomllib.loads(BOUNDS.read_text(encoding="utf-8"))


def beyond(values: Mapping[str, float], bounds: Mapping[str, Any]) -> list[str]:
    """A line for each number that is beyond its bound."""
    found = []
    for name, value in values.items():
        bound = bounds["numbers"][name]["bound"]
        least = bounds["numbers"][name].get("least", False)
        if (value < bound) if least else (value > bound):
            found.append(
                f"{name} is {value:g}, its bound {bound:g}: mend it, or say why in {BOUNDS}"
            )
    return found


def main(argv: Sequence[str]) -> int:
    """Print every number with its bound and its goal; 1 if one is beyond its bound."""
    bounds = read_bounds()
    values = measure(bounds["rules"])
    if "--loaded" in argv:
        values |= measure_loaded()
    print(f"{'number':24} {'now':>8} {'bound':>8} {'goal':>8}  what is counted")
    for name, value in values.items():
        row = bounds["numbers"][name]
        print(f"{name:24} {value:8g} {row['bound']:8g} {row['goal']:>8}  {row['what']}")
    for line in beyond(values, bounds):
        print(line)
    return int(bool(beyond(values, bounds)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
