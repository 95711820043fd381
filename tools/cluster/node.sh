#!/bin/sh
# First process of a node, in namespaces of its own: a container runtime, the kubelet and the services' proxy.
#
# usage: node.sh NAME FOLDER KUBELET KUBE-PROXY
set -eu
name=$1 folder=$2
# Their files in the machine's folders stay in the node's.
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
mount -t tmpfs tmpfs /run
hostname "$name"
containerd --config "$folder/containerd.toml" >"$folder/containerd.log" 2>&1 &
"$4" --config "$folder/kube-proxy.yaml" --hostname-override "$name" >"$folder/kube-proxy.log" 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
"$3" --config "$folder/kubelet.yaml" --kubeconfig "$folder/kubeconfig" --node-ip "$(cat "$folder/address")" \
    >"$folder/kubelet.log" 2>&1 &
wait
