"""A node of the local cluster: namespaces and cgroups of its own, with containerd, kubelet and kube-proxy in them."""

import json
import pathlib
import subprocess

from parts import built, sh

HERE = pathlib.Path(__file__).resolve().parent
# Hierarchies of cgroup v1, in which the kubelet makes the groups of pods.
ROOT = pathlib.Path("/sys/fs/cgroup")
GROUPS = [path for path in sorted(ROOT.glob("*")) if path.is_dir() and path.name != "unified"]
PAUSE = "tailwater-pause:1"


def make_groups(name):
    """A cgroup of this name in each hierarchy, whose processes may use all cores and all memory."""
    for hierarchy in GROUPS:
        group = hierarchy / name
        group.mkdir(parents=True, exist_ok=True)
        if hierarchy.name == "cpuset":
            for step in [*reversed(group.relative_to(hierarchy).parents[:-1]), group.relative_to(hierarchy)]:
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (hierarchy / step / file).write_text((hierarchy / file).read_text())


def remove_groups(name):
    """Removes the cgroup in each hierarchy, with those in it. Returns those that are in use."""
    left = []
    # The container runtime makes them in that of version 2, too, where there is one.
    for hierarchy in [*GROUPS, ROOT / "unified"]:
        group = hierarchy / name
        if not group.exists():
            continue
        inner = sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for path in [*inner, group]:
            try:
                path.rmdir()
            except OSError:
                left.append(str(path))
    return left


class Node:
    """`number` counts from 1; the node's pods have addresses of 10.244.NUMBER.0/24."""

    def __init__(self, cluster, name, number, group):
        self.cluster, self.name, self.number, self.group = cluster, name, number, f"{group}/{name}"
        self.folder = cluster.folder / name
        self.address = f"10.201.0.{10 + number}"
        self.token = f"node-{number}"

    def wire(self, others):
        """Connects the node with the cluster's network (eth0), and with the switch (eth1)."""
        name = self.name
        self.cluster.space(name)
        sh(f"ip link add m-{name} type veth peer name eth0 netns {name}")
        sh(f"ip link set m-{name} master mgmt up")
        sh(f"ip -n {name} address add {self.address}/24 dev eth0 && ip -n {name} link set eth0 up")
        sh(f"ip -n {name} route add default via {self.cluster.control}")
        for other in others:
            if other is not self:
                sh(f"ip -n {name} route add 10.244.{other.number}.0/24 via {other.address}")
        sh(f"ip route add 10.244.{self.number}.0/24 via {self.address}")
        self.cluster.link(name, "eth1", name)

    def configure(self):
        """Writes the files of the node's programs."""
        folder = self.folder
        for inner in ("lib", "log", "cni"):
            (folder / inner).mkdir(parents=True)
        (folder / "address").write_text(self.address)
        access = self.cluster.kubeconfig(f"{self.name}/kubeconfig", self.token)
        proxy_access = self.cluster.kubeconfig(f"{self.name}/proxy", "proxy")
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.group}",
            "makeIPTablesUtilChains": False, "oomScoreAdj": 0, "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [self.cluster.control], "clusterDomain": "cluster.local", "resolvConf": "",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # The machine's disk is not the cluster's concern.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%",
                             "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "2s",
        }  # fmt: skip
        (folder / "kubelet.yaml").write_text(json.dumps(kubelet))
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables",
            "clientConnection": {"kubeconfig": str(proxy_access)}, "clusterCIDR": "10.244.0.0/16",
            # Limits of connections are the machine's.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "healthzBindAddress": "", "metricsBindAddress": f"{self.address}:10249",
        }  # fmt: skip
        (folder / "kube-proxy.yaml").write_text(json.dumps(proxy))
        network = {
            "cniVersion": "0.4.0", "name": "pods",
            "plugins": [
                {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "hairpinMode": True,
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": f"10.244.{self.number}.0/24"}]],
                          "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }  # fmt: skip
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (folder / "containerd.toml").write_text(f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
""")
        return access

    def start(self):
        programs = [str(self.folder), built("kubelet"), built("kube-proxy")]
        # With this process ends everything of the node, containers included: it has processes of its own.
        self.cluster.start(
            self.name,
            ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
             "--mount-proc", str(HERE / "node.sh"), self.name, *programs],
        )  # fmt: skip

    def run(self, line):
        """Runs a line of a shell on the node, and returns what it printed."""
        process = self.cluster.processes[self.name].pid
        command = ["nsenter", f"--mount=/proc/{process}/ns/mnt", f"--net=/proc/{process}/ns/net", "sh", "-c", line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise SystemExit(f"{self.name}: {line}: {done.stderr.strip()}")
        return done.stdout

    def import_image(self, archive):
        self.run(f"ctr -n k8s.io images import {archive}")

    def kill_container(self, name):
        """Ends the first process of the running container of this name by SIGKILL."""
        chosen = f"'labels.\"io.kubernetes.container.name\"=={name}'"
        known = self.run(f"ctr -n k8s.io containers list -q {chosen}").split()
        running = {line.split()[0] for line in self.run("ctr -n k8s.io tasks list").splitlines() if "RUNNING" in line}
        for container in running.intersection(known):
            self.run(f"ctr -n k8s.io tasks kill -s SIGKILL {container}")
