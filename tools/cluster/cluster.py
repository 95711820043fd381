#!/usr/bin/env python3
"""A full Kubernetes cluster on one machine, of which two nodes are servers of a rack. It runs a chain on real packets.

etcd, API server, controller manager and scheduler; on each node containerd, kubelet and kube-proxy. Tailwater comes as a
container image by its Helm chart, with the commands of docs/how-to/run-a-rack-on-kubernetes.md. A client sends datagrams of
many flows through an Open vSwitch, which the ingress programs, to the nodes and from there to a sink. Meanwhile one thing
after another happens: the chain grows and shrinks, pods are killed, the release is upgraded. Prints a table of what arrived,
and exits with 1 if something is not as documented. At last the release is uninstalled, and must leave nothing.

Everything is in namespaces of its own and ends with this program; what the kernel has once only (some sysctls, cgroups) is
restored, after a crash by the next start. No registry and no network is needed.

Needs root, cgroups of version 1, and what `make cluster` installs and builds.

usage: tools/cluster/cluster.py TAILWATER [--flows N] [--rate PACKETS-PER-SECOND] [--steps REGEX] [--keep]
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "rack"))

from node import GROUPS, PAUSE, Node, make_groups, remove_groups  # noqa: E402
from parts import Parts, built, ready_servers, sh  # noqa: E402

# Those that the kubelet sets for the whole machine.
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "kernel.keys.root_maxkeys",
           "kernel.keys.root_maxbytes")  # fmt: skip
# Settings to restore; the file outlives a crash.
SAVED = pathlib.Path("/run/tailwater-cluster.json")
CONTROL = "10.201.0.1"
SERVICE = "10.96.0.1"
NODES = ("node-a", "node-b")


# Outside of the namespaces.


def sysctl(name):
    return pathlib.Path("/proc/sys") / name.replace(".", "/")


def save():
    restore()
    group = f"tailwater-cluster-{os.getpid()}"
    values = {name: sysctl(name).read_text().strip() for name in SYSCTLS if sysctl(name).exists()}
    SAVED.write_text(json.dumps({"process": os.getpid(), "group": group, "values": values}))
    for name in NODES:
        make_groups(f"{group}/{name}")
    return group


def restore():
    """Restores what an ended run has saved. Returns what could not be restored."""
    if not SAVED.exists():
        return []
    saved = json.loads(SAVED.read_text())
    if saved["process"] != os.getpid() and pathlib.Path(f"/proc/{saved['process']}").exists():
        sys.exit(f"process {saved['process']} runs a cluster already ({SAVED})")
    for name, value in saved["values"].items():
        if sysctl(name).read_text().strip() != value:
            sysctl(name).write_text(value)
    # Processes that have been killed leave their groups some moments later.
    for _ in range(50):
        left = remove_groups(saved["group"])
        if not left:
            break
        time.sleep(0.1)
    SAVED.unlink()
    return left


def outside(arguments):
    """Runs this program again in namespaces of its own, and restores what those do not contain. Returns its exit code."""
    if os.geteuid() != 0:
        sys.exit("expected to run as root: a cluster needs namespaces and cgroups")
    if not any(path.name == "memory" for path in GROUPS):
        sys.exit("expected cgroups of version 1 in /sys/fs/cgroup")
    for program in ("containerd", "runc", "etcd", "redis-server", "ovs-vswitchd", "openssl", "unshare", "nsenter", "cc"):
        if not shutil.which(program):
            sys.exit(f"there is no {program}: `make cluster` installs what is missing")
    group = save()
    libc = ctypes.CDLL(None)
    inner = subprocess.Popen(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, __file__,
         *arguments, "--inside", group],
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),
    )  # fmt: skip

    def end(*_):
        children = pathlib.Path(f"/proc/{inner.pid}/task/{inner.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        # It has half a minute.
        signal.signal(signal.SIGALRM, lambda *_: inner.kill())
        signal.alarm(30)

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, end)
    code = inner.wait()
    signal.alarm(0)
    if left := restore():
        print(f"not removed: {' '.join(left)}")
        return 1
    return code if code >= 0 else 1


# Inside.


class Cluster(Parts):
    def __init__(self, program, group):
        super().__init__("cluster", CONTROL, port=6443)
        self.program = program
        self.nodes = [Node(self, name, number, group) for number, name in enumerate(NODES, 1)]
        self.helm_program, self.kubectl_program = built("helm"), shutil.which("kubectl") or built("kubectl")

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)

    def wire(self):
        # Names of namespaces are this cluster's own.
        sh("mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns")
        sh("ip link set lo up && ip link add mgmt type bridge && ip link set mgmt up")
        sh(f"ip address add {CONTROL}/24 dev mgmt && ip address add {SERVICE}/32 dev lo && sysctl -q -w net.ipv4.ip_forward=1")
        self.ends()
        for node in self.nodes:
            node.wire(self.nodes)
        self.switch(["p-client", "p-sink", *NODES])

    def control_plane(self):
        folder = self.folder
        (folder / "names").write_text(
            f"subjectAltName=IP:{CONTROL},IP:{SERVICE},DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc\n"
        )
        key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        sh(f"cd {folder} && openssl req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=cluster -days 2")
        sh(f"cd {folder} && openssl req {key} -keyout api.key -out api.csr -subj /CN=api")
        sh(f"cd {folder} && openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 2 -extfile names")
        tokens = "proxy,system:kube-proxy,2\n"
        for node in self.nodes:
            tokens += f'{node.token},system:node:{node.name},node-{node.number},"system:nodes"\n'
        self.api_server(
            tokens,
            ["--tls-cert-file=api.crt", "--tls-private-key-file=api.key", f"--advertise-address={CONTROL}",
             "--allow-privileged=true", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement"],
        )  # fmt: skip
        access = f"--kubeconfig={folder}/kubeconfig"
        self.start(
            "kube-controller-manager",
            [built("kube-controller-manager"), access, "--leader-elect=false", "--root-ca-file=ca.crt",
             "--service-account-private-key-file=accounts.key", "--use-service-account-credentials=true"],
        )  # fmt: skip
        self.start("kube-scheduler", [built("kube-scheduler"), access, "--leader-elect=false"])
        environment = {**os.environ, "TOKEN": "administrator"}
        arguments = [sys.executable, str(HERE / "dns.py"), CONTROL, f"https://{CONTROL}:{self.port}"]
        self.start("dns", arguments, environment=environment)
        self.start_redis()

    def start_nodes(self):
        for node in self.nodes:
            node.configure()
            node.start()
        self.until("nodes are ready", lambda: all(self.is_ready(f"node/{node.name}") for node in self.nodes), 120)

    def images(self):
        version = sh(f"{self.program} -V").stdout.split()[-1]
        sh(f"cc -O1 -static -o {self.folder}/pause {HERE}/pause.c")
        for program, name, file in ((f"{self.folder}/pause", PAUSE, "pause.tar"), (self.program, f"tailwater:{version}", "image.tar")):
            print(sh(f"{ROOT}/tools/image.py {program} {name} {self.folder}/{file}").stdout.split("/")[-1].strip(), flush=True)
            for node in self.nodes:
                self.until("containerd answers", lambda node=node: self.answers(node))
                node.import_image(self.folder / file)

    def function_image(self):
        """Makes an image of the example function, and returns its name with its digest, by which nodes have it."""
        sources = " ".join(f"{ROOT}/examples/functions/rate-limit/{name}.c" for name in ("rate_limit", "main"))
        library = pathlib.Path(self.program).with_name("libtailwater_nf.a")
        program, archive = self.folder / "limit", self.folder / "limit.tar"
        sh(f"cc -std=c11 -O2 -pthread -I{ROOT}/crates/sdk/include -o {program} {sources} {library}")
        sh(f"{ROOT}/tools/image.py {program} {FUNCTIONS}/limit:1 {archive}")
        for node in self.nodes:
            node.import_image(f"--digests --base-name {FUNCTIONS}/limit {archive}")
        names = self.nodes[0].run("ctr -n k8s.io images ls -q").split()
        return next(name for name in names if name.startswith(f"{FUNCTIONS}/limit@"))

    @staticmethod
    def answers(node):
        try:
            return node.run("ctr version")
        except SystemExit:
            return False

    # Commands, as an operator types them.

    def command(self, line, check=True, quiet=False):
        """A line of a shell, where `kubectl`, `helm` and `tailwater` are the cluster's."""
        bins = self.folder / "bin"
        if not bins.exists():
            bins.mkdir()
            for name, path in (("kubectl", self.kubectl_program), ("helm", self.helm_program), ("tailwater", self.program)):
                (bins / name).symlink_to(path)
        environment = {**self.environment(), "PATH": f"{bins}:{os.environ['PATH']}", "HOME": str(self.folder)}
        if not quiet:
            print(f"$ {line}", flush=True)
        done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        if check and done.returncode:
            raise SystemExit(f"{line}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}")
        return done.stdout

    def kubectl(self, line, check=True):
        return self.command(f"kubectl {line}", check, quiet=True)

    def is_ready(self, what):
        path = "-o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'"
        return self.kubectl(f"get {what} {path}", check=False) == "True"

    def pods(self, component):
        """Running pods of a component, with name and node, that are not about to end."""
        query = f"/api/v1/namespaces/tailwater/pods?labelSelector=app.kubernetes.io/component%3D{component}"
        return [
            (pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["uid"])
            for pod in self.items(query)
            if "deletionTimestamp" not in pod["metadata"]
            and any(one["type"] == "Ready" and one["status"] == "True" for one in pod.get("status", {}).get("conditions", []))
        ]

    def install(self):
        """The three commands of docs/how-to/run-a-rack-on-kubernetes.md."""
        values = VALUES.format(folder=self.folder, core=os.cpu_count() - 1, functions=FUNCTIONS)
        if missing := missing_capabilities():
            print(f"this machine cannot give {', '.join(missing)}; functions are not confined here", flush=True)
            values = values.replace("agent:\n", f"agent:\n  capabilities: {[one for one in CAPABILITIES if one not in missing]}\n")
        (self.folder / "values.yaml").write_text(values)
        took = time.monotonic()
        self.command("tailwater definitions | kubectl apply --server-side -f -")
        self.command(f"helm install tailwater deploy/helm/tailwater -n tailwater --create-namespace -f {self.folder}/values.yaml")
        self.command(f"kubectl label node {' '.join(NODES)} tailwater.dev/server=true")
        self.until("all servers are ready", lambda: len(ready_servers(self)) == len(NODES), 120)
        self.until("the ingress is ready", lambda: len(self.pods("ingress")) == 1, 120)
        self.until("the controllers are ready", lambda: len(self.pods("controller")) == 2, 120)
        print(f"installed; servers, ingress and controllers are ready after {time.monotonic() - took:.1f} s", flush=True)

    def diagnose(self):
        """Tells what the cluster looks like when something has gone wrong."""
        for line in ("get pods -A -o wide", "get chains,chaininstances,rackservers -A", "describe chains -A",
                     "-n tailwater get events",
                     "-n tailwater logs -l app.kubernetes.io/name=tailwater --prefix --tail=15"):  # fmt: skip
            print(f"$ kubectl {line}\n{self.kubectl(line, check=False)}", flush=True)


