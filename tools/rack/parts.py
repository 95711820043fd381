"""Pieces of a rack on one machine: processes, etcd and an API server, Redis, Open vSwitch, certificates.

`tools/rack/rack.py` and `tools/cluster/cluster.py` are made of them.
"""

import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

UNTIL = 60
SINK_MAC = "02:00:00:00:99:02"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tailwater"


def sh(line, check=True):
    return subprocess.run(line, shell=True, check=check, capture_output=True, text=True)


def built(program):
    """Path of a program that `tools/kubernetes/build.sh` has built."""
    found = [path for path in sorted(CACHE.glob(f"{program}-v*")) if path.suffix != ".partial"]
    if not found:
        raise SystemExit(f"there is no {program}: tools/kubernetes/build.sh {program}  builds it")
    return str(found[-1])


class Parts:
    """Processes with their logs in one folder, and what they are to each other.

    `control` is the address of API server and Redis, `port` the API server's; `prefix` begins the names of network
    namespaces.
    """

    def __init__(self, name, control, port=16443, prefix=""):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"tailwater-{name}-"))
        self.control, self.port, self.prefix = control, port, prefix
        self.processes, self.undo = {}, []

    def do(self, line, undo=None):
        sh(line)
        if undo:
            self.undo.append(undo)

    def start(self, name, arguments, namespace=None, environment=None):
        if namespace:
            arguments = ["ip", "netns", "exec", f"{self.prefix}{namespace}", *arguments]
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

    def ends_well(self, names):
        """Ends programs on request. Returns True if each ends with exit code 0."""
        ended = {name: self.processes.pop(name) for name in names}
        for process in ended.values():
            process.terminate()
        codes = {name: process.wait(timeout=10) for name, process in ended.items()}
        if wrong := {name: code for name, code in codes.items() if code}:
            print(f"ended with another exit code than 0: {wrong}")
        return not wrong

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

    def space(self, name):
        """A network namespace, without IPv6."""
        space = f"{self.prefix}{name}"
        self.do(f"ip netns add {space}", f"ip netns del {space}")
        for scope in ("all", "default"):
            sh(f"ip netns exec {space} sysctl -q -w net.ipv6.conf.{scope}.disable_ipv6=1")
        sh(f"ip -n {space} link set lo up")

    def link(self, name, inner, port):
        """Leads from interface `inner` of a namespace to this port of the switch."""
        space, switch = f"{self.prefix}{name}", f"{self.prefix}switch"
        sh(f"ip link add {inner} netns {space} type veth peer name {port} netns {switch}")
        sh(f"ip netns exec {space} ethtool -K {inner} tx off && ip netns exec {switch} ethtool -K {port} tx off")
        sh(f"ip -n {space} link set {inner} up && ip -n {switch} link set {port} up")

    def ends(self):
        """Namespaces `switch`, `client` and `sink`. The client is 10.9.0.1, the sink 10.1.0.0/16."""
        for name in ("switch", "client", "sink"):
            self.space(name)
        self.link("client", "eth0", "p-client")
        self.link("sink", "eth0", "p-sink")
        client, sink = f"{self.prefix}client", f"{self.prefix}sink"
        sh(f"ip -n {client} address add 10.9.0.1/24 dev eth0")
        sh(f"ip -n {client} route add 10.1.0.0/16 via 10.9.0.254")
        sh(f"ip -n {client} neigh add 10.9.0.254 lladdr 02:00:00:00:99:99 dev eth0")
        sh(f"ip -n {sink} link set eth0 address {SINK_MAC}")
        sh(f"ip -n {sink} address add 10.1.0.0/16 dev lo && ip -n {sink} route add default dev eth0")
        for scope in ("all", "eth0"):
            sh(f"ip netns exec {sink} sysctl -q -w net.ipv4.conf.{scope}.rp_filter=0")

    # The switch.

    def switch(self, ports):
        """A switch in namespace `switch`, with these ports in this order: the first has number 1."""
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
        for number, port in enumerate(ports, 1):
            line += f" -- add-port br0 {port} -- set interface {port} ofport_request={number}"
        sh(line)
        self.until("the switch listens", (folder / "br0.mgmt").exists)

    def start_switch(self):
        folder = self.folder
        (folder / "switch.ctl").unlink(missing_ok=True)
        environment = {**os.environ, "OVS_RUNDIR": str(folder)}
        arguments = ["ovs-vswitchd", f"unix:{folder}/db.sock", "--no-chdir", f"--unixctl={folder}/switch.ctl"]
        self.start("ovs-vswitchd", arguments, "switch", environment)

    # API server and Redis.

    def api_server(self, tokens="", flags=("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")):
        """etcd and an API server, ready. `tokens`: further lines of its file of tokens; `flags`: further ones of its own.

        Without a controller manager nobody makes the service accounts that admission would ask for.
        """
        self.api, self.api_flags = built("kube-apiserver"), flags
        sh(f"openssl genrsa -out {self.folder}/accounts.key 2048")
        (self.folder / "tokens").write_text("administrator,admin,1,system:masters\n" + tokens)
        self.start(
            "etcd",
            ["etcd", "--listen-client-urls=http://127.0.0.1:12379", "--advertise-client-urls=http://127.0.0.1:12379",
             "--listen-peer-urls=http://127.0.0.1:12380", "--data-dir=etcd", "--unsafe-no-fsync"],
        )  # fmt: skip
        self.start_api_server()
        self.kubeconfig("kubeconfig", "administrator")

    def start_api_server(self):
        self.start(
            "kube-apiserver",
            [self.api, "--etcd-servers=http://127.0.0.1:12379", f"--secure-port={self.port}", f"--bind-address={self.control}",
             "--cert-dir=certificates", "--authorization-mode=Node,RBAC", "--token-auth-file=tokens",
             "--service-account-issuer=https://tailwater.test", "--service-account-key-file=accounts.key",
             "--service-account-signing-key-file=accounts.key", "--service-cluster-ip-range=10.96.0.0/16", *self.api_flags],
        )  # fmt: skip
        self.until("the API server is ready", lambda: self.get("/readyz") == "ok")

    def kubeconfig(self, name, token):
        """Writes a file by which the one with this token reaches the API server, and returns its path."""
        kubeconfig = {
            "apiVersion": "v1", "kind": "Config", "current-context": "rack",
            "clusters": [{"name": "rack", "cluster": {
                "server": f"https://{self.control}:{self.port}", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "rack", "context": {"cluster": "rack", "user": "user"}}],
        }  # fmt: skip
        path = self.folder / name
        path.write_text(json.dumps(kubeconfig))
        return path

    def request(self, method, path, body=None, kind="application/json"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"https://{self.control}:{self.port}{path}", method=method)
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
        self.start("redis", ["redis-server", "--port", "16379", "--bind", self.control, "--save", "", "--protected-mode", "no"])

    def instances(self):
        return self.items("/apis/tailwater.dev/v1alpha1/chaininstances")


def ready_servers(rack):
    def is_ready(server):
        conditions = server.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    return [server for server in rack.items("/apis/tailwater.dev/v1alpha1/rackservers") if is_ready(server)]


def steered(rack):
    return [one for one in rack.instances() if one.get("status", {}).get("steered")]


def busiest(rack):
    """Name of the server that has the packets; empty if no load is known."""
    rates = {}
    for one in rack.instances():
        server, figures = one["spec"]["server"], one.get("status", {}).get("figures") or {}
        rates[server] = rates.get(server, 0) + figures.get("offered", 0)
    name = max(rates, key=rates.get, default="")
    return name if name and rates[name] > 0 else ""
