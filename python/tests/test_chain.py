"""Chains in this process."""

import pickle
import struct
import tempfile
import threading
import unittest
from pathlib import Path

import tailwater

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPEC = """
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: test}
spec:
  functions:
    - acl:
        rules: [{action: deny, protocol: udp, destinationPorts: 53}]
        default: allow
    - nat: {external: [198.19.255.0/28], internal: [10.0.0.0/8]}
  slo: {latency: 200us, percentile: 99}
"""


def udp(port=80, source_port=5000, payload=b"0123456789", source="10.0.0.1"):
    """Frame of a UDP packet to 192.0.2.1, with checksums."""
    addresses = bytes(map(int, source.split("."))) + bytes([192, 0, 2, 1])
    length = 8 + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    head = struct.pack("!HHH", source_port, port, length)
    pseudo = addresses + struct.pack("!BBH", 0, 17, length)
    head += struct.pack("!H", checksum(pseudo + head + b"\0\0" + payload) or 0xFFFF)
    return bytes(6) + bytes([2, 0, 0, 0, 0, 1]) + b"\x08\x00" + ip + head + payload


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Processing(unittest.TestCase):
    def test_each_packet_has_verdict_reason_and_bytes(self):
        with tailwater.Chain(SPEC) as chain:
            self.assertEqual((chain.name, chain.functions), ("test", ["acl", "nat"]))
            denied = chain.process(udp(53))
            self.assertEqual((denied.verdict, denied.function, denied.reason), ("dropped", "acl", "denied"))
            self.assertIsNone(denied.data)
            passed = chain.process(udp(80))
            self.assertEqual((passed.verdict, passed.reason, passed.changed), ("forwarded", None, True))
            self.assertEqual((passed.source, passed.source_port, passed.destination_port), ("10.0.0.1", 5000, 80))
            # Translated, with the checksum of both headers right again.
            self.assertEqual(passed.data[26:29], bytes([198, 19, 255]))
            self.assertEqual(checksum(passed.data[14:34]), 0)
            self.assertEqual(passed.data[42:], b"0123456789")
            again = chain.process(udp(80), passed.time_ns + 1000)
            self.assertEqual(again.data, passed.data)
            other = chain.process(b"\xff" * 12 + b"\x08\x06" + bytes(46))
            self.assertEqual((other.verdict, other.source, other.events), ("forwarded", None, ["non-ip"]))
            malformed = chain.process(udp()[:20])
            self.assertEqual((malformed.verdict, malformed.function), ("dropped", None))
            self.assertTrue(malformed.reason.startswith("malformed/"), malformed.reason)
            self.assertEqual(chain.counts.where(reason="denied")["packets"], [1])
            self.assertGreater(chain.flows, 0)

    def test_the_match_of_the_spec_excludes_packets(self):
        chain = tailwater.Chain(SPEC.replace("  functions:", "  match: {protocols: [tcp]}\n  functions:", 1))
        self.assertEqual(chain.process(udp()).verdict, "not-matched")

    def test_presets_and_captures_run_as_tables(self):
        with tempfile.TemporaryDirectory() as folder, tailwater.Chain(EXAMPLES / "acl-nat.yaml") as chain:
            preset = chain.run("bursty", duration="2ms", capture_out=f"{folder}/out.pcap")
            self.assertGreater(len(preset.packets), 100)
            self.assertEqual(sum(preset.verdicts.values()), len(preset.packets))
            self.assertEqual(set(preset.packets["data"]) - {None} == set(), not any(preset.packets["changed"]))
            written = list(tailwater.packets(f"{folder}/out.pcap"))
            self.assertEqual(len(written), preset.verdicts["forwarded"])
            forward = tailwater.Chain(EXAMPLES / "forward.yaml")
            again = forward.run(f"{folder}/out.pcap", limit=20, keep_data=True)
            self.assertEqual(again.packets["data"], [frame for _, frame in written[:20]])
            # A capture that breaks off is used up to there, with a notice.
            whole = Path(folder, "out.pcap").read_bytes()
            Path(folder, "cut.pcap").write_bytes(whole[:-5])
            cut = forward.run(f"{folder}/cut.pcap")
            self.assertEqual(len(cut.packets), len(written) - 1)
            self.assertEqual(len(cut.notices), 1)

    def test_counts_remain_after_the_chain_is_closed(self):
        chain = tailwater.Chain(SPEC)
        chain.run([udp(53)] * 3 + [(7000, udp(54))])
        chain.close()
        chain.close()
        self.assertEqual(chain.counts.where(function="acl")["packets"], [3])
        with self.assertRaisesRegex(tailwater.InputError, "closed"):
            chain.process(udp())


