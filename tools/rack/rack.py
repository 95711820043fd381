#!/usr/bin/env python3
"""A rack on one machine: three servers in network namespaces, an Open vSwitch between, a real API server, Redis.

Real programs: `tailwater controller`, `agent` and `ingress`. A client sends datagrams of many flows, which a chain with
address translation forwards to a sink. Meanwhile one thing after another fails. When a server is killed, the ingress sends its
flows to another one, which finds their state in Redis. The bindings alone do not show that: `nat` derives its first choice
from the flow. Prints a table of what arrived, and exits with 1
if a gap was too long, a flow did not recover, or a flow got another binding.

Needs root, Open vSwitch, Redis, etcd, openssl, and the API server that `tools/kubernetes/build.sh` builds.

usage: tools/rack/rack.py TAILWATER [--flows N] [--rate PACKETS-PER-SECOND] [--keep]
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

CONTROL = "10.202.0.1"
SERVERS = ["a", "b", "c"]
SINK_MAC = "02:00:00:00:99:02"
HERE = pathlib.Path(__file__).resolve().parent
PREFIX = f"tw{os.getpid() % 10000}"
UNTIL = 60


def sh(line, check=True):
    return subprocess.run(line, shell=True, check=check, capture_output=True, text=True)


class Rack:
    def __init__(self, program):
        self.program = program
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tailwater-rack-"))
        self.processes, self.undo = {}, []

    def do(self, line, undo=None):
        sh(line)
        if undo:
            self.undo.append(undo)

    def start(self, name, arguments, namespace=None, environment=None):
        if namespace:
            arguments = ["ip", "netns", "exec", f"{PREFIX}-{namespace}", *arguments]
        log = open(self.folder / f"{name}.log", "ab")
        process = subprocess.Popen(
            arguments, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment or os.environ
        )
        self.processes[name] = process
        return process

    def kill(self, name, how=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(timeout=30)

    def end(self, keep):
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for line in reversed(self.undo):
            sh(line, check=False)
        if keep:
            print(f"logs: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, what, holds, longest=UNTIL):
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > longest:
                raise SystemExit(f"not in {longest} s: {what} (logs: {self.folder})")
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.05)
        return time.monotonic() - began

    # The network.

    def wire(self):
        self.do(f"ip address add {CONTROL}/32 dev lo", f"ip address del {CONTROL}/32 dev lo")
        for number, name in enumerate([*SERVERS, "client", "sink", "switch"]):
            space = f"{PREFIX}-{name}"
            self.do(f"ip netns add {space}", f"ip netns del {space}")
            for what in ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"):
                sh(f"ip netns exec {space} sysctl -q -w {what}")
            sh(f"ip -n {space} link set lo up")
            if name in SERVERS:
                # The way to the API server.
                own = f"{PREFIX}m{name}"
                self.do(f"ip link add {own} type veth peer name mgmt netns {space}", f"ip link del {own}")
                sh(f"ip address add 10.201.{number}.1/30 dev {own} && ip link set {own} up")
                sh(f"ip -n {space} address add 10.201.{number}.2/30 dev mgmt && ip -n {space} link set mgmt up")
                sh(f"ip -n {space} route add {CONTROL}/32 via 10.201.{number}.1")
            if name != "switch":
                port = f"p-{name}"
        for name in [*SERVERS, "client", "sink"]:
            space, port = f"{PREFIX}-{name}", f"p-{name}"
            sh(f"ip link add eth0 netns {space} type veth peer name {port} netns {PREFIX}-switch")
            sh(f"ip netns exec {space} ethtool -K eth0 tx off")
            sh(f"ip netns exec {PREFIX}-switch ethtool -K {port} tx off")
            sh(f"ip -n {space} link set eth0 up && ip -n {PREFIX}-switch link set {port} up")
        sh(f"ip -n {PREFIX}-client address add 10.9.0.1/24 dev eth0")
        sh(f"ip -n {PREFIX}-client route add 10.1.0.0/16 via 10.9.0.254")
        sh(f"ip -n {PREFIX}-client neigh add 10.9.0.254 lladdr 02:00:00:00:99:99 dev eth0")
        sh(f"ip -n {PREFIX}-sink link set eth0 address {SINK_MAC}")
        sh(f"ip -n {PREFIX}-sink address add 10.1.0.0/16 dev lo && ip -n {PREFIX}-sink route add default dev eth0")
        for what in ("all", "eth0"):
            sh(f"ip netns exec {PREFIX}-sink sysctl -q -w net.ipv4.conf.{what}.rp_filter=0")

    def switch(self):
        folder = self.folder
        sh(f"ovsdb-tool create {folder}/conf.db /usr/share/openvswitch/vswitch.ovsschema")
        self.start(
            "ovsdb-server",
            ["ovsdb-server", f"{folder}/conf.db", "--no-chdir", f"--remote=punix:{folder}/db.sock", f"--unixctl={folder}/db.ctl"],
            "switch",
        )
        self.until("the switch's database runs", (folder / "db.sock").exists)
        self.start_switch()
        line = f"ovs-vsctl --timeout=20 --db=unix:{folder}/db.sock add-br br0 -- set bridge br0 datapath_type=netdev "
        line += "fail-mode=secure protocols=OpenFlow13"
        for number, name in enumerate(["client", "sink", *SERVERS], 1):
            line += f" -- add-port br0 p-{name} -- set interface p-{name} ofport_request={number}"
        sh(line)
        self.until("the switch listens", (folder / "br0.mgmt").exists)

    def start_switch(self):
        folder = self.folder
        (folder / "switch.ctl").unlink(missing_ok=True)
        environment = {**os.environ, "OVS_RUNDIR": str(folder)}
        arguments = ["ovs-vswitchd", f"unix:{folder}/db.sock", "--no-chdir", f"--unixctl={folder}/switch.ctl"]
        self.start("ovs-vswitchd", arguments, "switch", environment)

    # The programs.

    def api_server(self):
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tailwater"
        programs = sorted(cache.glob("kube-apiserver-v*"))
        programs = [program for program in programs if not program.name.endswith(".partial")]
        if not programs:
            raise SystemExit("there is no API server: tools/kubernetes/build.sh builds it")
        sh(f"openssl genrsa -out {self.folder}/accounts.key 2048")
        (self.folder / "tokens").write_text("administrator,admin,1,system:masters\n")
        self.start(
            "etcd",
            ["etcd", "--listen-client-urls=http://127.0.0.1:12379", "--advertise-client-urls=http://127.0.0.1:12379",
             "--listen-peer-urls=http://127.0.0.1:12380", "--data-dir=etcd", "--unsafe-no-fsync"],
        )  # fmt: skip
        self.api = programs[-1]
        self.start_api_server()
        kubeconfig = {
            "apiVersion": "v1", "kind": "Config", "current-context": "rack",
            "clusters": [{"name": "rack", "cluster": {
                "server": f"https://{CONTROL}:16443", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": "administrator"}}],
            "contexts": [{"name": "rack", "context": {"cluster": "rack", "user": "admin"}}],
        }  # fmt: skip
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig))

    def start_api_server(self):
        self.start(
            "kube-apiserver",
            [str(self.api), "--etcd-servers=http://127.0.0.1:12379", "--secure-port=16443", f"--bind-address={CONTROL}",
             "--cert-dir=certificates", "--authorization-mode=RBAC", "--token-auth-file=tokens",
             "--service-account-issuer=https://tailwater.test", "--service-account-key-file=accounts.key",
             "--service-account-signing-key-file=accounts.key", "--service-cluster-ip-range=10.96.0.0/16",
             "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"],
        )  # fmt: skip
        self.until("the API server is ready", lambda: self.get("/readyz") == "ok")

    def request(self, method, path, body=None, kind="application/json"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"https://{CONTROL}:16443{path}", method=method)
        request.add_header("Authorization", "Bearer administrator")
        data = None
        if body is not None:
            request.add_header("Content-Type", kind)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=10, context=context) as answer:
            return answer.read().decode()

    def get(self, path):
        try:
            return self.request("GET", path)
        except (urllib.error.URLError, OSError):
            return ""

    def items(self, path):
        text = self.get(path)
        return json.loads(text)["items"] if text else []

    def environment(self):
        return {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}

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

    def certificates(self):
        """An authority, and a certificate of it, by which the programs of the rack know each other."""
        home = self.folder / "tls"
        home.mkdir()
        (home / "names").write_text("subjectAltName=DNS:rack.tailwater\n")
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        sh(f"cd {home} && openssl req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=rack -days 2")
        sh(f"cd {home} && openssl req {key} -keyout tls.key -out tls.csr -subj /CN=rack")
        sh(f"cd {home} && openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out tls.crt -days 2 -extfile names")

    def start_redis(self):
        self.start("redis", ["redis-server", "--port", "16379", "--bind", CONTROL, "--save", "", "--protected-mode", "no"])

    def start_controller(self, name):
        arguments = ["controller", "--identity", name, "--lease", "3s", "--lost-after", "3s", "--drain", "5s"]
        self.start(f"controller-{name}", [self.program, *arguments], None, self.environment())

    def start_ingress(self, *more):
        endpoint = f"unix:{self.folder}/br0.mgmt"
        arguments = ["ingress", "--switch", endpoint, "--listen", f"{CONTROL}:17443", "--tls", "tls", "--lost-after", "400ms"]
        self.start("ingress", [self.program, *arguments, "--unmatched", "normal", *more], None, self.environment())

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
        arguments += ["--report-to", f"{CONTROL}:17443", "--tls", "tls"]
        self.start(f"agent-{name}", [self.program, *arguments], name, self.environment())

    def instances(self):
        return self.items("/apis/tailwater.dev/v1alpha1/chaininstances")


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


def received(path):
    """Packets that the sink has got: (time, flow, number, source)."""
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) == 4:
            yield float(parts[0]), int(parts[1]), int(parts[2]), parts[3]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--flows", type=int, default=64)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    arguments = parser.parse_args()
    rack = Rack(str(pathlib.Path(arguments.program).resolve()))
    failed = True
    try:
        rack.wire()
        rack.switch()
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


def ready_servers(rack):
    def is_ready(server):
        conditions = server.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    return [server for server in rack.items("/apis/tailwater.dev/v1alpha1/rackservers") if is_ready(server)]


def steered(rack):
    return [one for one in rack.instances() if one.get("status", {}).get("steered")]


def busiest(rack):
    """Name of the server that has the packets; empty if no load is known."""
    rates = {one["spec"]["server"]: one.get("status", {}).get("figures", {}).get("offered", 0) for one in rack.instances()}
    name = max(rates, key=rates.get, default="")
    return name if name and rates[name] > 0 else ""


def is_even(rack):
    """Two instances have a quarter of the packets or more."""
    rates = [one.get("status", {}).get("figures", {}).get("offered", 0) for one in rack.instances()]
    return sum(4 * rate >= sum(rates) > 0 for rate in rates) == 2


def failures(rack):
    """What fails, one after another: name, what is done, and longest allowed gap in seconds."""

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

    return [
        ("nothing", lambda: time.sleep(2), 0.5),
        ("the leading controller is killed", lambda: away(["controller-first"], lambda: rack.start_controller("first")), 0.5),
        ("the API server is away for 3 s", lambda: away(["kube-apiserver"], rack.start_api_server), 0.5),
        ("the ingress is killed, and away for 3 s", lambda: away(["ingress"], rack.start_ingress), 0.5),
        ("Redis restarts without its data", restart_redis, 1),
        ("a server is emptied for maintenance", drain, 0.5),
        ("the switch restarts without its rules", restart_switch, 5),
        ("a server is killed", kill_server, 1),
        ("it comes back", server_returns, 0.5),
        ("one instance has all the load", skewed_load, 0.5),
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
        rack.until("packets arrive again", lambda: any(at > time.time() - 0.5 for at, *_ in received(sink)))
        rack.until("two instances have packets again", lambda: len(steered(rack)) == 2)
        recovered = time.time() - began
        time.sleep(2)
        phases.append((what, began, time.time(), recovered, longest))
    rack.kill("client", signal.SIGTERM)
    time.sleep(0.5)
    return told(list(received(sink)), phases, arguments)


def told(packets, phases, arguments):
    """Prints what happened in each phase. Returns True if something is wrong."""
    arrivals = sorted(at for at, *_ in packets)
    numbers, sources = {}, {}
    # A packet's time is that of its number, by the flow's packets around it.
    missing = []
    for at, flow, number, source in packets:
        before = numbers.get(flow)
        if before and number > before[1] + 1:
            lost = number - before[1] - 1
            missing += [before[0] + (at - before[0]) * (one + 1) / (lost + 1) for one in range(lost)]
        numbers[flow] = (at, number)
    is_wrong = False
    print(f"{'':42} {'longest gap':>12} {'lost':>6} {'of':>7} {'other bindings':>15} {'flows':>6} {'whole again':>12}")
    for what, began, ended, recovered, longest in phases:
        of_phase = [packet for packet in packets if began <= packet[0] < ended]
        times = [at for at in arrivals if began - 0.1 <= at < ended]
        gap = max((later - earlier for earlier, later in zip(times, times[1:])), default=ended - began)
        lost = sum(began <= at < ended for at in missing)
        moved = 0
        for _, flow, _, source in of_phase:
            moved += sources.get(flow, source) != source
            sources[flow] = source
        flows = len({flow for at, flow, *_ in of_phase if at > ended - 1.5})
        print(
            f"{what:42} {gap * 1e3:9.0f} ms {lost:6} {len(of_phase) + lost:7} {moved:15} {flows:6} {recovered:10.1f} s"
        )
        is_wrong |= gap > longest or flows != arguments.flows or moved > 0
    return is_wrong


if __name__ == "__main__":
    main()
