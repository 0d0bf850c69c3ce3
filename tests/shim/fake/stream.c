/* Streams, events, copies and launches of the stand-in driver: work is done at once, only its marks are kept. */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_ulong launches[2];

CUresult fake_stream_context(CUstream stream, CUcontext *context) {
    if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) {
        *context = stream->context;
        return fake_ready();
    }
    return fake_context(context);
}

CUgraph fake_capture_of(CUstream stream) {
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? NULL : stream->capture;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    (void)flags;
    CUcontext context;
    CUresult result = fake_context(&context);
    if (result == CUDA_SUCCESS) {
        *stream = calloc(1, sizeof **stream);
        (*stream)->context = context;
    }
    return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    free(stream);
    return fake_ready();
}

CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
    FAKE_ENTER("cuStreamSynchronize");
    if (fake_capture_of(stream) != NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    fake_pools_settle();
    return fake_ready();
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return cuStreamSynchronize(stream);
}

CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return fake_ready();
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
    return fake_stream_context(stream, ctx);
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ctx) {
    return fake_stream_context(stream, ctx);
}

CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    *status = fake_capture_of(stream) != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return fake_ready();
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps,
                                   size_t *num_deps) {
    CUgraph capture = fake_capture_of(stream);
    *status = capture != NULL;
    if (id != NULL) {
        *id = (uint64_t)(uintptr_t)capture;
    }
    if (graph != NULL) {
        *graph = capture;
    }
    if (deps != NULL) {
        *deps = NULL;
    }
    if (num_deps != NULL) {
        *num_deps = 0;
    }
    return fake_ready();
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    (void)mode;
    if (stream == NULL || stream == CU_STREAM_LEGACY || fake_capture_of(stream) != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuGraphCreate(&stream->capture, 0);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, 0);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    if (fake_capture_of(stream) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = stream->capture;
    stream->capture = NULL;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(stream, graph);
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    *event = malloc(1);
    return fake_ready();
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event;
    (void)stream;
    return fake_ready();
}

CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    fake_pools_settle();
    return fake_ready();
}

CUresult cuEventDestroy_v2(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    return cuEventDestroy_v2(event);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes) {
    (void)dst;
    (void)src;
    (void)bytes;
    return fake_ready();
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes) {
    (void)dst;
    (void)src;
    (void)bytes;
    return fake_ready();
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(dst, src, bytes);
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
    (void)dst;
    (void)value;
    (void)count;
    return fake_ready();
}

static CUresult launch(int per_thread_stream) {
    atomic_fetch_add_explicit(&launches[per_thread_stream], 1, memory_order_relaxed);
    return fake_ready();
}

CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra) {
    (void)f, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)params, (void)extra;
    return launch(0);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y, unsigned int block_z,
                             unsigned int shared_bytes, CUstream stream, void **params, void **extra) {
    (void)f, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)params, (void)extra;
    return launch(1);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    (void)config, (void)f, (void)params, (void)extra;
    return launch(0);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    (void)config, (void)f, (void)params, (void)extra;
    return launch(1);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **params) {
    (void)f, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)params;
    return launch(0);
}

CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    (void)stream;
    function(data);
    return fake_ready();
}

uint64_t fakeLaunches(int per_thread_stream) {
    return atomic_load(&launches[per_thread_stream != 0]);
}
