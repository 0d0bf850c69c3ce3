/*
 * The part of NVIDIA's public CUDA driver interface that the shim and its test doubles touch.
 *
 * Names, values and layouts are facts of the binary interface; nothing here depends on a CUDA toolkit. One prototype
 * per exported symbol: "cuMemAlloc" below is the old 32-bit symbol, never a macro for a newer one, so what we build
 * does not depend on the age of a header. Enumerations are plain ints, which is what the interface passes.
 */
#ifndef HAMI_SHIM_CUDA_MIN_H
#define HAMI_SHIM_CUDA_MIN_H

#include <stddef.h>
#include <stdint.h>

#define CUDAAPI __attribute__((visibility("default")))

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_UNKNOWN = 999
};

typedef int CUdevice;
typedef unsigned int CUdeviceptr_v1; /* what the symbols without a version suffix take */
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef struct CUlaunchAttribute_st CUlaunchAttribute;

#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
    char bytes[16];
} CUuuid;

typedef struct {
    char reserved[64];
} CUipcMemHandle;

/* Device attributes asked for by the shim or commonly by clients. */
typedef int CUdevice_attribute;
enum {
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
};

/* Arrays. */
typedef int CUarray_format;
enum {
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
    CU_AD_FORMAT_SIGNED_INT8 = 0x08,
    CU_AD_FORMAT_SIGNED_INT16 = 0x09,
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20
};
enum {
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80
};
typedef struct {
    unsigned int Width;
    unsigned int Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
    size_t Width;
    size_t Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
    unsigned int Width;
    unsigned int Height;
    unsigned int Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;
typedef struct {
    size_t Width;
    size_t Height;
    size_t Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
    size_t size;
    size_t alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

/* Virtual memory management and pools. */
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2 };
enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4
};
enum { CU_MEM_HANDLE_TYPE_NONE = 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
typedef struct {
    int type;
    int id;
} CUmemLocation;
typedef struct {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
typedef struct {
    int allocType;
    int handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;
typedef struct {
    unsigned char reserved[64];
} CUmemPoolPtrExportData;
typedef int CUmemPool_attribute;
enum {
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8
};
typedef struct {
    unsigned int numDevices;
    size_t size;
    unsigned long long handleTypes;
    unsigned long long flags;
} CUmulticastObjectProp;

/* External memory. */
typedef struct {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciBufObject;
    } handle;
    unsigned long long size;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
typedef struct {
    unsigned long long offset;
    unsigned long long size;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

/* Graphs. */
enum { CU_GRAPH_NODE_TYPE_KERNEL = 0, CU_GRAPH_NODE_TYPE_GRAPH = 4, CU_GRAPH_NODE_TYPE_EMPTY = 5 };
enum { CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10, CU_GRAPH_NODE_TYPE_MEM_FREE = 11 };
typedef int CUgraphNodeType;
typedef struct {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr; /* out */
} CUDA_MEM_ALLOC_NODE_PARAMS;
typedef struct {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        struct {
            CUdeviceptr dptr;
        } free;
        struct {
            CUgraph graph;
        } graph;
    };
    long long reserved2;
} CUgraphNodeParams;
typedef struct {
    unsigned long long flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
enum {
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3
};
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };

typedef struct {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

/* cuGetProcAddress. */
enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2
};
typedef int CUdriverProcAddressQueryResult;
enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
};

/* ---- symbols ---------------------------------------------------------------------------------------------------- */

CUDAAPI CUresult cuInit(unsigned int flags);
CUDAAPI CUresult cuDriverGetVersion(int *version);
CUDAAPI CUresult cuGetErrorString(CUresult error, const char **text);
CUDAAPI CUresult cuGetErrorName(CUresult error, const char **text);
CUDAAPI CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags);
CUDAAPI CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                                     CUdriverProcAddressQueryResult *status);
CUDAAPI CUresult cuGetExportTable(const void **table, const CUuuid *id);

