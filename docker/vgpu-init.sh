#!/bin/sh
# Installs the in-container library on the host: vgpu-init.sh DIR, where DIR is <hook path>/vgpu on the host.
#
# A file gets a name with its version and appears by rename: a library that running containers have mapped is never
# written to, and nobody sees half of one (spec/node 8; HAMi issues 727 and 753).
set -eu
target=${1:?usage: vgpu-init.sh DIR}
source=${VGPU_SOURCE:-/k8s-vgpu/lib/nvidia}
mkdir -p "$target/containers"
# Where SELinux enforces, containers may map and write only files of this type; what is made here later inherits it.
if [ -n "${VGPU_SELINUX_TYPE:-}" ]; then
    # shellcheck disable=SC2086
    chcon -R -t "$VGPU_SELINUX_TYPE" "$target" ${VGPU_SELINUX_FOLDERS:-} ||
        echo "labels not set: SELinux is off here, or the host forbids it" >&2
fi

# place NAME MODE: the file made as .NAME.$$ gets its name. A runtime that was to mount a file before it was there has
# left a folder of its name, and mv would move the file into that (HAMi issues 663, 777 and 1346). A link goes alone.
place() {
    if [ -d "$target/$1" ]; then
        rm -rf "${target:?}/$1"
    fi
    chmod "$2" "$target/.$1.$$"
    mv -f "$target/.$1.$$" "$target/$1"
}

# install NAME MODE: unless the same is there.
install() {
    if [ ! -f "$target/$1" ] || ! cmp -s "$source/$1" "$target/$1"; then
        cp "$source/$1" "$target/.$1.$$"
        place "$1" "$2"
    fi
}

for file in "$source"/libvgpu.so.*; do
    install "${file##*/}" 0644
done
for name in libvgpu.so vgpu-info; do
    if [ -f "$source/$name" ]; then
        install "$name" 0755
    fi
done
printf '%s/libvgpu.so\n' "$target" >"$target/.ld.so.preload.$$"
place ld.so.preload 0644
echo "library installed in $target"
