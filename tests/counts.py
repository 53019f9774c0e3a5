"""Prints what the tree weighs: lines of Python, distributions, words of guides. Nothing fails on a count."""

from __future__ import annotations

from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]


def lines(*patterns: str) -> list[int]:
    """Return the lines of each file that matches a pattern."""
    return [path.read_text().count("\n") for pattern in patterns for path in ROOT.glob(pattern)]


def main() -> None:
    """Print one line for each count."""
    product = [count for count in lines("omni_*/src/**/*.py", "plugins/*/src/**/*.py") if count]
    distributions = [*ROOT.glob("omni_*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    words = sum(len(path.read_text().split()) for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    records = len(list(ROOT.glob("docs/decisions/*.md")))
    print(
        f"product: {sum(product):,} lines in {len(product)} files (median {median(product):.0f}, largest {max(product)})"
    )
    print(f"tests: {sum(lines('tests/**/*.py')):,} lines; benchmarks: {sum(lines('benchmarks/**/*.py')):,}")
    print(f"distributions: {len(distributions)}; words of guides: {words:,}; decision records: {records}")


if __name__ == "__main__":
    main()