# Those that the chart's agents ask for, with their numbers. A virtual machine may lack some.
CAPABILITIES = {"NET_RAW": 13, "NET_ADMIN": 12, "SYS_NICE": 23, "IPC_LOCK": 14, "SYS_ADMIN": 21, "SYS_RESOURCE": 24,
                "KILL": 5, "CHOWN": 0}  # fmt: skip


def missing_capabilities():
    bounds = int(re.search(r"CapBnd:\s*(\w+)", pathlib.Path("/proc/self/status").read_text())[1], 16)
    return [name for name, number in CAPABILITIES.items() if not bounds >> number & 1]


# Names of the images of functions in pods.
FUNCTIONS = "tailwater.test/nf"

VALUES = """
functions: {{allowedImages: [{functions}], namespaces: [default]}}
controller: {{lease: 3s, lostAfter: 3s, drain: 5s, hold: 5s, peak: 10s}}
agent:
  nap: 200us                                # the servers of this machine share a core
  resources: {{requests: {{cpu: 250m, memory: 256Mi}}, limits: {{memory: 2Gi}}}}
  server:
    cores: "{core}"
    auxiliary: null
    ports:
    - {{name: wire, port: interface=eth1}}
ingress:
  switch: unix:{folder}/br0.mgmt
  nodeSelector: {{kubernetes.io/hostname: node-a}}
  lostAfter: 400ms
"""


def inside(arguments):
    from steps import run

    # The first process of its namespace is not ended by signals that it does not handle.
    def end(*_):
        raise SystemExit("ended on request")

    signal.signal(signal.SIGTERM, end)
    cluster = Cluster(str(pathlib.Path(arguments.program).resolve()), arguments.inside)
    failed = True
    try:
        took = time.monotonic()
        cluster.wire()
        cluster.control_plane()
        cluster.start_nodes()
        print(f"{len(NODES)} nodes are ready after {time.monotonic() - took:.1f} s", flush=True)
        cluster.images()
        cluster.install()
        failed = run(cluster, arguments)
    except SystemExit as error:
        if not re.search("ended on request", str(error)):
            cluster.diagnose()
        raise
    finally:
        cluster.end(arguments.keep or failed)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--flows", type=int, default=64)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("--steps", default="", help="a regular expression: only the steps with such a name")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.exit(inside(arguments) if arguments.inside else outside(sys.argv[1:]))


if __name__ == "__main__":
    main()
