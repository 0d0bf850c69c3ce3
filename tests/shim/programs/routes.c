#include "routes.h"
#include "symbols.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static CUresult plain_take(struct held *held) {
    return CALL(cuMemAlloc_v2)(&held->pointer, held->bytes);
}

static CUresult plain_give(struct held *held) {
    return CALL(cuMemFree_v2)(held->pointer);
}

static CUresult old_take(struct held *held) {
    return CALL(cuMemAlloc)(&held->low, (unsigned int)held->bytes);
}

static CUresult old_give(struct held *held) {
    return CALL(cuMemFree)(held->low);
}

static CUresult managed_take(struct held *held) {
    return CALL(cuMemAllocManaged)(&held->pointer, held->bytes, 1);
}

static CUresult pitch_take(struct held *held) {
    size_t pitch;
    return CALL(cuMemAllocPitch_v2)(&held->pointer, &pitch, 65536 - 100, held->bytes / 65536, 4);
}

static CUresult old_pitch_take(struct held *held) {
    unsigned int pitch;
    return CALL(cuMemAllocPitch)(&held->low, &pitch, 65536 - 100, (unsigned int)(held->bytes / 65536), 4);
}

static CUresult pinned_take(struct held *held) {
    return CALL(cuMemAllocHost_v2)(&held->host, held->bytes);
}

static CUresult old_pinned_take(struct held *held) {
    return CALL(cuMemAllocHost)(&held->host, (unsigned int)held->bytes);
}

static CUresult host_alloc_take(struct held *held) {
    return CALL(cuMemHostAlloc)(&held->host, held->bytes, 0);
}

static CUresult pinned_give(struct held *held) {
    return CALL(cuMemFreeHost)(held->host);
}

static CUresult register_take(struct held *held) {
    held->host = malloc(held->bytes);
    return CALL(cuMemHostRegister_v2)(held->host, held->bytes, 0);
}

static CUresult old_register_take(struct held *held) {
    held->host = malloc(held->bytes);
    return CALL(cuMemHostRegister)(held->host, held->bytes, 0);
}

static CUresult register_give(struct held *held) {
    CUresult result = CALL(cuMemHostUnregister)(held->host);
    free(held->host);
    return result;
}

static CUresult settle(void) {
    return CALL(cuStreamSynchronize)(NULL);
}

static CUresult async_take(struct held *held) {
    return CALL(cuMemAllocAsync)(&held->pointer, held->bytes, NULL);
}

static CUresult async_give(struct held *held) {
    CUresult result = CALL(cuMemFreeAsync)(held->pointer, NULL);
    return result != CUDA_SUCCESS ? result : settle();
}

static CUresult async_free_give(struct held *held) {
    CUresult result = CALL(cuMemFree_v2)(held->pointer);
    return result != CUDA_SUCCESS ? result : settle();
}

static CUresult async_thread_take(struct held *held) {
    return CALL(cuMemAllocAsync_ptsz)(&held->pointer, held->bytes, NULL);
}

static CUresult async_thread_give(struct held *held) {
    CUresult result = CALL(cuMemFreeAsync_ptsz)(held->pointer, NULL);
    return result != CUDA_SUCCESS ? result : settle();
}

static CUresult async_stream_take(struct held *held) {
    CUresult result = CALL(cuStreamCreate)(&held->stream, 0);
    return result != CUDA_SUCCESS ? result : CALL(cuMemAllocAsync)(&held->pointer, held->bytes, held->stream);
}

static CUresult async_stream_give(struct held *held) {
    CUresult result = CALL(cuMemFreeAsync)(held->pointer, held->stream);
    CALL(cuStreamSynchronize)(held->stream);
    CALL(cuStreamDestroy_v2)(held->stream);
    return result;
}

static CUresult default_pool_take(struct held *held) {
    CUresult result = CALL(cuDeviceGetDefaultMemPool)(&held->pool, 0);
    return result != CUDA_SUCCESS ? result
                                  : CALL(cuMemAllocFromPoolAsync)(&held->pointer, held->bytes, held->pool, NULL);
}

