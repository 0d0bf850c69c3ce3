/* What each visible card looks like, and what happens to a request of the size of the first argument (MiB) on each. */
#include "fake_cuda.h"
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) * MIB;
    int count = 0;
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS) {
        printf("{\"init\": %d}\n", result);
        return 0;
    }
    CHECK(cuDeviceGetCount(&count));
    for (int device = 0; device < count; device++) {
        CUuuid uuid;
        CUcontext context;
        size_t whole = 0;
        size_t free_bytes = 0;
        size_t total = 0;
        CUdeviceptr pointer = 0;
        CHECK(cuDeviceGetUuid_v2(&uuid, device));
        CHECK(cuDeviceTotalMem_v2(&whole, device));
        CHECK(cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cuCtxSetCurrent(context));
        result = cuMemAlloc_v2(&pointer, bytes);
        CHECK(cuMemGetInfo_v2(&free_bytes, &total));
        printf("{\"device\": %d, \"uuid\": \"", device);
        for (int i = 0; i < 16; i++) {
            printf("%02x", (unsigned char)uuid.bytes[i]);
        }
        printf("\", \"whole\": %zu, \"total\": %zu, \"free\": %zu, \"alloc\": %d, \"card_used\": %llu}\n", whole, total,
               free_bytes, result, (unsigned long long)fakeCardUsed(device));
        if (argc > 2 && result == CUDA_SUCCESS) {
            CHECK(cuMemFree_v2(pointer));
        }
    }
    return 0;
}
