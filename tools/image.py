#!/usr/bin/env python3
"""Packs a program with the libraries it needs as a container image, without a registry, a daemon or a base image.

The result is an archive that `ctr images import`, `podman load` and `docker load` take. It is the same for the same
program and libraries, wherever and whenever it is made.

usage: tools/image.py PROGRAM NAME:TAG ARCHIVE
"""

import gzip
import hashlib
import io
import json
import pathlib
import platform
import re
import subprocess
import sys
import tarfile

FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def libraries(program):
    """Paths by which the program finds its libraries, the loader included."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    if done.returncode and "not a dynamic executable" in done.stderr:
        return []
    done.check_returncode()
    listed = done.stdout
    if missing := re.findall(r"(\S+) => not found", listed):
        sys.exit(f"{program}: expected these libraries: {', '.join(missing)}")
    found = set(re.findall(r"(/\S+) \(0x", listed))
    # Names are looked up by libraries that the program does not name.
    for path in list(found):
        if pathlib.Path(path).name.startswith("libc.so"):
            found.update(str(path) for path in pathlib.Path(path).parent.glob("libnss_[df][ni]*.so.2"))
    return sorted(found)


def add(archive, name, content=None, mode=0o644, kind=tarfile.REGTYPE):
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type = mode, kind
    if content is not None:
        entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content) if content is not None else None)


def entry(program):
    """Path of the program in the image."""
    return f"/usr/bin/{pathlib.Path(program).name}"


def layer(program):
    contents = {entry(program).lstrip("/"): (pathlib.Path(program).read_bytes(), 0o755)}
    for path in libraries(program):
        contents[path.lstrip("/")] = (pathlib.Path(path).read_bytes(), 0o755)
    for name, text in FILES.items():
        contents[name] = (text.encode(), 0o644)
    if CERTIFICATES.exists():
        contents["etc/ssl/certs/ca-certificates.crt"] = (CERTIFICATES.read_bytes(), 0o644)
    folders = {str(parent) for name in contents for parent in pathlib.PurePath(name).parents if str(parent) != "."}
    folders |= {"var/lib/tailwater", "var/lib", "var", "run", "run/tailwater", "root", "proc", "sys", "dev"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in sorted(folders):
            add(archive, folder, mode=0o755, kind=tarfile.DIRTYPE)
        add(archive, "tmp", mode=0o1777, kind=tarfile.DIRTYPE)
        for name, (content, mode) in sorted(contents.items()):
            add(archive, name, content, mode)
    return out.getvalue()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, name, target = sys.argv[1:]
    plain = layer(program)
    packed = gzip.compress(plain, 6, mtime=0)
    digest = lambda content: hashlib.sha256(content).hexdigest()
    config = json.dumps(
        {
            "architecture": MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Entrypoint": [entry(program)], "Env": ["PATH=/usr/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(plain)}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "tools/image.py"}],
        },
        sort_keys=True,
    ).encode()
    layer_name = f"{digest(packed)}/layer.tar"
    config_name = f"{digest(config)}.json"
    # The archive of `docker save`, by which each of them completes the name in its own way.
    files = {
        "manifest.json": json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).encode(),
        layer_name: packed,
        config_name: config,
    }
    with tarfile.open(target, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file, content in sorted(files.items()):
            add(archive, file, content)
    size = sum(map(len, files.values()))
    print(f"{target}: image {name}, {size / 1e6:.1f} MB, {digest(config)[:12]}")


main()