static CUresult default_pool_thread_take(struct held *held) {
    CUresult result = CALL(cuDeviceGetDefaultMemPool)(&held->pool, 0);
    return result != CUDA_SUCCESS ? result
                                  : CALL(cuMemAllocFromPoolAsync_ptsz)(&held->pointer, held->bytes, held->pool, NULL);
}

static CUresult own_pool_new(struct held *held) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return CALL(cuMemPoolCreate)(&held->pool, &props);
}

static CUresult own_pool_take(struct held *held) {
    CUresult result = own_pool_new(held);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemAllocFromPoolAsync)(&held->pointer, held->bytes, held->pool, NULL);
        if (result != CUDA_SUCCESS) {
            CALL(cuMemPoolDestroy)(held->pool);
        }
    }
    return result;
}

static CUresult own_pool_give(struct held *held) {
    CUresult result = async_give(held);
    return result != CUDA_SUCCESS ? result : CALL(cuMemPoolDestroy)(held->pool);
}

/* A pool that keeps what is freed: the share is given back by the trim. */
static CUresult keeping_pool_take(struct held *held) {
    uint64_t keep = UINT64_MAX;
    CUresult result = own_pool_new(held);
    if (result == CUDA_SUCCESS) {
        CALL(cuMemPoolSetAttribute)(held->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
        result = CALL(cuMemAllocFromPoolAsync)(&held->pointer, held->bytes, held->pool, NULL);
        if (result != CUDA_SUCCESS) {
            CALL(cuMemPoolDestroy)(held->pool);
        }
    }
    return result;
}

static CUresult keeping_pool_give(struct held *held) {
    CUresult result = async_give(held);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemPoolTrimTo)(held->pool, 0);
    }
    CALL(cuMemPoolDestroy)(held->pool);
    return result;
}

/* A pool made the device's current one, then used by the plain asynchronous call. */
static CUresult current_pool_take(struct held *held) {
    CUresult result = own_pool_new(held);
    if (result == CUDA_SUCCESS) {
        CALL(cuDeviceSetMemPool)(0, held->pool);
        result = CALL(cuMemAllocAsync)(&held->pointer, held->bytes, NULL);
        if (result != CUDA_SUCCESS) {
            CALL(cuDeviceSetMemPool)(0, NULL);
            CALL(cuMemPoolDestroy)(held->pool);
        }
    }
    return result;
}

static CUresult current_pool_give(struct held *held) {
    CALL(cuDeviceSetMemPool)(0, NULL);
    return own_pool_give(held);
}

static CUmemAllocationProp device_props(int type) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type, .id = 0}};
}

static CUresult vmm_take(struct held *held) {
    CUmemAllocationProp props = device_props(CU_MEM_LOCATION_TYPE_DEVICE);
    return CALL(cuMemCreate)(&held->handle, held->bytes, &props, 0);
}

static CUresult vmm_give(struct held *held) {
    return CALL(cuMemRelease)(held->handle);
}

static CUresult vmm_host_take(struct held *held) {
    CUmemAllocationProp props = device_props(CU_MEM_LOCATION_TYPE_HOST_NUMA);
    return CALL(cuMemCreate)(&held->handle, held->bytes, &props, 0);
}

/* Mapped and its handle let go, as frameworks do: the mapping alone keeps the memory. */
static CUresult vmm_mapped_take(struct held *held) {
    CUresult result = vmm_take(held);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CALL(cuMemAddressReserve)(&held->pointer, held->bytes, 0, 0, 0);
    result = CALL(cuMemMap)(held->pointer, held->bytes, 0, held->handle, 0);
    CUresult released = CALL(cuMemRelease)(held->handle);
    return result != CUDA_SUCCESS ? result : released;
}

static CUresult vmm_mapped_give(struct held *held) {
    CUresult result = CALL(cuMemUnmap)(held->pointer, held->bytes);
    CALL(cuMemAddressFree)(held->pointer, held->bytes);
    return result;
}

/* The handle fetched back from the mapping outlives the mapping. */
static CUresult vmm_retained_take(struct held *held) {
    CUresult result = vmm_mapped_take(held);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemRetainAllocationHandle)(&held->second, (void *)(uintptr_t)held->pointer);
    }
    return result != CUDA_SUCCESS ? result : vmm_mapped_give(held);
}

