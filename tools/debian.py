#!/usr/bin/env python3
"""Packs the built program as a Debian package, with man pages, completions, the service, docs, examples and the
SDK of functions in C.

Needs dpkg-deb and objdump (dpkg, binutils). The package is the same for the same files and commit.

usage: tools/debian.py FOLDER PACKAGE-FOLDER
       FOLDER has `tailwater` and `libtailwater_nf.a`, as target/release
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# Libraries and the packages that have them. Any other one is not among those that a server has.
PACKAGES = {"libc.so.6": "libc6", "libm.so.6": None, "libgcc_s.so.1": "libgcc-s1", "libstdc++.so.6": "libstdc++6",
            "ld-linux-x86-64.so.2": None, "ld-linux-aarch64.so.1": None}  # fmt: skip

CONTROL = """Package: tailwater
Version: {version}
Architecture: {machine}
Maintainer: The Tailwater authors <tailwater@localhost>
Installed-Size: {size}
Depends: {depends}
Recommends: systemd
Suggests: ethtool, libpcap0.8, openvswitch-switch, redis-server
Section: net
Priority: optional
Description: chains of network functions that keep their latency objective
 Runs chains of network functions (firewall, NAT, load balancer, detection,
 encryption and others) on the cores of a server, absorbs bursts by auxiliary
 cores, isolates functions, and tells why packets were late.
"""

# Without debhelper: what its scripts would do, as far as a machine has the programs.
AFTER_INSTALL = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers tailwater.conf
    elif ! getent passwd tailwater >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/tailwater --no-create-home --shell /usr/sbin/nologin tailwater
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then
            systemctl try-restart tailwater.service
        fi
    fi
fi
"""
BEFORE_REMOVAL = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now tailwater.service
fi
"""
AFTER_REMOVAL = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    # Where systemd does not run, as while an image is made, nothing has disabled the service.
    rm -f /etc/systemd/system/multi-user.target.wants/tailwater.service
    rm -rf /var/lib/tailwater
fi
"""


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def depends(program):
    """Packages that the program needs, the C library with its least version."""
    headers = output("objdump", "-p", program)
    needed = re.findall(r"NEEDED\s+(\S+)", headers)
    if unknown := [name for name in needed if name not in PACKAGES]:
        sys.exit(f"{program}: expected a program that needs only the C and C++ libraries, found {', '.join(unknown)}")
    least = max(tuple(map(int, number.split("."))) for number in re.findall(r"GLIBC_([\d.]+)", headers))
    packages = sorted(PACKAGES[name] for name in needed if PACKAGES[name])
    return ", ".join(f"{name} (>= {'.'.join(map(str, least))})" if name == "libc6" else name for name in packages)


def put(root, path, content, mode=0o644):
    """A file of the package. Content: bytes, text or the path of a file."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pathlib.Path):
        content = content.read_bytes()
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    target.chmod(mode)


def packed(content):
    return gzip.compress(content, 9, mtime=0)


def fill(root, built):
    program = built / "tailwater"
    put(root, "usr/bin/tailwater", program, 0o755)
    put(root, "usr/lib/tailwater/libtailwater_nf.a", built / "libtailwater_nf.a")
    # What modules need besides comes with `tailwater new-function`.
    for header in (ROOT / "crates/sdk/include").glob("*.h"):
        put(root, f"usr/include/{header.name}", header)
    with tempfile.TemporaryDirectory() as pages:
        output(program, "man-pages", pages)
        for page in sorted(pathlib.Path(pages).iterdir()):
            put(root, f"usr/share/man/man1/{page.name}.gz", packed(page.read_bytes()))
    for shell, path in (
        ("bash", "bash-completion/completions/tailwater"),
        ("zsh", "zsh/vendor-completions/_tailwater"),
        ("fish", "fish/vendor_completions.d/tailwater.fish"),
    ):
        put(root, f"usr/share/{path}", output(program, "completions", shell))
    systemd = ROOT / "deploy/systemd"
    put(root, "usr/lib/systemd/system/tailwater.service", systemd / "tailwater.service")
    put(root, "usr/lib/sysusers.d/tailwater.conf", systemd / "tailwater.sysusers")
    docs = "usr/share/doc/tailwater"
    put(root, f"{docs}/isolation.conf", systemd / "isolation.conf")
    put(root, f"{docs}/copyright", ROOT / "LICENSE")
    put(root, f"{docs}/changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
    put(root, f"{docs}/README.md", ROOT / "README.md")
    # As in the sources, so that the pages' links lead to each other and to the examples.
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    for file in sorted(files):
        if file.is_file() and "target" not in file.parts:
            put(root, f"{docs}/{file.relative_to(ROOT)}", file)
    (root / "etc/tailwater").mkdir(parents=True)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    built, target = map(pathlib.Path, sys.argv[1:])
    program = built / "tailwater"
    version = output(program, "-V").split()[-1]
    machine = MACHINES[os.uname().machine]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "tailwater"
        fill(root, built)
        subprocess.run(["strip", "--strip-debug", root / "usr/bin/tailwater"], check=True)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
        values = {"version": version, "machine": machine, "size": size, "depends": depends(program)}
        put(root, "DEBIAN/control", CONTROL.format(**values))
        for name, script in (("postinst", AFTER_INSTALL), ("prerm", BEFORE_REMOVAL), ("postrm", AFTER_REMOVAL)):
            put(root, f"DEBIAN/{name}", script, 0o755)
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        target.mkdir(parents=True, exist_ok=True)
        package = target / f"tailwater_{version}_{machine}.deb"
        # The time of the commit, so that the same sources give the same package.
        at = output("git", "-C", ROOT, "log", "-1", "--format=%ct").strip() if shutil.which("git") else "0"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": at or "0"}
        command = ["dpkg-deb", "--root-owner-group", "--build", root, package]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    print(f"{package}, {package.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
