"""Small faults put into functions one at a time: which tests notice each, now and after the code or the tests have moved.

``python tests/guards/mutants.py --take FILE`` draws the faults and finds their tests; it goes on where it was interrupted. ``--check FILE``
puts in every fault that was noticed. It prints those that no test notices any more (lost), and those whose statement is not found any
more (gone), and exits with 1 if one is lost. A fault is known by function and statement. Everything runs in a copy of the tracked files.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mutations import Statement, mutations, spliced, statements
from runs import Run, Runner

ROOT = Path(__file__).parents[2]
COPY = Path(tempfile.gettempdir()) / f"omni-mutants-{os.getpid()}"
GROUPS = {
    "core": (("omni_core",), 90),
    "torch": (("omni_torch", "omni_torch.engine"), 60),
    "serve": (("omni_serve",), 50),
}
"""By group: its packages, and how many faults are drawn."""
SKIPPED = {"main", "__main__", "conformance", "testing", "audit"}
"""Modules and folders that start processes, or are tests themselves."""
SEED, MOST, FAST, LIMIT = 20, 40, 5.0, 90.0
"""Tests of one run, seconds of a fast test, and seconds of a run."""
Fault = dict[str, Any]


class Tree:
    """The copy, its sources and its tests."""

    def __init__(self) -> None:
        atexit.register(shutil.rmtree, COPY, ignore_errors=True)
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (COPY / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, COPY / name)
        packages = [each.parent for each in COPY.glob("**/src/omni_*/__init__.py")]
        self.folders = sorted({each.parent for each in packages if each.name != "omni_kernels_cpu"})
        self.modules = {
            path: path.relative_to(folder).parts for folder in self.folders for path in folder.rglob("*.py")
        }
        self.tests = {path: path.read_text() for path in sorted((COPY / "tests").rglob("test_*.py"))}
        self.found: dict[str, list[tuple[Path, Statement]]] = defaultdict(list)

    def module(self, path: Path) -> str:
        """Return the last name of a module."""
        return path.parent.name if path.stem == "__init__" else path.stem

    def mirrored(self, path: Path) -> list[str]:
        """Return the test file of a module and the folder of its room, as far as there are any."""
        package, *rooms, _ = self.modules[path]
        places = [COPY.joinpath("tests", package, *rooms[:count]) for count in range(len(rooms), -1, -1)]
        files = [each / f"test_{self.module(path)}.py" for each in places]
        files += [each for each in self.tests if each.name == files[0].name and package in each.parts]
        chosen = [next((each for each in some if each.exists()), None) for some in (files, places)]
        return [str(each.relative_to(COPY)) for each in chosen if each is not None]

    def find(self, fault: Fault) -> tuple[Path, Statement] | None:
        """Return where the statement of a fault is now: the most similar place, if there is one only or they are in its function."""
        if not self.found:
            for path in self.modules:
                for each in statements(path.read_text()):
                    self.found[each.text].append((path, each))
        same = self.found[fault["statement"]]
        short = fault["function"].rpartition(".")[2]
        for some in (
            [
                each
                for each in same
                if each[1].function == fault["function"] and self.module(each[0]) == fault["module"]
            ],
            [each for each in same if each[1].function == fault["function"]],
            [each for each in same if each[1].function.rpartition(".")[2] == short],
            same if len(same) == 1 and len(fault["statement"]) >= 30 else [],
        ):
            exact = [each for each in some if each[1].occurrence == fault["occurrence"]]
            if exact or some:
                return (exact or some)[0]
        return None

    def nodes(self, test: str) -> list[str]:
        """Return a test by its id, or those of the same name in other files."""
        file, _, inner = test.partition("::")
        names = inner.partition("[")[0].split("::")
        if COPY / file in self.tests and (not inner or self._has(COPY / file, names[:1])):
            return [test]
        others = [each for each in self.tests if self._has(each, names)]
        others = others or [each for each in self.tests if self._has(each, names[:1])]  # inherited from a suite
        others.sort(key=lambda each: each.name != Path(file).name)
        return [f"{each.relative_to(COPY)}::{inner}" for each in others if inner]

    def _has(self, file: Path, names: list[str]) -> bool:
        return all(re.search(rf"\b(def|class) {name}\b", self.tests[file]) for name in names)

    def mentions(self, function: str) -> list[str]:
        """Return the test files that name the class or the function, those that do so most often first."""
        name = next(each for each in function.split(".") if each.lstrip("_"))
        counts = {file: len(re.findall(rf"\b{name}\b", text)) for file, text in self.tests.items()}
        return [str(file.relative_to(COPY)) for file in sorted(counts, key=lambda each: -counts[each]) if counts[file]][
            :5
        ]


class Mutants:
    """Faults in the copy, and the runs of tests that meet them."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.runner = Runner(COPY, self.tree.folders)
        self.sound = set[str]()
        """Tests that pass without a fault."""

    def noticed(
        self,
        place: tuple[Path, Statement],
        after: str,
        tests: list[str],
        limit: float,
        *,
        done: list[str],
        fresh: bool = False,
    ) -> Run:
        """Run tests with a fault, except those that were ``done`` with it. Failures that come without it too are not counted."""
        path, statement = place
        original, changed = path.read_text(), (path, statement.function)
        try:
            self.runner.write(path, spliced(original, statement, after))
            run = self.runner.run(tests, limit, done=done, changed=changed, fresh=fresh)
            if run.late and len(run.started) > 1:  # a test that does not end, or many that take long together
                again = self.runner.run(run.started[-1:], limit / 3, changed=changed, fresh=fresh)
                run = run._replace(failed=[*(each for each in run.failed if each not in again.started), *again.failed])
                run = run._replace(late=again.late)
        finally:
            self.runner.write(path, original)
        if suspects := [each for each in run.failed if each not in self.sound]:
            without = self.runner.run(suspects, limit, fresh=fresh)
            self.sound |= {*without.started} - {*without.failed}
            files = [each for each in suspects if "::" not in each and each not in without.failed]
            return run._replace(failed=[each for each in run.failed if each in self.sound or each in files])
        return run

    def draw(self, covering: dict[str, dict[str, float]]) -> list[Fault]:
        """Draw the faults, one per function at most, from functions that fast tests reach or whose module has tests."""
        chosen: list[Fault] = []
        for group, (packages, count) in GROUPS.items():
            sites = []
            for path, parts in sorted(self.tree.modules.items()):
                if parts[0] not in packages or SKIPPED & {*parts[:-1], path.stem}:
                    continue
                own = any(each.endswith(f"test_{path.stem}.py") for each in self.tree.mirrored(path))
                for each in mutations(path.read_text()):
                    reached = covering.get(f"{path.relative_to(COPY)}:{each.statement.function}", {})
                    if own or min(reached.values(), default=FAST) < FAST:
                        sites.append((path, each))
            rng, taken = random.Random(SEED), set[tuple[Path, str]]()
            rng.shuffle(sites)
            for path, (statement, operator, after) in sites:
                if len(taken) < count and (path, statement.function) not in taken:
                    taken.add((path, statement.function))
                    fault: Fault = {"group": group, "module": self.tree.module(path), "function": statement.function}
                    fault |= {"operator": operator, "statement": statement.text, "occurrence": statement.occurrence}
                    chosen.append(fault | {"after": after, "outcome": None, "tests": []})
        random.Random(SEED).shuffle(chosen)
        return chosen

    def decide(self, fault: Fault, covering: dict[str, dict[str, float]]) -> None:
        """Find the tests that notice a fault."""
        place = self.tree.find(fault)
        assert place is not None
        path, statement = place
        reached = covering.get(f"{path.relative_to(COPY)}:{statement.function}", {})
        mirrored = self.tree.mirrored(path)
        first = sorted(reached, key=lambda each: (each.partition("::")[0] not in mirrored, reached[each]))[:MOST]
        plans = [first[:10], first[10:], mirrored[:1], [] if first else mirrored[1:]]
        fault["outcome"], done = "survived", list[str]()
        for tests in filter(None, plans):
            run = self.noticed(place, fault["after"], tests, LIMIT, done=done)
            done += run.started
            if run.failed:
                fault["outcome"], fault["tests"] = "timeout" if run.late else "killed", run.failed
                return

    def try_without_faults(self, tests: list[str]) -> None:
        """Run the tests of all faults once as the code is, so that it need not be done for each."""
        run = self.runner.run(tests, 3600.0, most=10_000)
        self.sound = {*run.started} - {*run.failed}
        print(f"{len(run.failed)} of {len(run.started)} tests fail without a fault:", *run.failed, flush=True)

    def check(self, fault: Fault, also: list[str]) -> str:
        """Return what has become of a fault that was noticed: ``killed``, ``lost`` or ``gone``."""
        place = self.tree.find(fault)
        if place is None:
            return "gone"
        path, _ = place
        recorded = [each for test in fault["tests"] for each in self.tree.nodes(test)]
        whole = [each.partition("[")[0] for each in recorded]  # the ids of their cases may have changed
        done = list[str]()
        if recorded and self.noticed(place, fault["after"], recorded, LIMIT, done=done).failed:
            return "killed"
        for tests in (recorded, whole, self.tree.mirrored(path), self.tree.mentions(fault["function"]), also):
            if tests:
                run = self.noticed(place, fault["after"], tests, 2 * LIMIT, done=done, fresh=True)
                if run.failed:
                    return "killed"
                done += run.started
        return "lost"

    def covering(self, kept: Path) -> dict[str, dict[str, float]]:
        """Return by function the tests that reach it in their own process, with their seconds; ``kept``: where this is stored."""
        if not kept.exists():
            found: dict[str, dict[str, float]] = defaultdict(dict)
            for package in (each for packages, _ in GROUPS.values() for each in packages):
                run = self.runner.run([f"tests/{package}"], 3600.0, most=10_000, watch=True)
                for test, functions in run.functions.items():
                    if test not in run.failed:
                        for each in functions:
                            found[each][test] = run.seconds[test]
            kept.write_text(json.dumps(found))
        loaded: dict[str, dict[str, float]] = json.loads(kept.read_text())
        return loaded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--take", type=Path, metavar="FILE")
    what.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--first", type=int, metavar="N", help="the first N only, which are a sample of all")
    parser.add_argument(
        "--also", action="append", default=[], metavar="TESTS", help="tests to run before a fault is lost"
    )
    given = parser.parse_args()
    file: Path = given.take or given.check
    mutants = Mutants()
    if given.check:
        noticed = [each for each in json.loads(file.read_text())[: given.first] if each["tests"]]
        tests = {each for fault in noticed for test in fault["tests"] for each in mutants.tree.nodes(test)}
        files = sorted({each.partition("::")[0] for each in tests})
        return mutants.runner.collected(files, lambda: check(mutants, noticed, sorted(tests), given.also))
    covering = mutants.covering(file.with_suffix(".reached"))
    mutants.sound |= {test for some in covering.values() for test, seconds in some.items() if seconds < FAST}
    faults = json.loads(file.read_text()) if file.exists() else mutants.draw(covering)
    folders = [f"tests/{package}" for packages, _ in GROUPS.values() for package in packages]
    return mutants.runner.collected(folders, lambda: take(mutants, faults, faults[: given.first], covering, file))


