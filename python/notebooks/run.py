#!/usr/bin/env python3
"""Runs the code cells of notebooks, as the kernel would, without Jupyter.

With QUICK=1 in the environment they take little traffic, and so seconds.

usage: run.py [--pictures FOLDER] NOTEBOOK.ipynb...
       --pictures FOLDER    writes plots to PNG files there
"""

import argparse
import ast
import json
import os
from pathlib import Path


def run(notebook: Path) -> dict:
    """Runs a notebook's cells in its folder, and prints each one's last expression. Returns the variables."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names = {"__name__": "__main__"}
    before = os.getcwd()
    os.chdir(notebook.parent)
    try:
        for number, cell in enumerate(cells):
            if cell["cell_type"] != "code":
                continue
            name = f"{notebook.name}, cell {number}"
            tree = ast.parse("".join(cell["source"]), name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), name, "eval"), names)
                if value is not None:
                    print(value)
    finally:
        os.chdir(before)
    return names


def keep_pictures(folder: Path) -> None:
    """Has matplotlib write plots to files in place of showing them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    written = iter(range(1, 1000))

    def show() -> None:
        plt.savefig(folder / f"plot-{next(written)}.png", dpi=100, bbox_inches="tight")
        plt.close()

    plt.show = show


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    parser.add_argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK.ipynb")
    given = parser.parse_args()
    if given.pictures:
        keep_pictures(given.pictures)
    for notebook in given.notebooks:
        run(notebook)