class Functions(unittest.TestCase):
    def test_a_function_drops_changes_and_reads(self):
        seen = []

        @tailwater.function(before="nat", drop_reasons=["too-long"])
        def check_length(packet):
            seen.append(packet)
            if len(packet) > 100:
                return "too-long"
            if packet.payload == b"no":
                return False
            return packet.data[:-2] + b"89" if packet.payload.endswith(b"xx") else None

        with tailwater.Chain(SPEC, functions=[check_length]) as chain:
            self.assertEqual(chain.functions, ["acl", "check-length", "nat"])
            self.assertEqual(chain.process(udp(payload=b"x" * 200))[8:10], ("check-length", "too-long"))
            self.assertEqual(chain.process(udp(payload=b"no"))[8:10], ("check-length", "dropped"))
            changed = chain.process(udp(payload=b"01234567xx"))
            self.assertEqual(changed.data[42:], b"0123456789")
            self.assertEqual(changed.data[26:29], bytes([198, 19, 255]))
            self.assertEqual(chain.process(udp(53)).function, "acl")
            self.assertEqual(len(seen), 3)
            self.assertEqual(seen[0].flow, ("10.0.0.1", "192.0.2.1", 5000, 80, 17))
            self.assertEqual((seen[0].network_offset, seen[0].transport_offset), (14, 34))
            self.assertEqual(len(seen[0].data), len(seen[0]))
            self.assertIn("10.0.0.1 port 5000", repr(seen[0]))

    def test_plain_callables_come_last_and_may_be_on_a_branch(self):
        def last(packet):
            return True

        web = tailwater.function(name="web", after="urlFilter")(lambda packet: packet.destination_port != 80)
        chain = tailwater.Chain(EXAMPLES / "branches.yaml", functions=[last, web])
        self.assertEqual(chain.functions[-1], "last")
        # Only a branch's packets reach it, and UDP is on another one.
        self.assertEqual(chain.process(udp()).verdict, "forwarded")

    def test_exceptions_pass_through_and_the_chain_goes_on(self):
        def fails(packet):
            raise LookupError("mine")

        chain = tailwater.Chain(SPEC, functions=[fails])
        for _ in range(2):
            with self.assertRaisesRegex(LookupError, "mine"):
                chain.process(udp())
        self.assertEqual(chain.counts.where(reason="exception")["packets"], [2])

    def test_wrong_results_are_exceptions(self):
        for wrong, error in [(7, TypeError), ("unknown", ValueError), (b"", ValueError), (bytes(70_000), ValueError)]:
            chain = tailwater.Chain(SPEC, functions=[lambda packet, wrong=wrong: wrong])
            with self.assertRaisesRegex(error, "expected"):
                chain.process(udp())
        chain = tailwater.Chain(SPEC, functions=[lambda packet: b"no packet"])
        self.assertEqual(chain.process(udp()).reason, "not-ip")

    def test_a_chain_in_use_is_an_exception_not_a_deadlock(self):
        chain = tailwater.Chain(SPEC, functions=[lambda packet: chain.process(udp()) and None])
        with self.assertRaisesRegex(tailwater.TailwaterError, "uses it"):
            chain.process(udp())
        errors = []

        def other():
            try:
                chain.process(udp())
            except tailwater.TailwaterError as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        self.assertEqual(len(errors), 1)


class Wrong(unittest.TestCase):
    def wrong(self, expected, *arguments, **keywords):
        with self.assertRaisesRegex(tailwater.InputError, expected) as raised:
            tailwater.Chain(*arguments, **keywords).process(udp())
        self.assertNotIn("\n", str(raised.exception))
        return raised.exception

    def test_specs(self):
        error = self.wrong(r"chain:\d+:\d+.*latencie", SPEC.replace("latency", "latencie"))
        self.assertIsInstance(error, ValueError)
        self.wrong("none.yaml", "none.yaml")
        self.wrong("", {"kind": "Chain"})
        self.wrong("a path, a text or a mapping", 7)
        self.wrong("external functions", EXAMPLES / "external.yaml")
        self.wrong("spec.state", EXAMPLES / "nat-state.yaml")

    def test_functions(self):
        def at(**given):
            return [tailwater.Function(lambda packet: None, **given)]

        self.wrong("has one of this name", SPEC, functions=at(name="acl"))
        self.wrong("beside one of acl, nat", SPEC, functions=at(name="mine", before="tunnel"))
        self.wrong("lower-case", SPEC, functions=at(name="My function"))
        self.wrong("drop reasons", SPEC, functions=at(name="mine", drop_reasons=["dropped"]))
        self.wrong(r"at most \d+", SPEC, functions=at(name="mine", drop_reasons=[f"r{i}" for i in range(40)]))
        self.wrong("at most 16", SPEC, functions=[at(name=f"f{i}")[0] for i in range(20)])
        branches = EXAMPLES / "branches.yaml"
        self.wrong("its branches", branches, functions=at(name="mine", after="classifier"))
        with self.assertRaises(tailwater.InputError):
            at(before="acl", after="nat")

    def test_frames_and_traffic(self):
        chain = tailwater.Chain(SPEC)
        for frame in [b"", bytes(70_000)]:
            with self.assertRaisesRegex(tailwater.InputError, "1 to 65535"):
                chain.process(frame)
        with self.assertRaisesRegex(tailwater.InputError, "neither a capture file nor a traffic preset"):
            chain.run("burstly")
        with self.assertRaisesRegex(tailwater.InputError, "duration"):
            chain.run("bursty", duration="1 hour")
        with self.assertRaises(OverflowError):
            chain.process(udp(), -1)
        with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
            file.write(b"no capture at all, but some bytes")
            file.flush()
            with self.assertRaisesRegex(tailwater.InputError, file.name):
                list(tailwater.packets(file.name))
        with self.assertRaises(OSError):
            tailwater.write_capture("/no/such/folder/file.pcap", [])
        with self.assertRaises(TypeError):
            pickle.dumps(tailwater.Chain(SPEC)._chain)


if __name__ == "__main__":
    unittest.main()