static CUresult vmm_retained_give(struct held *held) {
    return CALL(cuMemRelease)(held->second);
}

/* Exported and imported in the same process: one memory, two handles, charged once. */
static CUresult vmm_shared_take(struct held *held) {
    CUresult result = vmm_take(held);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemExportToShareableHandle)(&held->fd, held->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS) {
        result = CALL(cuMemImportFromShareableHandle)(&held->second, (void *)(intptr_t)held->fd,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(held->fd);
    }
    return result;
}

static CUresult vmm_shared_give(struct held *held) {
    CUresult result = CALL(cuMemRelease)(held->handle);
    return result != CUDA_SUCCESS ? result : CALL(cuMemRelease)(held->second);
}

static CUresult multicast_take(struct held *held) {
    CUmulticastObjectProp props = {.numDevices = 1, .size = held->bytes};
    return CALL(cuMulticastCreate)(&held->handle, &props);
}

static CUresult reserve_take(struct held *held) {
    return CALL(cuMemAddressReserve)(&held->pointer, held->bytes, 0, 0, 0);
}

static CUresult reserve_give(struct held *held) {
    return CALL(cuMemAddressFree)(held->pointer, held->bytes);
}

static CUresult array_take(struct held *held) {
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 1024, .Height = held->bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CALL(cuArrayCreate_v2)(&held->array, &shape);
}

static CUresult old_array_take(struct held *held) {
    CUDA_ARRAY_DESCRIPTOR_v1 shape = {
        .Width = 1024, .Height = (unsigned int)(held->bytes / 4096), .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CALL(cuArrayCreate)(&held->array, &shape);
}

static CUresult array3d_take(struct held *held) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 256,
                                     .Height = 256,
                                     .Depth = held->bytes / (256 * 1024),
                                     .Format = CU_AD_FORMAT_HALF,
                                     .NumChannels = 2};
    return CALL(cuArray3DCreate_v2)(&held->array, &shape);
}

static CUresult old_array3d_take(struct held *held) {
    CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {.Width = 256,
                                        .Height = 256,
                                        .Depth = (unsigned int)(held->bytes / (256 * 1024)),
                                        .Format = CU_AD_FORMAT_HALF,
                                        .NumChannels = 2};
    return CALL(cuArray3DCreate)(&held->array, &shape);
}

static CUresult layered_take(struct held *held) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 256,
                                     .Height = 256,
                                     .Depth = held->bytes / (256 * 1024),
                                     .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                     .NumChannels = 4,
                                     .Flags = CUDA_ARRAY3D_LAYERED};
    return CALL(cuArray3DCreate_v2)(&held->array, &shape);
}

static CUresult sparse_take(struct held *held) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 256,
                                     .Height = 256,
                                     .Depth = held->bytes / (256 * 1024),
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1,
                                     .Flags = CUDA_ARRAY3D_SPARSE};
    return CALL(cuArray3DCreate_v2)(&held->array, &shape);
}

static CUresult array_give(struct held *held) {
    return CALL(cuArrayDestroy)(held->array);
}

static CUresult mipmap_take(struct held *held) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 1024, .Height = held->bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CALL(cuMipmappedArrayCreate)(&held->mipmap, &shape, 4);
}

static CUresult mipmap_give(struct held *held) {
    return CALL(cuMipmappedArrayDestroy)(held->mipmap);
}

static CUresult external_take(struct held *held) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC what = {.type = 1, .handle = {.fd = -1}, .size = held->bytes};
    return CALL(cuImportExternalMemory)(&held->external, &what);
}

static CUresult external_give(struct held *held) {
    return CALL(cuDestroyExternalMemory)(held->external);
}

/* A buffer mapped from external memory is not charged a second time, and its free is forwarded. */
static CUresult external_buffer_take(struct held *held) {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC what = {.size = held->bytes};
    CUresult result = external_take(held);
    return result != CUDA_SUCCESS ? result
                                  : CALL(cuExternalMemoryGetMappedBuffer)(&held->pointer, held->external, &what);
}

