/* Cases inside one process: odd pointers, failures of the driver, threads, contexts. */
#include "scenario.h"

#include <elf.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 8

/* Nobody recorded these addresses: the driver answers, the counter never falls below zero. */
static void unknown_free(void) {
    begin();
    CUdeviceptr pointer;
    size_t before = used();
    EXPECT_CODE(cuMemFree_v2(0x1234000), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CODE(cuMemFreeAsync(0x1234000, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CODE(cuMemFree_v2(0), CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&pointer, 4 * MIB));
    CHECK(cuMemFree_v2(pointer));
    EXPECT_CODE(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    EXPECT(used() == before);
}

static void null_outputs(void) {
    begin();
    size_t value = 0;
    CHECK(cuMemGetInfo_v2(NULL, &value));
    EXPECT(value == 1024 * MIB);
    value = 0;
    CHECK(cuMemGetInfo_v2(&value, NULL));
    EXPECT(value > 0 && value <= 1024 * MIB);
    EXPECT_CODE(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr pointer;
    EXPECT_CODE(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    size_t pitch;
    EXPECT_CODE(cuMemAllocPitch_v2(&pointer, &pitch, 1024, 1024, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(used() == 0);
}

static void no_context(void) {
    CUdeviceptr pointer;
    size_t pitch;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    EXPECT_CODE(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuInit(0));
    EXPECT_CODE(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_CODE(cuMemAllocManaged(&pointer, MIB, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_CODE(cuMemAllocPitch_v2(&pointer, &pitch, 1024, 1024, 4), CUDA_ERROR_INVALID_CONTEXT);
    props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 77};
    CHECK(cuMemCreate(&handle, 4 * MIB, &props, 0));
    CHECK(cuMemRelease(handle));
    props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CHECK(cuMemCreate(&handle, 4 * MIB, &props, 0));
    begin();
    EXPECT(used() == 4 * MIB);
    CHECK(cuMemRelease(handle));
    EXPECT(used() == 0);
    props.location.id = 99;
    EXPECT_CODE(cuMemCreate(&handle, 4 * MIB, &props, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(used() == 0);
}

static void *hammer(void *argument) {
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    for (int i = 0; i < 5000; i++) {
        CUdeviceptr pointer;
        CHECK(cuMemAlloc_v2(&pointer, 2 * MIB));
        CHECK(cuMemFree_v2(pointer));
    }
    return argument;
}

/* Eight threads are handed the same addresses over and over, a moment after another thread freed them. */
static void address_reuse(void) {
    begin();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, hammer, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    EXPECT(used() == 0);
    EXPECT(fakeCardUsedByMe(0) == 0);
}

static pthread_barrier_t together;

static void *first_use(void *argument) {
    CUcontext context;
    CUdeviceptr pointer;
    pthread_barrier_wait(&together);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&pointer, 2 * MIB));
    return argument;
}

/* Eight threads make the process's first calls at the same moment. */
static void threads_start_together(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, first_use, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    begin();
    EXPECT(used() == THREADS * 2 * MIB);
}

static void many_blocks(void) {
    enum { COUNT = 20000 };
    static CUdeviceptr pointers[COUNT];
    begin();
    for (int i = 0; i < COUNT; i++) {
        CHECK(cuMemAlloc_v2(&pointers[i], 4096));
    }
    EXPECT(used() == fakeCardUsedByMe(0));
    for (int i = 0; i < COUNT; i += 2) {
        CHECK(cuMemFree_v2(pointers[i]));
    }
    for (int i = 1; i < COUNT; i += 2) {
        CHECK(cuMemFree_v2(pointers[i]));
    }
    EXPECT(used() == 0);
}

static void async_churn(void) {
    begin();
    for (int i = 0; i < 100000; i++) {
        CUdeviceptr pointer;
        CHECK(cuMemAllocAsync(&pointer, 1 + (size_t)i % 8192, NULL));
        CHECK(cuMemFreeAsync(pointer, NULL));
    }
    CHECK(cuStreamSynchronize(NULL));
    EXPECT(used() == fakeCardUsedByMe(0));
    EXPECT(used() == 0);
}

/* Run with FAKE_GPU_FAIL=cuMemAlloc_v2:2:999,cuMemFree_v2:1:700,cuMemCreate:1:2 */
static void driver_fails(void) {
    begin();
    CUdeviceptr first;
    CUdeviceptr second;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CHECK(cuMemAlloc_v2(&first, 8 * MIB));
    EXPECT_CODE(cuMemAlloc_v2(&second, 8 * MIB), CUDA_ERROR_UNKNOWN);
    EXPECT(used() == 8 * MIB);
    EXPECT_CODE(cuMemCreate(&handle, 8 * MIB, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(used() == 8 * MIB);
    EXPECT_CODE(cuMemFree_v2(first), 700);
    EXPECT(used() == 8 * MIB);
    CHECK(cuMemFree_v2(first));
    EXPECT(used() == 0);
}

/* Run with context_kib=65536: references of one context are one context. */
static void primary_references(void) {
    CUcontext context;
    begin();
    size_t one = used();
    EXPECT(one == 64 * MIB);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(used() == one);
    CHECK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(used() == one);
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    CUcontext other;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    EXPECT(used() == one);
}

/* The same by the first names, and the queries whose numbers have 32 bits. */
static void old_names(void) {
    CUcontext context;
    unsigned int free_bytes = 0;
    unsigned int total = 0;
    unsigned int whole = 0;
    begin();
    EXPECT(used() == 64 * MIB);
    CHECK(cuMemGetInfo(&free_bytes, &total));
    CHECK(cuDeviceTotalMem(&whole, 0));
    EXPECT(total == 1024 * MIB && whole == total && free_bytes == 960 * MIB);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuDevicePrimaryCtxRelease(0));
    EXPECT(used() == 64 * MIB);
    CHECK(cuDevicePrimaryCtxReset(0));
    CHECK(cuCtxCreate(&context, 0, 0));
    EXPECT(used() == 64 * MIB);
    CHECK(cuCtxDestroy(context));
}

/* Each way to wait for the card settles what pools hold. */
static void every_synchronisation(void) {
    CUdeviceptr pointer;
    CUevent event;
    CUcontext context;
    begin();
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuCtxGetCurrent(&context));
    for (int way = 0; way < 5; way++) {
        CHECK(cuMemAllocAsync(&pointer, 60 * MIB, NULL));
        CHECK(cuMemFreeAsync(pointer, NULL));
        CHECK(way == 0   ? cuStreamSynchronize(NULL)
              : way == 1 ? cuStreamSynchronize_ptsz(NULL)
              : way == 2 ? cuCtxSynchronize()
              : way == 3 ? cuEventSynchronize(event)
                         : cuCtxSynchronize_v2(context));
        EXPECT(fakeCardUsedByMe(0) == 0);
        EXPECT(used() == 0);
    }
}

static void managed_is_managed(void) {
    begin();
    CUdeviceptr pointer;
    unsigned int managed = 0;
    CHECK(cuMemAllocManaged(&pointer, 4 * MIB, 1));
    memset((void *)(uintptr_t)pointer, 7, 4 * MIB);
    CHECK(cuPointerGetAttribute(&managed, 8, pointer));
    EXPECT(managed == 1);
    CHECK(cuMemFree_v2(pointer));
}

extern char **environ;

static int count_environment(void) {
    int count = 0;
    while (environ[count] != NULL) {
        count++;
    }
    return count;
}

/* The shim leaves the process as it was: umask, signals, environment, standard descriptors. */
static void process_untouched(void) {
    struct sigaction usr1;
    struct sigaction usr2;
    struct stat before[3];
    struct stat after[3];
    umask(027);
    int variables = count_environment();
    for (int i = 0; i < 3; i++) {
        fstat(i, &before[i]);
    }
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, MIB));
    CHECK(cuMemFree_v2(pointer));
    EXPECT(umask(0) == 027);
    sigaction(SIGUSR1, NULL, &usr1);
    sigaction(SIGUSR2, NULL, &usr2);
    EXPECT(usr1.sa_handler == SIG_DFL && usr2.sa_handler == SIG_DFL);
    EXPECT(count_environment() == variables);
    for (int i = 0; i < 3; i++) {
        fstat(i, &after[i]);
        EXPECT(before[i].st_ino == after[i].st_ino);
    }
}

static void export_table_untouched(void) {
    begin();
    static const CUuuid id = {{1, 2, 3}};
    const void *table = NULL;
    CHECK(cuGetExportTable(&table, &id));
    EXPECT(table != NULL && *(const size_t *)table == 32);
}

/* The share is 100 MiB. What pools still hold after a free, before anything was synchronised, is on the card. */
static void pools_without_sync(void) {
    begin();
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    for (int i = 0; i < 5; i++) {
        CUmemoryPool pool;
        CUdeviceptr pointer;
        CHECK(cuMemPoolCreate(&pool, &props));
        if (cuMemAllocFromPoolAsync(&pointer, 60 * MIB, pool, NULL) == CUDA_SUCCESS) {
            CHECK(cuMemFreeAsync(pointer, NULL));
        }
        EXPECT(fakeCardUsedByMe(0) <= 100 * MIB);
    }
    CUdeviceptr plain;
    if (cuMemAlloc_v2(&plain, 90 * MIB) == CUDA_SUCCESS) {
        EXPECT(fakeCardUsedByMe(0) <= 100 * MIB);
        CHECK(cuMemFree_v2(plain));
    }
    CHECK(cuStreamSynchronize(NULL));
    EXPECT(fakeCardUsedByMe(0) == 0);
    CHECK(cuMemAlloc_v2(&plain, 90 * MIB)); /* and nothing stays charged for ever */
}

/* A pool that keeps what is freed, freed by the plain call. */
static void keeping_pool_plain_free(void) {
    begin();
    CUmemoryPool pool;
    CUdeviceptr pointer;
    uint64_t keep = UINT64_MAX;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CHECK(cuMemAllocAsync(&pointer, 60 * MIB, NULL));
    CHECK(cuMemFree_v2(pointer));
    CHECK(cuStreamSynchronize(NULL));
    EXPECT(fakeCardUsedByMe(0) == 60 * MIB);
    EXPECT(used() == 60 * MIB);
    CHECK(cuMemAllocAsync(&pointer, 60 * MIB, NULL));
    EXPECT(used() == 60 * MIB);
    CHECK(cuMemFreeAsync(pointer, NULL));
    CHECK(cuMemPoolTrimTo(pool, 0));
    EXPECT(used() == 0);
}

/* Arrays and blocks of a context go with it. */
static void context_takes_all(void) {
    begin();
    CUcontext context;
    CUdeviceptr pointer;
    CUarray array;
    CUmipmappedArray mipmap;
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuMemAlloc_v2(&pointer, 10 * MIB));
    CHECK(cuMemAllocManaged(&pointer, 10 * MIB, 1));
    CHECK(cuArrayCreate_v2(&array, &flat));
    CHECK(cuMipmappedArrayCreate(&mipmap, &deep, 2));
    EXPECT(used() == fakeCardUsedByMe(0));
    CHECK(cuCtxDestroy_v2(context));
    EXPECT(fakeCardUsedByMe(0) == 0);
    EXPECT(used() == 0);
}

/* Run with module_kib=65536: a small image whose uninitialised globals take 64 MiB. */
static void large_globals(void) {
    static struct {
        Elf64_Ehdr header;
        Elf64_Shdr sections[2];
    } image = {.header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                          .e_machine = 190, /* CUDA */
                          .e_ehsize = sizeof(Elf64_Ehdr),
                          .e_shoff = sizeof(Elf64_Ehdr),
                          .e_shentsize = sizeof(Elf64_Shdr),
                          .e_shnum = 2},
               .sections = {{0}, {.sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_size = 64 * MIB}}};
    CUmodule module;
    begin();
    CHECK(cuModuleLoadData(&module, &image));
    EXPECT(fakeCardUsedByMe(0) == 64 * MIB);
    EXPECT(used() == 64 * MIB);
    CHECK(cuModuleUnload(module));
    EXPECT(used() == 0);
    CUdeviceptr filler;
    CHECK(cuMemAlloc_v2(&filler, 980 * MIB));
    EXPECT_CODE(cuModuleLoadData(&module, &image), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(fakeCardUsedByMe(0) == 980 * MIB);
}

/* Two cards, 100 and 50 MiB, the first current: memory made on the second is charged there. */
static void create_on_second_card(void) {
    begin();
    CUcontext second;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
    EXPECT_CODE(cuMemCreate(&handle, 60 * MIB, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemCreate(&handle, 40 * MIB, &props, 0));
    EXPECT(used() == 0);
    CHECK(cuDevicePrimaryCtxRetain(&second, 1));
    CHECK(cuCtxPushCurrent_v2(second));
    EXPECT(used() == 40 * MIB);
    CUdeviceptr pointer;
    EXPECT_CODE(cuMemAlloc_v2(&pointer, 20 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuCtxPopCurrent_v2(&second));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemAlloc_v2(&pointer, 80 * MIB));
    CHECK(cuCtxPushCurrent_v2(second));
    CHECK(cuMemFree_v2(pointer));
    EXPECT(used() == 0);
}

static const struct scenario scenarios[] = {
    {"unknown_free", unknown_free},
    {"null_outputs", null_outputs},
    {"no_context", no_context},
    {"address_reuse", address_reuse},
    {"many_blocks", many_blocks},
    {"threads_start_together", threads_start_together},
    {"async_churn", async_churn},
    {"driver_fails", driver_fails},
    {"primary_references", primary_references},
    {"old_names", old_names},
    {"every_synchronisation", every_synchronisation},
    {"managed_is_managed", managed_is_managed},
    {"process_untouched", process_untouched},
    {"large_globals", large_globals},
    {"pools_without_sync", pools_without_sync},
    {"keeping_pool_plain_free", keeping_pool_plain_free},
    {"context_takes_all", context_takes_all},
    {"create_on_second_card", create_on_second_card},
    {"export_table_untouched", export_table_untouched},
};

int main(int argc, char **argv) {
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argc, argv);
}
