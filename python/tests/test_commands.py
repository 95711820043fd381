"""The program as a subprocess: a script in its place, which says what it was given."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import tailwater
from tailwater import _program

ROOT = Path(__file__).resolve().parents[2]
REAL = os.environ.get("TAILWATER")
SCRIPT = """#!{python}
import json, os, signal, sys, time
mode = os.environ.get("MODE", "")
if mode == "wrong":
    sys.exit(sys.stderr.write("notice: read\\nerror: chain.yaml:3:5: expected a name\\n\\nUsage: more\\n") and 2)
if mode == "failed":
    sys.exit(sys.stderr.write("error: the disk is full\\n") and 1)
if mode == "progress":
    sys.stderr.write("\\r\\x1b[K1 of 2\\r\\x1b[K2 of 2\\r\\x1b[K")
    sys.stderr.write("notice: done\\n")
if mode == "wait":
    def stop(*_):
        print(json.dumps({{"interrupted": True}}))
        sys.exit(0)
    signal.signal(signal.SIGINT, stop)
    open(os.environ["READY"], "w").close()
    time.sleep(60)
text = sys.stdin.read() if "-" in sys.argv else None
files = [open(a.split("=")[1]).read() for a in sys.argv if a.startswith("--cluster=/")]
print(json.dumps({{"arguments": sys.argv[1:], "text": text, "files": files, "terminal": sys.stderr.isatty()}}))
sys.exit(3 if mode == "missed" else 0)
"""


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = Path(self.folder.name, "program")
        self.program.write_text(SCRIPT.format(python=sys.executable))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ["TAILWATER"] = str(self.program)

    def test_keywords_are_flags(self):
        report = tailwater.run(
            "chain.yaml",
            traffic=Path("a.pcap"),
            rate_scale=2,
            check_slo=True,
            isolation=None,
            port=["a", "b"],
            cores=[0, 1],
        )
        expected = ["run", "chain.yaml", "--traffic=a.pcap", "--rate-scale=2", "--check-slo", "--port=a", "--port=b"]
        self.assertEqual(report["arguments"], [*expected, "--cores=0,1", "--output=json"])
        report = tailwater.predict("a.model.yaml", with_=["b", "c"])
        self.assertEqual(report["arguments"][1:3], ["--target=a.model.yaml", "--with=b,c"])
        self.assertEqual(tailwater.profile("capacity", "c.yaml")["arguments"][:3], ["profile", "capacity", "c.yaml"])
        self.assertEqual(tailwater.trace_info("bursty")["arguments"][:3], ["trace", "info", "bursty"])

    def test_documents_are_given_without_files_of_ones_own(self):
        report = tailwater.place({"kind": "SloSet"}, {"kind": "Cluster"})
        self.assertEqual(report["arguments"][:2], ["place", "-"])
        self.assertEqual(json.loads(report["text"]), {"kind": "SloSet"})
        self.assertEqual([json.loads(file) for file in report["files"]], [{"kind": "Cluster"}])

    def test_exit_codes_are_exceptions_or_results(self):
        os.environ["MODE"] = "wrong"
        with self.assertRaisesRegex(tailwater.InputError, "^chain.yaml:3:5: expected a name$"):
            tailwater.simulate("rack.yaml")
        os.environ["MODE"] = "failed"
        with self.assertRaisesRegex(tailwater.CommandError, "^the disk is full$") as raised:
            tailwater.simulate("rack.yaml")
        self.assertEqual(raised.exception.exit_code, 1)
        os.environ["MODE"] = "missed"
        self.assertEqual(tailwater.run("chain.yaml").exit_code, 3)
        os.environ["TAILWATER"] = "/no/such/program"
        with self.assertRaisesRegex(tailwater.TailwaterError, "nothing to execute"):
            tailwater.run("chain.yaml")

    def test_progress_is_not_a_message(self):
        os.environ["MODE"] = "progress"
        lines = []
        report = tailwater.run("chain.yaml", progress=lines.append)
        self.assertEqual(lines, ["1 of 2", "2 of 2", ""])
        self.assertEqual((report.notices, report["terminal"]), (["notice: done"], True))
        os.environ["MODE"] = ""
        self.assertFalse(tailwater.run("chain.yaml", progress=False)["terminal"])
        with self.assertRaises(SystemExit):
            os.environ["TAILWATER"] = "/no/such/program"
            _program.main()

    def test_ctrl_c_ends_the_program_and_keeps_its_report(self):
        ready = Path(self.folder.name, "ready")
        os.environ.update(MODE="wait", READY=str(ready))

        def interrupt():
            while not ready.exists():
                time.sleep(0.005)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(tailwater.Interrupted) as raised:
            tailwater.run("chain.yaml")
        thread.join()
        self.assertEqual(dict(raised.exception.report), {"interrupted": True})


class Tables(unittest.TestCase):
    def test_lists_become_rows_with_the_fields_around_them(self):
        report = tailwater.Report(
            {
                "rack": "r",
                "runs": [
                    {
                        "policy": "static",
                        "seed": 1,
                        "chains": [{"chain": "a", "p": {"x": 1}, "windows": [{"late": 5}]}],
                    },
                    {"policy": "tailwater", "seed": 1, "chains": [{"chain": "a", "p": {"x": 2, "y": None}}]},
                ],
                "empty": [],
            },
            path="runs[].chains[]",
        )
        self.assertEqual(report.tables, ["runs[]", "runs[].chains[]", "runs[].chains[].windows[]"])
        table = report.table()
        expected = {
            "chain": ["a", "a"],
            "p.x": [1, 2],
            "policy": ["static", "tailwater"],
            "seed": [1, 1],
            "p.y": [None] * 2,
        }
        self.assertEqual(table.columns, expected)
        self.assertEqual(list(report.table("runs[].chains[].windows[]"))[0]["policy"], "static")
        self.assertEqual(list(report.table("")), [{"rack": "r", "empty": []}])
        inside = tailwater.Report({"packets": {"offered": 5, "drops": [{"reason": "denied", "packets": 2}]}})
        self.assertEqual(list(inside.table("packets.drops[]")), [{"reason": "denied", "packets": 2}])
        self.assertEqual(len(report.table("empty[]")), 0)
        self.assertEqual(len(report.table("no[].such[]")), 0)
        self.assertEqual(len(table.where(policy="static")), 1)
        self.assertIn("static", str(table))
        self.assertIn("<td>static</td>", table._repr_html_())

    def test_reports_and_tables_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "report.json")
            tailwater.Report({"a": [1.5]}).save(path)
            self.assertEqual(dict(tailwater.Report.load(path)), {"a": [1.5]})
            path.write_text("[]")
            with self.assertRaisesRegex(tailwater.InputError, "report.json"):
                tailwater.Report.load(path)
            tailwater.Table({"a": [1, None]}).to_csv(path)
            self.assertEqual(path.read_text(), 'a\n1\n""\n')

    def test_pandas_and_arrow_where_they_are_installed(self):
        table = tailwater.Table({"a": [1, 2], "b": ["x", None]})
        for name, convert, shape in [("pandas", table.to_pandas, (2, 2)), ("pyarrow", table.to_arrow, (2, 2))]:
            with self.subTest(name):
                try:
                    __import__(name)
                except ImportError:
                    with self.assertRaisesRegex(ImportError, f"pip install {name}"):
                        convert()
                else:
                    self.assertEqual(convert().shape, shape)


class Package(unittest.TestCase):
    def test_it_is_typed_and_documented(self):
        package = Path(tailwater.__file__).parent
        self.assertTrue((package / "py.typed").is_file())
        stub = (package / "_native.pyi").read_text()
        for name in [name for name in dir(tailwater._native) if not name.startswith("_")]:
            self.assertRegex(stub, rf"(class|def) {name}\b")
        for kind in [tailwater._native.Chain, tailwater.Packet, tailwater._native.Packets]:
            for name in [name for name in dir(kind) if not name.startswith("_")]:
                self.assertRegex(stub, rf"def {name}\b")
        for name in tailwater.__all__:
            self.assertTrue(getattr(tailwater, name).__doc__, name)

    @unittest.skipIf(REAL is None, "the tailwater program has not been built")
    def test_the_program_understands_it(self):
        rack = {
            "apiVersion": "tailwater.dev/v1alpha1",
            "kind": "Rack",
            "metadata": {"name": "one"},
            "spec": {
                "servers": [{"count": 1, "cores": 2, "link": "10Gbps"}],
                "duration": "20ms",
                "chains": [
                    {"name": "c", "slo": "200us", "costs": {"packetNanoseconds": 300}, "traffic": {"source": "bursty"}}
                ],
            },
        }
        table = tailwater.simulate(rack, policy=["static", "tailwater"]).table()
        self.assertEqual(table["policy"], ["static", "tailwater"])
        self.assertGreater(table["packets.offered"][0], 0)
        with self.assertRaisesRegex(tailwater.InputError, "none.yaml"):
            tailwater.simulate("none.yaml")
        with self.assertRaisesRegex(tailwater.InputError, "--no-such-flag"):
            tailwater.simulate(rack, no_such_flag=1)
        said = subprocess.run([sys.executable, "-m", "tailwater", "--version"], capture_output=True, text=True)
        self.assertTrue(said.stdout.startswith("tailwater "), said)


if __name__ == "__main__":
    unittest.main()