static CUresult external_buffer_give(struct held *held) {
    CUresult result = plain_give(held);
    return result != CUDA_SUCCESS ? result : external_give(held);
}

/* Memory of another process: its owner pays. The handle is made from a small block of our own. */
static CUresult ipc_take(struct held *held) {
    CUipcMemHandle handle;
    CUresult result = CALL(cuMemAlloc_v2)(&held->pointer, held->bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CALL(cuIpcGetMemHandle)(&handle, held->pointer);
    CUdeviceptr opened;
    result = CALL(cuIpcOpenMemHandle_v2)(&opened, handle, 1);
    return result != CUDA_SUCCESS ? result : CALL(cuIpcCloseMemHandle)(opened);
}

static CUresult graph_new(struct held *held) {
    return CALL(cuGraphCreate)(&held->graph, 0);
}

static CUDA_MEM_ALLOC_NODE_PARAMS node_params(const struct held *held) {
    return (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                        .bytesize = held->bytes};
}

static CUresult graph_give(struct held *held) {
    CUresult result = held->exec != NULL ? CALL(cuGraphExecDestroy)(held->exec) : CUDA_SUCCESS;
    CUresult destroyed = CALL(cuGraphDestroy)(held->graph);
    CUresult trimmed = CALL(cuDeviceGraphMemTrim)(0);
    return result != CUDA_SUCCESS ? result : destroyed != CUDA_SUCCESS ? destroyed : trimmed;
}

typedef CUresult (*instantiate_t)(struct held *);

static CUresult by_flags(struct held *held) {
    return CALL(cuGraphInstantiateWithFlags)(&held->exec, held->graph, 0);
}

static CUresult by_log(struct held *held) {
    return CALL(cuGraphInstantiate)(&held->exec, held->graph, NULL, NULL, 0);
}

static CUresult by_log2(struct held *held) {
    return CALL(cuGraphInstantiate_v2)(&held->exec, held->graph, NULL, NULL, 0);
}

static CUresult by_params(struct held *held) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    return CALL(cuGraphInstantiateWithParams)(&held->exec, held->graph, &params);
}

static CUresult by_thread_params(struct held *held) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    return CALL(cuGraphInstantiateWithParams_ptsz)(&held->exec, held->graph, &params);
}

/* Refusal may come at any step from the node to the first launch. */
static CUresult graph_run_by(struct held *held, CUresult added, instantiate_t instantiate) {
    CUresult result = added;
    if (result == CUDA_SUCCESS) {
        result = instantiate(held);
    }
    if (result == CUDA_SUCCESS) {
        result = CALL(cuGraphLaunch)(held->exec, NULL);
    }
    if (result != CUDA_SUCCESS) {
        graph_give(held);
    }
    return result;
}

static CUresult graph_run(struct held *held, CUresult added) {
    return graph_run_by(held, added, by_flags);
}

static CUresult graph_take_by(struct held *held, instantiate_t instantiate) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = node_params(held);
    graph_new(held);
    return graph_run_by(held, CALL(cuGraphAddMemAllocNode)(&node, held->graph, NULL, 0, &params), instantiate);
}

static CUresult graph_by_log_take(struct held *held) {
    return graph_take_by(held, by_log);
}

static CUresult graph_by_log2_take(struct held *held) {
    return graph_take_by(held, by_log2);
}

static CUresult graph_by_params_take(struct held *held) {
    return graph_take_by(held, by_params);
}

static CUresult graph_by_thread_params_take(struct held *held) {
    return graph_take_by(held, by_thread_params);
}

/* Allocated and freed inside the graph: the executable graph needs the room while it lives. */
static CUresult graph_freed_take(struct held *held) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = node_params(held);
    graph_new(held);
    CUresult added = CALL(cuGraphAddMemAllocNode)(&node, held->graph, NULL, 0, &params);
    if (added == CUDA_SUCCESS) {
        added = CALL(cuGraphAddMemFreeNode)(&node, held->graph, &node, 1, params.dptr);
    }
    return graph_run(held, added);
}

static CUresult graph_take(struct held *held) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = node_params(held);
    graph_new(held);
    return graph_run(held, CALL(cuGraphAddMemAllocNode)(&node, held->graph, NULL, 0, &params));
}

