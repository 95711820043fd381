#!/usr/bin/env python3
"""A rack on one machine: three servers in network namespaces, a switch between, a real API server, Redis.

Real programs: `tailwater controller`, `agent` and `ingress`. A client sends datagrams of many flows, which a chain with
address translation forwards to a sink. Meanwhile one thing after another fails. When a server is killed, the ingress sends its
flows to another one, which finds their state in Redis. The bindings alone do not show that: `nat` derives its first choice
from the flow. Prints a table of what arrived, and exits with 1
if a gap was too long, a flow did not recover, or a flow got another binding.

Needs root, Open vSwitch, Redis, etcd, openssl, and the API server that `tools/kubernetes/build.sh` builds.

With --software, the ingress itself forwards the packets, without Open vSwitch.

usage: tools/rack/rack.py TAILWATER [--software] [--flows N] [--rate PACKETS-PER-SECOND] [--keep]
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from flows import last, received, told
from parts import SINK_MAC, Parts, busiest, ready_servers, sh, steered

CONTROL = "10.202.0.1"
SERVERS = ["a", "b", "c"]
HERE = pathlib.Path(__file__).resolve().parent


class Rack(Parts):
    def __init__(self, program, software):
        super().__init__("rack", CONTROL, prefix=f"tw{os.getpid() % 10000}-")
        self.program, self.software = program, software

    def wire(self):
        self.do(f"ip address add {CONTROL}/32 dev lo", f"ip address del {CONTROL}/32 dev lo")
        self.ends()
        for number, name in enumerate(SERVERS):
            self.space(name)
            self.management(name, number)
            self.link(name, "eth0", f"p-{name}")
            if self.software:
                # The way to the ingress, which is where the ports are.
                space, switch = f"{self.prefix}{name}", f"{self.prefix}switch"
                sh(f"ip link add reports netns {space} type veth peer name r-{name} netns {switch}")
                for end, inner, last in ((space, "reports", 1), (switch, f"r-{name}", 2)):
                    sh(f"ip -n {end} address add 10.203.{number}.{last}/30 dev {inner} && ip -n {end} link set {inner} up")
        if self.software:
            self.management("switch", len(SERVERS))

    def management(self, name, number):
        """The way to the API server."""
        space, own = f"{self.prefix}{name}", f"{self.prefix}m{name}"
        self.do(f"ip link add {own} type veth peer name mgmt netns {space}", f"ip link del {own}")
        sh(f"ip address add 10.201.{number}.1/30 dev {own} && ip link set {own} up")
        sh(f"ip -n {space} address add 10.201.{number}.2/30 dev mgmt && ip -n {space} link set mgmt up")
        sh(f"ip -n {space} route add {CONTROL}/32 via 10.201.{number}.1")

    # The programs.

    def programs(self):
        text = subprocess.run([self.program, "definitions"], check=True, capture_output=True, text=True).stdout
        for document in text.split("---\n")[1:]:
            name = document.split("name: ", 1)[1].split("\n", 1)[0].strip('"')
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=rack&force=true"
            self.request("PATCH", path, document.encode(), "application/apply-patch+yaml")
            self.until(f"{name} can be used", lambda: '"Established","status":"True"' in self.get(path.split("?")[0]))
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": "tailwater"}})
        self.certificates()
        self.start_redis()
        for name in ("first", "second"):
            self.start_controller(name)
        self.start_ingress()
        for name in SERVERS:
            self.agent(name)

    def start_controller(self, name):
        arguments = ["controller", "--identity", name, "--lease", "3s", "--lost-after", "3s", "--drain", "5s", "--hold", "5s"]
        self.start(f"controller-{name}", [self.program, *arguments], None, self.environment())

    def start_ingress(self, *more):
        arguments = ["ingress", "--tls", "tls", "--lost-after", "400ms", "--unmatched", "normal", *more]
        if self.software:
            ports = ",".join(f"interface=p-{name}" for name in ("client", "sink", *SERVERS))
            arguments += ["--port", ports, "--state", "rules", "--cores", "0", "--nap", "200us", "--listen", "0.0.0.0:17443"]
        else:
            arguments += ["--switch", f"unix:{self.folder}/br0.mgmt", "--listen", f"{CONTROL}:17443"]
        self.start("ingress", [self.program, *arguments], "switch" if self.software else None, self.environment())

    def agent(self, name):
        core = len(os.sched_getaffinity(0)) - 1
        home = self.folder / name
        home.mkdir(exist_ok=True)
        server = {
            "apiVersion": "tailwater.dev/v1alpha1", "kind": "Server", "metadata": {"name": f"server-{name}"},
            "spec": {"cores": str(core), "ports": [{"name": "wire", "port": "interface=eth0"}],
                     "control": {"socket": f"{home}/s.sock"}, "stateDirectory": f"{home}/state"},
        }  # fmt: skip
        (home / "server.yaml").write_text(json.dumps(server))
        arguments = ["agent", f"{home}/server.yaml", "--name", f"server-{name}", "--switch-port", f"p-{name}", "--nap", "200us"]
        to = f"10.203.{SERVERS.index(name)}.2" if self.software else CONTROL
        arguments += ["--report-to", f"{to}:17443", "--tls", "tls"]
        self.start(f"agent-{name}", [self.program, *arguments], name, self.environment())


CHAIN = {
    "apiVersion": "tailwater.dev/v1alpha1", "kind": "Chain", "metadata": {"name": "edge"},
    "spec": {
        "match": {"destinations": ["10.1.0.0/16"]},
        "functions": [
            {"nat": {"external": ["198.19.255.0/28"], "internal": ["10.9.0.0/16"]}},
            {"forward": {"destinationMac": SINK_MAC}},
        ],
        "slo": {"latency": "5ms"},
        "state": {"redis": {"address": f"{CONTROL}:16379"}, "whenUnavailable": "pass", "wait": "20ms", "packets": 4096},
        "scale": {"min": 2, "servers": 2},
    },
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--software", action="store_true", help="the ingress's own data plane in place of Open vSwitch")
    parser.add_argument("--flows", type=int, default=64)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    arguments = parser.parse_args()
    rack = Rack(str(pathlib.Path(arguments.program).resolve()), arguments.software)
    failed = True
    try:
        rack.wire()
        if not arguments.software:
            rack.switch(["p-client", "p-sink", *(f"p-{name}" for name in SERVERS)])
        rack.api_server()
        rack.programs()
        took = rack.until("three servers are ready", lambda: len(ready_servers(rack)) == 3)
        print(f"three servers are ready after {took:.1f} s")
        rack.request("POST", "/apis/tailwater.dev/v1alpha1/namespaces/default/chains", CHAIN)
        took = rack.until("two instances have packets", lambda: len(steered(rack)) == 2)
        print(f"two instances run, and the switch knows them, {took:.1f} s after the chain was applied")
        failed = traffic(rack, arguments)
    finally:
        rack.end(arguments.keep or failed)
    sys.exit(1 if failed else 0)


def rates(rack):
    return [one.get("status", {}).get("figures", {}).get("offered", 0) for one in rack.instances()]


def is_even(rack):
    """Two instances have a quarter of the packets or more."""
    return sum(4 * rate >= sum(rates(rack)) > 0 for rate in rates(rack)) == 2


def failures(rack):
    """Failures, one after another: name, what is done, and longest allowed gap in seconds."""

    def restart_switch():
        rack.kill("ovs-vswitchd")
        time.sleep(0.5)
        rack.start_switch()

    def restart_redis():
        rack.kill("redis")
        time.sleep(0.5)
        rack.start_redis()

    def away(names, start):
        for name in names:
            rack.kill(name)
        time.sleep(3)
        start()

    def drain():
        name = busiest(rack)
        path = f"/apis/tailwater.dev/v1alpha1/rackservers/{name}"
        patch = {"spec": {"unschedulable": True}}
        rack.request("PATCH", path, patch, "application/merge-patch+json")
        rack.until("the server is empty", lambda: all(one["spec"]["server"] != name for one in rack.instances()))
        patch = {"spec": {"unschedulable": False}}
        rack.request("PATCH", path, patch, "application/merge-patch+json")

    def kill_server():
        name = busiest(rack)
        rack.kill(f"agent-{name.removeprefix('server-')}")
        rack.dead = name

    def skewed_load():
        """All packets go to one instance. The ingress may fill it to 2 % of its core: some have to go to the other one."""
        if is_even(rack):
            raise SystemExit("both instances have load already")
        rack.kill("ingress")
        rack.start_ingress("--fill", "2")
        rack.until("both instances have their part of the load", lambda: is_even(rack))
        rack.kill("ingress")
        rack.start_ingress()

    def server_returns():
        rack.agent(rack.dead.removeprefix("server-"))
        rack.until("it is ready", lambda: len(ready_servers(rack)) == 3)

    def has_match(prefixes):
        runs = [json.loads(one.get("status", {}).get("match") or "{}") for one in rack.instances()]
        return all(match.get("destinations") == prefixes for match in runs)

    def change_match():
        """The same packets, by longer prefixes; then more packets, by shorter ones."""
        path = "/apis/tailwater.dev/v1alpha1/namespaces/default/chains/edge"
        longer, shorter = ["10.1.0.0/17", "10.1.128.0/17"], ["10.1.0.0/16", "10.2.0.0/16"]
        for prefixes in (longer, shorter):
            patch = {"spec": {"match": {"destinations": prefixes}}}
            rack.request("PATCH", path, patch, "application/merge-patch+json")
            rack.until("all instances run it", lambda prefixes=prefixes: has_match(prefixes))
            time.sleep(1)

    def scale(number):
        path = "/apis/tailwater.dev/v1alpha1/namespaces/default/chains/edge"
        rack.request("PATCH", path, {"spec": {"scale": {"min": number}}}, "application/merge-patch+json")

    def name_is_used_again():
        """A server that returns starts its last chains, though an instance elsewhere has the name of one of them by then."""
        servers = lambda: {one["metadata"]["name"]: one["spec"]["server"] for one in rack.instances()}
        name, dead = min(servers().items())
        rack.kill(f"agent-{dead.removeprefix('server-')}")
        rack.until("its instances are replaced", lambda: dead not in servers().values())
        scale(4)
        rack.until("another instance has the name", lambda: name in servers() and len(steered(rack)) == 4)
        rack.kill("ingress")
        rack.start_ingress("--fill", "1")
        rack.until("three instances have a part of the load", lambda: sum(rate > 100 for rate in rates(rack)) >= 3)
        rack.agent(dead.removeprefix("server-"))
        rack.until("it is ready", lambda: len(ready_servers(rack)) == 3)
        time.sleep(4)
        # It has not taken the store from them: their next request there would be their last.
        users = sh(f"redis-cli -h {CONTROL} -p 16379 acl users").stdout
        if gone := [one for one in servers() if f":nat@default--{one}" not in users]:
            raise SystemExit(f"no user of the store any more: {', '.join(gone)}")
        rack.kill("ingress")
        rack.start_ingress()
        scale(2)

    def restart_ingress():
        rack.kill("ingress")
        rack.start_ingress()

    of_switch = [
        ("the ingress is killed, and away for 3 s", lambda: away(["ingress"], rack.start_ingress), 0.5),
        ("the switch restarts without its rules", restart_switch, 5),
    ]
    # While it is away, nothing forwards.
    of_software = [
        ("the ingress is killed, and starts again", restart_ingress, 1.5),
        ("the ingress is killed, and away for 3 s", lambda: away(["ingress"], rack.start_ingress), 5),
    ]
    # Each start of the ingress is a gap then.
    longest = 1.5 if rack.software else 0.5
    return [
        ("nothing", lambda: time.sleep(2), 0.5),
        ("spec.match changes, twice", change_match, 0.5),
        ("the leading controller is killed", lambda: away(["controller-first"], lambda: rack.start_controller("first")), 0.5),
        ("the API server is away for 3 s", lambda: away(["kube-apiserver"], rack.start_api_server), 0.5),
        ("Redis restarts without its data", restart_redis, 1),
        ("a server is emptied for maintenance", drain, 0.5),
        *(of_software if rack.software else of_switch),
        ("a server is killed", kill_server, 1),
        ("it comes back", server_returns, 0.5),
        ("one instance has all the load", skewed_load, longest),
        ("the name of a lost instance is used again", name_is_used_again, max(longest, 1)),
    ]


def traffic(rack, arguments):
    """Sends, lets things fail, and tells what happened. Returns True if something is wrong."""
    sink = rack.folder / "received"
    rack.start("sink", [sys.executable, str(HERE / "sink.py"), str(sink)], "sink")
    rack.until("the sink listens", sink.exists)
    rack.start("client", [sys.executable, str(HERE / "client.py"), str(arguments.flows), str(arguments.rate)], "client")
    rack.until("packets of all flows arrive", lambda: len({flow for _, flow, _, _ in received(sink)}) == arguments.flows)
    rack.until("the load of the servers is known", lambda: busiest(rack))
    phases = []
    for what, fail, longest in failures(rack):
        began = time.time()
        fail()
        rack.until("packets arrive again", lambda: last(sink) > time.time() - 0.5)
        rack.until("two instances have packets again", lambda: len(steered(rack)) == 2)
        recovered = time.time() - began
        time.sleep(2)
        phases.append((what, began, time.time(), recovered, longest))
    rack.kill("client", signal.SIGTERM)
    time.sleep(0.5)
    is_wrong = told(list(received(sink)), phases, arguments)
    ours = [name for name in rack.processes if name.startswith(("agent", "controller", "ingress"))]
    return not rack.ends_well(ours) or is_wrong


if __name__ == "__main__":
    main()