def take(
    mutants: Mutants, faults: list[Fault], some: list[Fault], covering: dict[str, dict[str, float]], file: Path
) -> int:
    """Decide faults and write what has become of them."""
    for number, fault in enumerate(some):
        if fault["outcome"] is None:
            mutants.decide(fault, covering)
            print(
                number,
                fault["group"],
                fault["module"],
                fault["function"],
                fault["outcome"],
                *fault["tests"][:1],
                flush=True,
            )
            file.write_text(json.dumps(faults, indent=1, ensure_ascii=False) + "\n")
    print(dict(Counter(f"{each['group']} {each['outcome']}" for each in faults)))
    return 0


def check(mutants: Mutants, noticed: list[Fault], tests: list[str], also: list[str]) -> int:
    """Print what has become of faults that were noticed; return 1 if one is lost."""
    mutants.try_without_faults(tests)
    counts = Counter[str]()
    for fault in noticed:
        outcome = mutants.check(fault, also)
        counts[outcome] += 1
        if outcome != "killed":
            print(f"{outcome}: {fault['module']}: {fault['function']}: {fault['statement']} -> {fault['after']}")
            print(f"    was noticed by {' '.join(fault['tests'])}", flush=True)
    print(dict(counts))
    return int(counts["lost"] > 0)


if __name__ == "__main__":
    sys.exit(main())
