#!/usr/bin/env bash
# Builds the API server that tests of the cluster run against, from Go modules of a fixed version, and other programs of a
# cluster. One takes four minutes of two cores, each further one less, so they are kept outside of the tree, by their
# versions: ${XDG_CACHE_HOME:-~/.cache}/tailwater.
#
# usage: tools/kubernetes/build.sh [PROGRAM]...    kube-apiserver (default), kubelet, ...: programs of k8s.io/kubernetes/cmd;
#                                                  helm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

helm=v3.19.4
version=$(sed -n 's/^\s*k8s\.io\/kubernetes \(v[0-9.]*\).*/\1/p; s/^require k8s\.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod | head -1)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tailwater
minor=${version#v1.}
minor=${minor%%.*}
mkdir -p "$cache"
[ $# -gt 0 ] || set -- kube-apiserver
for program; do
    of=$version
    [ "$program" != helm ] || of=$helm
    target=$cache/$program-$of
    if [ -x "$target" ]; then
        continue
    fi
    command -v go >/dev/null || {
        echo "expected Go, to build $program" >&2
        exit 1
    }
    echo "building $program $of ..." >&2
    if [ "$program" = helm ]; then
        # A module of its own, with other versions of the same modules.
        GOBIN=$cache/partial nice go install -trimpath -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@$helm"
        mv "$cache/partial/helm" "$target"
        rmdir "$cache/partial"
        continue
    fi
    flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
    flags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
    # Into another name first: what has the version's name is complete.
    nice go build -trimpath -ldflags="$flags" -o "$target.partial" "k8s.io/kubernetes/cmd/$program"
    mv "$target.partial" "$target"
done
