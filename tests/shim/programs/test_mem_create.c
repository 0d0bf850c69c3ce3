/* Physical memory of the virtual memory interface, made by four threads at once. */
#include "program.h"

#include <pthread.h>

static size_t bytes;

static void *work(void *unused) {
    (void)unused;
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, bytes, &props, 0));
    CHECK(cuMemRelease(handle));
    return NULL;
}

int main(int argc, char **argv) {
    bytes = start(argc, argv);
    pthread_t threads[4];
    show("before");
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, work, NULL);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    show("after");
    return 0;
}
