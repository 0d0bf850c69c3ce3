/* What a test asks the stand-in driver behind the shim's back, and the few driver symbols that the shim's header leaves
 * out because it never touches them. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "cuda_min.h"

CUDAAPI uint64_t fakeCardUsed(CUdevice device);
CUDAAPI uint64_t fakeCardUsedByMe(CUdevice device);
CUDAAPI uint64_t fakeCallsOf(const char *function);
CUDAAPI uint64_t fakeLaunches(int per_thread_stream);

CUDAAPI CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUDAAPI CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUDAAPI CUresult cuEventRecord(CUevent event, CUstream stream);
CUDAAPI CUresult cuEventSynchronize(CUevent event);
CUDAAPI CUresult cuEventDestroy(CUevent event);
CUDAAPI CUresult cuEventDestroy_v2(CUevent event);
CUDAAPI CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags);
CUDAAPI CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);
CUDAAPI CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUDAAPI CUresult cuCtxSynchronize_v2(CUcontext context);

#endif
