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
for file in "$source"/libvgpu.so.*; do
    name=${file##*/}
    if ! cmp -s "$file" "$target/$name"; then
        cp "$file" "$target/.$name.$$"
        chmod 0644 "$target/.$name.$$"
        mv -f "$target/.$name.$$" "$target/$name"
    fi
done
for name in libvgpu.so vgpu-info; do
    if [ -f "$source/$name" ] && ! cmp -s "$source/$name" "$target/$name"; then
        cp "$source/$name" "$target/.$name.$$"
        chmod 0755 "$target/.$name.$$"
        mv -f "$target/.$name.$$" "$target/$name"
    fi
done
printf '%s/libvgpu.so\n' "$target" >"$target/.ld.so.preload.$$"
chmod 0644 "$target/.ld.so.preload.$$"
mv -f "$target/.ld.so.preload.$$" "$target/ld.so.preload"
echo "library installed in $target"
