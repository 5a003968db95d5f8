"""Counts what readers of code stumble over: names, conditions and comments, in the product or in packages named.

`python -m tests.support.plain_code writer/hooks bucketers --worst 20` prints the figures of packages and lists places.
A figure is a place to look, not a verdict: code is never bent to please it, nor folded to save a line.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("writer", "bucketers", "autoscaler", "recovery")
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IRREGULAR_PARTICIPLES = _words(
    """
    made told held kept known drawn shown given taken found left lost sent spent said seen gone done begun woven chosen
    frozen hidden written broken built bound bent risen grown thrown born reborn heard meant met paid stood struck
    thought understood worn become fallen forgotten got gotten led lent laid lain overrun shrunk sought spoken stolen
    stuck swept torn won wound
    """
)
# Nouns and verbs that end as a participle does, or are as often a verb.
NO_PARTICIPLES = _words("read put set cut split run let hit need speed seed feed bed red embed proceed exceed succeed")
PARTICLES = _words("up off out in on over too again by with from to there away apart together at for of")
# A name that begins with one of these is a question or a test, and may end in a participle.
QUESTION_WORDS = _words("is has was are does may can must needs test")
VAGUE_NAMES = _words(
    """
    found one at place known what there it those them this that these held kept made said told wish box words walk
    standing filling lake board book ring end here whole rest
    """
)
# The folder of commands in a package.
COMMANDS = "cli"
COMMENTS_FOR_TOOLS = ("noqa", "type:", "fmt:", "pragma", "nosec", "pyright", "mypy")


@dataclass(frozen=True)
class Place:
    """Where a count comes from: a name, or the kind of a statement, at a line of a module."""

    path: Path
    line: int
    text: str


@dataclass
class Findings:
    """What one or more modules have of each kind."""

    lines: int = 0
    code_lines: int = 0
    modules: int = 0
    long_modules: int = 0
    classes: int = 0
    functions: int = 0
    long_functions: int = 0
    comments_above: int = 0
    comments_behind: int = 0
    fmt_skips: int = 0
    participles: list[Place] = field(default_factory=list)
    vague_names: list[Place] = field(default_factory=list)
    ternaries: list[Place] = field(default_factory=list)
    tuple_assignments: list[Place] = field(default_factory=list)

    def densities(self) -> dict[str, float]:
        """Return each figure that has a ceiling: participles in percent of functions, others per 1,000 code lines."""
        counts = {
            "vague names": len(self.vague_names),
            "ternaries": len(self.ternaries),
            "tuple assignments": len(self.tuple_assignments),
            "fmt skip": self.fmt_skips,
            "comments behind code": self.comments_behind,
        }
        percent = 100 * len(self.participles) / max(self.functions, 1)
        return {"participles": percent} | {
            name: 1000 * count / max(self.code_lines, 1) for name, count in counts.items()
        }

    def places(self) -> Iterator[Place]:
        """Return what is to be renamed or unfolded, one kind after the other."""
        yield from self.participles
        yield from self.vague_names
        yield from self.ternaries
        yield from self.tuple_assignments


def is_participle(word: str) -> bool:
    """Return whether a word is a past participle, by its ending or by the list of irregular ones."""
    if word in NO_PARTICIPLES:
        return False
    return word in IRREGULAR_PARTICIPLES or (word.endswith("ed") and len(word) > len("bed"))


def names_a_participle(name: str) -> bool:
    """Return whether a function's name ends in a participle, or in one and a particle (`drawn_up`, `hashed_too`)."""
    parts = [word for word in name.split("_") if word]
    while len(parts) > 1 and parts[-1] in PARTICLES:
        parts.pop()
    return bool(parts) and parts[0] not in QUESTION_WORDS and is_participle(parts[-1])


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is read as an attribute, whose name may be an adjective."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any("property" in decorator or "setter" in decorator for decorator in decorators)


def assigns_two_things(node: ast.AST) -> bool:
    """Return whether a statement is `a, b = x, y`; a swap is not."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return False
    return set(map(ast.unparse, target.elts)) != set(map(ast.unparse, node.value.elts))


def variable_name(node: ast.AST) -> str:
    """Return the variable that a node sets or the parameter that it declares; empty for other nodes."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return ""


