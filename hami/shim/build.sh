#!/bin/sh
# Build libvgpu.so and vgpu-info. Usage: build.sh [release|debug|address|thread] [BUILDDIR]
#   release  as shipped          debug   -O0 -g, symbols of all functions, same exports
#   address  with AddressSanitizer and UBSan          thread  with ThreadSanitizer
# BUILDDIR defaults to $HAMI_CACHE/shim/<kind> (the temp directory without HAMI_CACHE). Prints the folder.
set -eu
kind=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
root=${HAMI_CACHE:-${TMPDIR:-/tmp}/hami-cache-$(id -u)}
out=${2:-$root/shim/$kind}
case $kind in
release) set -- --buildtype=release ;;
debug) set -- --buildtype=debug ;;
address) set -- --buildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false ;;
thread) set -- --buildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false ;;
*) echo "build.sh: unknown kind $kind" >&2; exit 2 ;;
esac
if [ ! -f "$out/build.ninja" ]; then
    mkdir -p "$out"
    meson setup "$@" "$out" "$here" >"$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
fi
ninja -C "$out" >"$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
echo "$out"