CUDAAPI CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUDAAPI CUresult cuDeviceGetCount(int *count);
CUDAAPI CUresult cuDeviceGetName(char *name, int len, CUdevice dev);
CUDAAPI CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev);
CUDAAPI CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev);
CUDAAPI CUresult cuDeviceGetPCIBusId(char *bus_id, int len, CUdevice dev);
CUDAAPI CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev);
CUDAAPI CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev);
CUDAAPI CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev);
CUDAAPI CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev);
CUDAAPI CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev);
CUDAAPI CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool);
CUDAAPI CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value);
CUDAAPI CUresult cuDeviceGraphMemTrim(CUdevice dev);

CUDAAPI CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUDAAPI CUresult cuDevicePrimaryCtxRelease(CUdevice dev);
CUDAAPI CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev);
CUDAAPI CUresult cuDevicePrimaryCtxReset(CUdevice dev);
CUDAAPI CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev);
CUDAAPI CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active);
CUDAAPI CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUDAAPI CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUDAAPI CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *params, int num_params, unsigned int flags,
                                CUdevice dev);
CUDAAPI CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev);
CUDAAPI CUresult cuCtxDestroy(CUcontext ctx);
CUDAAPI CUresult cuCtxDestroy_v2(CUcontext ctx);
CUDAAPI CUresult cuCtxDetach(CUcontext ctx);
CUDAAPI CUresult cuCtxGetCurrent(CUcontext *ctx);
CUDAAPI CUresult cuCtxSetCurrent(CUcontext ctx);
CUDAAPI CUresult cuCtxPushCurrent(CUcontext ctx);
CUDAAPI CUresult cuCtxPushCurrent_v2(CUcontext ctx);
CUDAAPI CUresult cuCtxPopCurrent(CUcontext *ctx);
CUDAAPI CUresult cuCtxPopCurrent_v2(CUcontext *ctx);
CUDAAPI CUresult cuCtxGetDevice(CUdevice *device);
CUDAAPI CUresult cuCtxSynchronize(void);
CUDAAPI CUresult cuCtxSynchronize_v2(CUcontext ctx);
CUDAAPI CUresult cuCtxSetLimit(int limit, size_t value);
CUDAAPI CUresult cuGreenCtxCreate(CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags);
CUDAAPI CUresult cuGreenCtxDestroy(CUgreenCtx ctx);

CUDAAPI CUresult cuMemGetInfo(unsigned int *free, unsigned int *total);
CUDAAPI CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUDAAPI CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize);
CUDAAPI CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
CUDAAPI CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width_bytes,
                                 unsigned int height, unsigned int element_bytes);
CUDAAPI CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width_bytes, size_t height,
                                    unsigned int element_bytes);
CUDAAPI CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags);
CUDAAPI CUresult cuMemFree(CUdeviceptr_v1 dptr);
CUDAAPI CUresult cuMemFree_v2(CUdeviceptr dptr);
CUDAAPI CUresult cuMemAllocHost(void **pp, unsigned int bytesize);
CUDAAPI CUresult cuMemAllocHost_v2(void **pp, size_t bytesize);
CUDAAPI CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags);
CUDAAPI CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int flags);
CUDAAPI CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int flags);
CUDAAPI CUresult cuMemHostUnregister(void *p);
CUDAAPI CUresult cuMemFreeHost(void *p);
CUDAAPI CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr);
CUDAAPI CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr);
CUDAAPI CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr);
CUDAAPI CUresult cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags);
CUDAAPI CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags);
CUDAAPI CUresult cuIpcCloseMemHandle(CUdeviceptr dptr);

CUDAAPI CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream);
CUDAAPI CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream);
CUDAAPI CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream);
CUDAAPI CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream);
CUDAAPI CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream);
CUDAAPI CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream);
CUDAAPI CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUDAAPI CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUDAAPI CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep);
CUDAAPI CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUDAAPI CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUDAAPI CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, int type, unsigned long long flags);
CUDAAPI CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type,
                                                    unsigned long long flags);
