/* Replays: the sequences of driver calls that frameworks make, as far as they hold memory. The share is 100 MiB. */
#include "scenario.h"

#include <stdint.h>
#include <unistd.h>

#define SEGMENT (20 * MIB)
#define SHARE   (100 * MIB)

static CUmemAllocationProp device_memory(int handle_type) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = handle_type,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

static CUresult map_segment(CUdeviceptr at, CUmemGenericAllocationHandle *handle) {
    CUmemAllocationProp props = device_memory(0);
    CUmemAccessDesc access = {.location = props.location, .flags = 3};
    CUresult result = cuMemCreate(handle, SEGMENT, &props, 0);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CHECK(cuMemMap(at, SEGMENT, 0, *handle, 0));
    return cuMemSetAccess(at, SEGMENT, &access, 1);
}

/* PyTorch with expandable segments: more address space than the card has, then segment after segment until refused;
 * what is unmapped and released can be had again. */
static void expandable_segments(void) {
    CUdeviceptr space;
    CUmemGenericAllocationHandle handles[8];
    size_t mapped = 0;
    begin();
    CHECK(cuMemAddressReserve(&space, 18ULL * 1024 * MIB, 0, 0, 0));
    EXPECT(used() == 0);
    while (mapped < 8 && map_segment(space + mapped * SEGMENT, &handles[mapped]) == CUDA_SUCCESS) {
        mapped++;
    }
    EXPECT(mapped == 5 && used() == SHARE);
    CHECK(cuMemUnmap(space + 2 * SEGMENT, SEGMENT));
    EXPECT(used() == SHARE);
    CHECK(cuMemRelease(handles[2]));
    EXPECT(used() == SHARE - SEGMENT);
    CHECK(map_segment(space + 2 * SEGMENT, &handles[2]));
    CHECK(cuMemUnmap(space, 5 * SEGMENT));
    for (size_t i = 0; i < mapped; i++) {
        CHECK(cuMemRelease(handles[i]));
    }
    CHECK(cuMemAddressFree(space, 18ULL * 1024 * MIB));
    EXPECT(used() == 0);
}

/* NCCL: exportable memory, its descriptor opened again, both mapped, a multicast object, host memory for the proxy. */
static void nccl_buffers(void) {
    CUmemAllocationProp props = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmulticastObjectProp group = {.numDevices = 1, .size = SEGMENT};
    CUmemGenericAllocationHandle handle;
    CUmemGenericAllocationHandle again;
    CUmemGenericAllocationHandle multicast;
    CUmemGenericAllocationHandle host;
    CUdeviceptr places[2];
    size_t granule = 0;
    int fd = -1;
    begin();
    CHECK(cuMemGetAllocationGranularity(&granule, &props, 1));
    CHECK(cuMemCreate(&handle, SEGMENT, &props, 0));
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemAddressReserve(&places[i], SEGMENT, granule, 0, 0));
        CHECK(cuMemMap(places[i], SEGMENT, 0, i == 0 ? handle : again, 0));
    }
    CHECK(cuMulticastCreate(&multicast, &group));
    props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0};
    CHECK(cuMemCreate(&host, 4 * SEGMENT, &props, 0));
    EXPECT(used() == SEGMENT);
    CHECK(cuMemRelease(handle));
    CHECK(cuMemRelease(again));
    CHECK(cuMemRelease(host));
    CHECK(cuMemRelease(multicast));
    EXPECT(used() == SEGMENT);
    CHECK(cuMemUnmap(places[0], SEGMENT));
    EXPECT(used() == SEGMENT);
    CHECK(cuMemUnmap(places[1], SEGMENT));
    EXPECT(used() == 0);
}

/* CUDA graphs: allocations inside a capture, several launches, a second graph that would not fit beside the first. */
static CUresult captured(CUstream stream, size_t bytes, CUgraph *graph, CUgraphExec *exec) {
    CUdeviceptr pointer;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CUresult result = cuMemAllocAsync(&pointer, bytes, stream);
    if (result == CUDA_SUCCESS) {
        cuMemFreeAsync(pointer, stream);
    }
    CHECK(cuStreamEndCapture(stream, graph));
    if (result == CUDA_SUCCESS) {
        result = cuGraphInstantiateWithFlags(exec, *graph, 0);
    }
    return result != CUDA_SUCCESS ? result : cuGraphLaunch(*exec, stream);
}

