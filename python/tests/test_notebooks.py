"""The notebooks run, with little traffic."""

import contextlib
import io
import os
import runpy
import sys
import unittest
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


@unittest.skipIf(os.environ.get("TAILWATER") is None, "the tailwater program has not been built")
class Notebooks(unittest.TestCase):
    def run_one(self, name):
        run = runpy.run_path(str(NOTEBOOKS / "run.py"))["run"]
        before = dict(os.environ)
        os.environ["QUICK"] = "1"
        # Without plots: they are tried by hand, and matplotlib takes long to load.
        matplotlib = sys.modules.get("matplotlib")
        sys.modules["matplotlib"] = None
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                return run(NOTEBOOKS / name), printed.getvalue()
        finally:
            os.environ.clear()
            os.environ.update(before)
            del sys.modules["matplotlib"]
            if matplotlib:
                sys.modules["matplotlib"] = matplotlib

    def test_a_table_of_a_paper(self):
        names, printed = self.run_one("paper-table.ipynb")
        self.assertEqual(names["table"]["policy"], ["metron", "netblaze"])
        self.assertIn("cores, paper", printed)

    def test_a_trace_of_ones_own(self):
        names, printed = self.run_one("own-trace.ipynb")
        self.assertEqual(len(names["table"]), 9)
        self.assertGreater(sum(names["ports"].values()), 0)
        self.assertIn("acl, nat, count-ports", printed)


if __name__ == "__main__":
    unittest.main()
