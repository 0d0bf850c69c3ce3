#!/bin/sh
# Takes HAMi's annotations and files from a node and says so in /tmp/clean. Used by charts/hami-cleanup, with the host's
# folders under /host.
#
# While a container here holds a share its library, limits and region stay: it must be able to start again.
set -eu
hook=/host/hook
lock=/host/tmp/vgpulock
config=/tmp/device-config.yaml
echo 'nvidia: {resourceCountName: nvidia.com/gpu}' >$config
while true; do
    if hami device-plugin --cleanup --nvml=sim:t4 --device-config-file=$config --hook-path=$hook --lock-dir=$lock \
        --cdi-root=/host/cdi --kubelet-dir=/host/kubelet; then
        [ -n "$(ls -A $hook/vgpu/containers 2>/dev/null)" ] || break
        echo "a container holds a share here: looking again in 5 s"
    elif [ $? -eq 2 ]; then
        exit 2
    else
        echo "not clean yet: trying again in 5 s"
    fi
    sleep 5
done
rm -rf "$hook/vgpu"
rm -rf "${lock:?}"/*
rmdir "$lock" 2>/dev/null || true
touch /tmp/clean
echo "node is clean"
exec sleep infinity