CUDAAPI CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr);
CUDAAPI CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data);
CUDAAPI CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);
CUDAAPI CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool);
CUDAAPI CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);

CUDAAPI CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags);
CUDAAPI CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size);
CUDAAPI CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                             unsigned long long flags);
CUDAAPI CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUDAAPI CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags);
CUDAAPI CUresult cuMemUnmap(CUdeviceptr ptr, size_t size);
CUDAAPI CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
CUDAAPI CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr);
CUDAAPI CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                              unsigned long long flags);
CUDAAPI CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type);
CUDAAPI CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option);
CUDAAPI CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
CUDAAPI CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop);

CUDAAPI CUresult cuArrayCreate(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc);
CUDAAPI CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *desc);
CUDAAPI CUresult cuArray3DCreate(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc);
CUDAAPI CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc);
CUDAAPI CUresult cuArrayDestroy(CUarray array);
CUDAAPI CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                        unsigned int levels);
CUDAAPI CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
CUDAAPI CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev);
CUDAAPI CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                                       CUdevice dev);

CUDAAPI CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc);
CUDAAPI CUresult cuDestroyExternalMemory(CUexternalMemory memory);
CUDAAPI CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *dptr, CUexternalMemory memory,
                                                 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc);

CUDAAPI CUresult cuModuleLoad(CUmodule *module, const char *file);
CUDAAPI CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUDAAPI CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options, int *options,
                                    void **values);
CUDAAPI CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUDAAPI CUresult cuModuleUnload(CUmodule module);
CUDAAPI CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUDAAPI CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                                   unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib);
CUDAAPI CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *jit_options, void **jit_values,
                                       unsigned int num_jit, int *lib_options, void **lib_values, unsigned int num_lib);
CUDAAPI CUresult cuLibraryUnload(CUlibrary library);

CUDAAPI CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUDAAPI CUresult cuGraphDestroy(CUgraph graph);
CUDAAPI CUresult cuGraphDestroyNode(CUgraphNode node);
CUDAAPI CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUDAAPI CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                                       CUdeviceptr dptr);
CUDAAPI CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t num_deps,
                                CUgraphNodeParams *params);
CUDAAPI CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   const CUgraphEdgeData *edges, size_t num_deps, CUgraphNodeParams *params);
CUDAAPI CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   const CUgraphEdgeData *edges, size_t num_deps, CUgraphNodeParams *params);
CUDAAPI CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *num_nodes);
CUDAAPI CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
CUDAAPI CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUDAAPI CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t len);
CUDAAPI CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                       size_t len);
CUDAAPI CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUDAAPI CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUDAAPI CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUDAAPI CUresult cuGraphExecDestroy(CUgraphExec exec);
CUDAAPI CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUDAAPI CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);

CUDAAPI CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUDAAPI CUresult cuStreamDestroy(CUstream stream);
CUDAAPI CUresult cuStreamDestroy_v2(CUstream stream);
CUDAAPI CUresult cuStreamSynchronize(CUstream stream);
CUDAAPI CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUDAAPI CUresult cuStreamQuery(CUstream stream);
CUDAAPI CUresult cuEventSynchronize(CUevent event);
CUDAAPI CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx);
CUDAAPI CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ctx);
CUDAAPI CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUDAAPI CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
CUDAAPI CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                           const CUgraphNode **deps, size_t *num_deps);
CUDAAPI CUresult cuStreamBeginCapture(CUstream stream);
CUDAAPI CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUDAAPI CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUDAAPI CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);

CUDAAPI CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes);
CUDAAPI CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes);
CUDAAPI CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
CUDAAPI CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count);
CUDAAPI CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                unsigned int shared_bytes, CUstream stream, void **params, void **extra);
CUDAAPI CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                     unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                     unsigned int shared_bytes, CUstream stream, void **params, void **extra);
CUDAAPI CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra);
CUDAAPI CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra);
CUDAAPI CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                           unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                           unsigned int shared_bytes, CUstream stream, void **params);

#endif
