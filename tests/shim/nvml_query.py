"""A program in Python that asks NVML what it sees."""

from __future__ import annotations

QUERY = """
import json
import pynvml as n

def either(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return str(error)

n.nvmlInit()
cards = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    first, second = either(n.nvmlDeviceGetMemoryInfo, h), either(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2)
    if not isinstance(first, str):
        first = [first.total, first.used, first.free]
        second = [second.total, second.reserved, second.used, second.free]
    processes = [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
    cards.append({
        "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h), "v1": first, "v2": second,
        "processes": processes, "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(h)),
        "pci": n.nvmlDeviceGetPciInfo(h).busId, "minor": n.nvmlDeviceGetMinorNumber(h),
        "mig": either(n.nvmlDeviceGetMigMode, h), "by uuid": n.nvmlDeviceGetIndex(
            n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
        "utilization": n.nvmlDeviceGetUtilizationRates(h).gpu,
        "cc": list(n.nvmlDeviceGetCudaComputeCapability(h)),
    })
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "cuda": n.nvmlSystemGetCudaDriverVersion(),
                  "cards": cards}))
n.nvmlShutdown()
"""
