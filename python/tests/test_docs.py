"""The examples of the how-to run."""

import contextlib
import io
import os
import re
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/use-from-python.md"


@unittest.skipIf(os.environ.get("TAILWATER") is None, "the tailwater program has not been built")
class Examples(unittest.TestCase):
    def test_all_of_them_run(self):
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        self.assertGreaterEqual(len(blocks), 5)
        names, before = {}, os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "examples").symlink_to(ROOT / "examples")
            os.chdir(folder)
            try:
                for number, block in enumerate(blocks):
                    with self.subTest(number), contextlib.redirect_stdout(io.StringIO()) as printed:
                        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
                    self.assertTrue(printed.getvalue(), f"block {number} prints nothing")
            finally:
                os.chdir(before)


if __name__ == "__main__":
    unittest.main()