static void graph_capture(void) {
    CUstream stream;
    CUgraph graph;
    CUgraph other;
    CUgraphExec exec = NULL;
    CUgraphExec unused = NULL;
    begin();
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(captured(stream, 60 * MIB, &graph, &exec));
    for (int i = 0; i < 3; i++) {
        CHECK(cuGraphLaunch(exec, stream));
    }
    EXPECT(used() == 60 * MIB);
    EXPECT_CODE(captured(stream, 60 * MIB, &other, &unused), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(fakeCardUsedByMe(0) == 60 * MIB);
    if (unused != NULL) {
        CHECK(cuGraphExecDestroy(unused));
    }
    CHECK(cuGraphDestroy(other));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuDeviceGraphMemTrim(0));
    EXPECT(fakeCardUsedByMe(0) == 0);
    EXPECT(used() == 0);
}

/* The driver keeps what a graph had until it is trimmed: gone graphs must not let a program hold more than its share.
 */
static void graph_without_trim(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec = NULL;
    CUdeviceptr plain;
    begin();
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(captured(stream, 60 * MIB, &graph, &exec));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemAlloc_v2(&plain, 90 * MIB));
    EXPECT(fakeCardUsedByMe(0) <= SHARE);
    CHECK(cuMemFree_v2(plain));
    CHECK(cuDeviceGraphMemTrim(0));
    EXPECT(used() == 0);
}

/* Many temporaries in one capture: each is freed before the next, so the graph needs room for one. */
static void captured_temporaries(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    begin();
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < 10; i++) {
        CUdeviceptr pointer;
        CHECK(cuMemAllocAsync(&pointer, 60 * MIB, stream));
        CHECK(cuMemFreeAsync(pointer, stream));
    }
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT(fakeCardUsedByMe(0) == 60 * MIB);
    EXPECT(used() == 60 * MIB);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuDeviceGraphMemTrim(0));
    EXPECT(used() == 0);
}

/* Weights kept in pinned host memory and copied in and out of a small device buffer. */
static void pinned_offload(void) {
    void *host;
    CUdeviceptr device;
    begin();
    CHECK(cuMemHostAlloc(&host, 400 * MIB, 0));
    CHECK(cuMemAlloc_v2(&device, 90 * MIB));
    for (size_t at = 0; at < 360 * MIB; at += 90 * MIB) {
        CHECK(cuMemcpyHtoDAsync_v2(device, (char *)host + at, 90 * MIB, NULL));
        CHECK(cuStreamSynchronize(NULL));
    }
    EXPECT(used() == 90 * MIB);
    CHECK(cuMemFree_v2(device));
    CHECK(cuMemFreeHost(host));
    EXPECT(used() == 0);
}

/* PyTorch's plain caching allocator at its limit: refused, empties its cache, asks again and gets it. */
static void caching_allocator(void) {
    CUdeviceptr cached[4];
    CUdeviceptr large;
    begin();
    for (int i = 0; i < 4; i++) {
        CHECK(cuMemAlloc_v2(&cached[i], 20 * MIB));
    }
    EXPECT_CODE(cuMemAlloc_v2(&large, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 4; i++) {
        CHECK(cuMemFree_v2(cached[i]));
    }
    CHECK(cuMemAlloc_v2(&large, 40 * MIB));
    EXPECT(used() == 40 * MIB);
    CHECK(cuMemFree_v2(large));
}

static const struct scenario scenarios[] = {
    {"expandable_segments", expandable_segments},
    {"nccl_buffers", nccl_buffers},
    {"graph_capture", graph_capture},
    {"captured_temporaries", captured_temporaries},
    {"graph_without_trim", graph_without_trim},
    {"pinned_offload", pinned_offload},
    {"caching_allocator", caching_allocator},
};

int main(int argc, char **argv) {
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argc, argv);
}