def inspect_module(path: Path, findings: Findings) -> None:
    """Add what a module has to the findings."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    findings.lines += len(lines)
    findings.code_lines += sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)
    findings.modules += 1
    findings.long_modules += len(lines) > MODULE_LINES_MAX
    _count_comments(text, findings)
    tree = ast.parse(text)
    keys = set(document_keys(tree)) if COMMANDS in path.parts else set()
    for node in ast.walk(tree):
        if node not in keys:
            _inspect_node(path, node, findings)


def document_keys(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the names of fields. In a module of commands they are keys of `--json`, which programs read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (part.target for part in node.body if isinstance(part, ast.AnnAssign))


def inspect_packages(packages: Iterable[str], root: Path = ROOT) -> Findings:
    """Return what the modules below folders of a root have. Folders named `vendor` are left out."""
    findings = Findings()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            if "vendor" not in path.parts:
                inspect_module(path, findings)
    return findings


def _inspect_node(path: Path, node: ast.AST, findings: Findings) -> None:
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.IfExp):
        findings.ternaries.append(Place(path, line, "a ternary"))
    if assigns_two_things(node):
        findings.tuple_assignments.append(Place(path, line, ast.unparse(node).partition(" = ")[0]))
    if variable_name(node) in VAGUE_NAMES:
        findings.vague_names.append(Place(path, line, variable_name(node)))
    findings.classes += isinstance(node, ast.ClassDef)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
        findings.functions += 1
        findings.long_functions += (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
        if names_a_participle(node.name):
            findings.participles.append(Place(path, line, f"{node.name}()"))


def _count_comments(text: str, findings: Findings) -> None:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        comment = token.string.lstrip("# ")
        if comment.startswith("fmt:"):
            findings.fmt_skips += "skip" in comment or "off" in comment
        elif comment.startswith(COMMENTS_FOR_TOOLS):
            continue
        elif token.line[: token.start[1]].strip():
            findings.comments_behind += 1
        else:
            findings.comments_above += 1


def report_lines(findings: Findings, worst: int = 0) -> list[str]:
    """Return the figures as lines of text, and `worst` modules and places that have most to rename or unfold."""
    sizes = {
        "lines": findings.lines,
        "modules": findings.modules,
        f"modules over {MODULE_LINES_MAX} lines": findings.long_modules,
        "classes": findings.classes,
        "functions": findings.functions,
        f"functions over {FUNCTION_LINES_MAX} lines": findings.long_functions,
    }
    above = 1000 * findings.comments_above / max(findings.code_lines, 1)
    densities = findings.densities() | {"comments above": above}
    names = Counter(place.text for place in findings.vague_names)
    lines = [
        ", ".join(f"{name} {count}" for name, count in sizes.items()),
        "participles in % of functions, others per 1,000 code lines: "
        + ", ".join(f"{name} {density:.1f}" for name, density in densities.items()),
        f"vague names: {', '.join(f'{name} {count}' for name, count in names.most_common(10)) or 'none'}",
    ]
    if worst:
        modules = Counter(place.path for place in findings.places())
        lines += [f"{count:5} {path.relative_to(ROOT)}" for path, count in modules.most_common(worst)]
        lines += [
            f"{place.path.relative_to(ROOT)}:{place.line} {place.text}" for place in islice(findings.places(), worst)
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of packages, each for itself."""
    parser = argparse.ArgumentParser(description="Counts what readers of code stumble over.")
    parser.add_argument("packages", nargs="*", default=[], help="folders below the root; default: the product, summed")
    parser.add_argument("--worst", type=int, default=0, help="list as many modules and places")
    options = parser.parse_args(arguments)
    groups: list[tuple[str, ...]] = [(package,) for package in options.packages] or [PRODUCT]
    for group in groups:
        print(f"== {', '.join(group)}")
        print("\n".join(report_lines(inspect_packages(group), options.worst)))


if __name__ == "__main__":
    main()