static CUresult graph_node_take(struct held *held) {
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    params.alloc = node_params(held);
    graph_new(held);
    return graph_run(held, CALL(cuGraphAddNode)(&node, held->graph, NULL, 0, &params));
}

static CUresult graph_node2_take(struct held *held) {
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    params.alloc = node_params(held);
    graph_new(held);
    return graph_run(held, CALL(cuGraphAddNode_v2)(&node, held->graph, NULL, NULL, 0, &params));
}

static CUresult graph_node3_take(struct held *held) {
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    params.alloc = node_params(held);
    graph_new(held);
    return graph_run(held, CALL(cuGraphAddNode_v3)(&node, held->graph, NULL, NULL, 0, &params));
}

static CUresult capture_thread_take(struct held *held) {
    CALL(cuStreamCreate)(&held->stream, 0);
    CALL(cuStreamBeginCapture_v2)(held->stream, 0);
    CUresult added = CALL(cuMemAllocAsync_ptsz)(&held->pointer, held->bytes, held->stream);
    CALL(cuStreamEndCapture_ptsz)(held->stream, &held->graph);
    CALL(cuStreamDestroy_v2)(held->stream);
    return graph_run(held, added);
}

static CUresult capture_take(struct held *held) {
    CALL(cuStreamCreate)(&held->stream, 0);
    CALL(cuStreamBeginCapture_v2)(held->stream, 0);
    CUresult added = CALL(cuMemAllocAsync)(&held->pointer, held->bytes, held->stream);
    CALL(cuStreamEndCapture)(held->stream, &held->graph);
    CALL(cuStreamDestroy_v2)(held->stream);
    return graph_run(held, added);
}

static CUresult module_take(struct held *held) {
    static const char image[64] = "";
    return CALL(cuModuleLoadData)(&held->module, image);
}

static CUresult module_ex_take(struct held *held) {
    static const char image[64] = "";
    return CALL(cuModuleLoadDataEx)(&held->module, image, 0, NULL, NULL);
}

static CUresult fat_module_take(struct held *held) {
    static const char image[64] = "";
    return CALL(cuModuleLoadFatBinary)(&held->module, image);
}

/* A file as large as the module: what a load takes is bounded by the image. */
static void image_file(char *path, size_t bytes) {
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        abort();
    }
    close(fd);
}

static CUresult module_file_take(struct held *held) {
    char path[] = "/tmp/shim-module-XXXXXX";
    image_file(path, held->bytes);
    CUresult result = CALL(cuModuleLoad)(&held->module, path);
    unlink(path);
    return result;
}

static CUresult library_file_take(struct held *held) {
    char path[] = "/tmp/shim-library-XXXXXX";
    image_file(path, held->bytes);
    CUresult result = CALL(cuLibraryLoadFromFile)(&held->library, path, NULL, NULL, 0, NULL, NULL, 0);
    unlink(path);
    return result;
}

static CUresult module_give(struct held *held) {
    return CALL(cuModuleUnload)(held->module);
}

static CUresult library_take(struct held *held) {
    static const char image[64] = "";
    return CALL(cuLibraryLoadData)(&held->library, image, NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult library_give(struct held *held) {
    return CALL(cuLibraryUnload)(held->library);
}

static CUresult keep_current(CUresult result) {
    CUcontext context;
    if (result == CUDA_SUCCESS) {
        CALL(cuCtxPopCurrent_v2)(&context);
    }
    return result;
}

static CUresult context1_take(struct held *held) {
    return keep_current(CALL(cuCtxCreate)(&held->context, 0, 0));
}

static CUresult context2_take(struct held *held) {
    return keep_current(CALL(cuCtxCreate_v2)(&held->context, 0, 0));
}

static CUresult context3_take(struct held *held) {
    return keep_current(CALL(cuCtxCreate_v3)(&held->context, NULL, 0, 0, 0));
}

static CUresult context4_take(struct held *held) {
    return keep_current(CALL(cuCtxCreate_v4)(&held->context, NULL, 0, 0));
}

static CUresult context_give(struct held *held) {
    return CALL(cuCtxDestroy_v2)(held->context);
}

static CUresult old_context_give(struct held *held) {
    return CALL(cuCtxDestroy)(held->context);
}

static CUresult green_take(struct held *held) {
    return CALL(cuGreenCtxCreate)(&held->green, NULL, 0, 1);
}

static CUresult green_give(struct held *held) {
    return CALL(cuGreenCtxDestroy)(held->green);
}

/* What was allocated in a context goes with the context. */
static CUresult context_with_memory_take(struct held *held) {
    CUcontext popped;
    CUresult result = CALL(cuCtxCreate_v2)(&held->context, 0, 0);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAlloc_v2)(&held->pointer, held->bytes);
    CALL(cuCtxPopCurrent_v2)(&popped);
    if (result != CUDA_SUCCESS) {
        CALL(cuCtxDestroy_v2)(held->context);
    }
    return result;
}

const struct route routes[] = {
    {"cuMemAlloc_v2", true, {"cuMemAlloc_v2"}, plain_take, plain_give},
    {"cuMemAlloc", true, {"cuMemAlloc"}, old_take, old_give},
    {"cuMemAllocManaged", true, {"cuMemAllocManaged"}, managed_take, plain_give},
    {"cuMemAllocPitch_v2", true, {"cuMemAllocPitch_v2"}, pitch_take, plain_give},
    {"cuMemAllocPitch", true, {"cuMemAllocPitch"}, old_pitch_take, old_give},
    {"cuMemAllocHost_v2", false, {"cuMemAllocHost_v2"}, pinned_take, pinned_give},
    {"cuMemAllocHost", false, {"cuMemAllocHost"}, old_pinned_take, pinned_give},
    {"cuMemHostAlloc", false, {"cuMemHostAlloc"}, host_alloc_take, pinned_give},
    {"cuMemHostRegister_v2", false, {"cuMemHostRegister_v2"}, register_take, register_give},
    {"cuMemHostRegister", false, {"cuMemHostRegister"}, old_register_take, register_give},
    {"cuMemAllocAsync", true, {"cuMemAllocAsync"}, async_take, async_give},
    {"cuMemAllocAsync freed by cuMemFree", true, {"cuMemAllocAsync"}, async_take, async_free_give},
    {"cuMemAllocAsync_ptsz", true, {"cuMemAllocAsync_ptsz"}, async_thread_take, async_thread_give},
    {"cuMemAllocAsync on a stream", true, {"cuMemAllocAsync"}, async_stream_take, async_stream_give},
    {"cuMemAllocFromPoolAsync", true, {"cuMemAllocFromPoolAsync"}, default_pool_take, async_give},
    {"cuMemAllocFromPoolAsync_ptsz",
     true,
     {"cuMemAllocFromPoolAsync_ptsz"},
     default_pool_thread_take,
     async_thread_give},
    {"own pool", true, {"cuMemPoolCreate"}, own_pool_take, own_pool_give},
    {"pool that keeps", true, {"cuMemPoolCreate"}, keeping_pool_take, keeping_pool_give},
    {"pool made current", true, {"cuMemPoolCreate"}, current_pool_take, current_pool_give},
    {"cuMemCreate", true, {"cuMemCreate"}, vmm_take, vmm_give},
    {"cuMemCreate on the host", false, {"cuMemCreate"}, vmm_host_take, vmm_give},
    {"cuMemMap", true, {"cuMemCreate"}, vmm_mapped_take, vmm_mapped_give},
    {"cuMemRetainAllocationHandle", true, {"cuMemRetainAllocationHandle"}, vmm_retained_take, vmm_retained_give},
    {"cuMemImportFromShareableHandle", true, {"cuMemCreate"}, vmm_shared_take, vmm_shared_give},
    {"cuMulticastCreate", false, {"cuMulticastCreate"}, multicast_take, vmm_give},
    {"cuMemAddressReserve", false, {"cuMemAddressReserve"}, reserve_take, reserve_give},
    {"cuArrayCreate_v2", true, {"cuArrayCreate_v2"}, array_take, array_give},
    {"cuArrayCreate", true, {"cuArrayCreate"}, old_array_take, array_give},
    {"cuArray3DCreate_v2", true, {"cuArray3DCreate_v2"}, array3d_take, array_give},
    {"cuArray3DCreate", true, {"cuArray3DCreate"}, old_array3d_take, array_give},
    {"cuArray3DCreate_v2 layered", true, {"cuArray3DCreate_v2"}, layered_take, array_give},
    {"cuArray3DCreate_v2 sparse", false, {"cuArray3DCreate_v2"}, sparse_take, array_give},
    {"cuMipmappedArrayCreate", true, {"cuMipmappedArrayCreate"}, mipmap_take, mipmap_give},
    {"cuImportExternalMemory", true, {"cuImportExternalMemory"}, external_take, external_give},
    {"cuExternalMemoryGetMappedBuffer", true, {"cuImportExternalMemory"}, external_buffer_take, external_buffer_give},
    {"cuIpcOpenMemHandle_v2", true, {"cuIpcOpenMemHandle_v2"}, ipc_take, plain_give},
    {"cuGraphAddMemAllocNode", true, {"cuGraphAddMemAllocNode", "cuGraphInstantiateWithFlags"}, graph_take, graph_give},
    {"cuGraphAddNode", true, {"cuGraphAddNode", "cuGraphInstantiateWithFlags"}, graph_node_take, graph_give},
    {"cuGraphAddNode_v2", true, {"cuGraphAddNode_v2", "cuGraphInstantiateWithFlags"}, graph_node2_take, graph_give},
    {"stream capture", true, {"cuMemAllocAsync", "cuGraphInstantiateWithFlags"}, capture_take, graph_give},
    {"cuGraphAddNode_v3", true, {"cuGraphAddNode_v3"}, graph_node3_take, graph_give},
    {"cuGraphAddMemFreeNode",
     true,
     {"cuGraphAddMemAllocNode", "cuGraphInstantiateWithFlags"},
     graph_freed_take,
     graph_give},
    {"cuGraphInstantiate", true, {"cuGraphAddMemAllocNode"}, graph_by_log_take, graph_give},
    {"cuGraphInstantiate_v2", true, {"cuGraphAddMemAllocNode"}, graph_by_log2_take, graph_give},
    {"cuGraphInstantiateWithParams", true, {"cuGraphInstantiateWithParams"}, graph_by_params_take, graph_give},
    {"cuGraphInstantiateWithParams_ptsz",
     true,
     {"cuGraphInstantiateWithParams_ptsz"},
     graph_by_thread_params_take,
     graph_give},
    {"stream capture per thread",
     true,
     {"cuMemAllocAsync_ptsz", "cuGraphInstantiateWithFlags"},
     capture_thread_take,
     graph_give},
    {"cuModuleLoad", true, {"cuModuleLoad"}, module_file_take, module_give},
    {"cuLibraryLoadFromFile", true, {"cuLibraryLoadFromFile"}, library_file_take, library_give},
    {"cuCtxCreate and cuCtxDestroy", true, {"cuCtxCreate"}, context1_take, old_context_give},
    {"cuModuleLoadData", true, {"cuModuleLoadData"}, module_take, module_give},
    {"cuModuleLoadDataEx", true, {"cuModuleLoadDataEx"}, module_ex_take, module_give},
    {"cuModuleLoadFatBinary", true, {"cuModuleLoadFatBinary"}, fat_module_take, module_give},
    {"cuLibraryLoadData", true, {"cuLibraryLoadData"}, library_take, library_give},
    {"cuCtxCreate", true, {"cuCtxCreate"}, context1_take, context_give},
    {"cuCtxCreate_v2", true, {"cuCtxCreate_v2"}, context2_take, context_give},
    {"cuCtxCreate_v3", true, {"cuCtxCreate_v3"}, context3_take, context_give},
    {"cuCtxCreate_v4", true, {"cuCtxCreate_v4"}, context4_take, context_give},
    {"cuGreenCtxCreate", true, {"cuGreenCtxCreate"}, green_take, green_give},
    {"context with memory", true, {"cuCtxCreate_v2"}, context_with_memory_take, context_give},
};
const size_t route_count = sizeof routes / sizeof routes[0];
