/* A pitched allocation counts rows of the pitch that the driver chose. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUdeviceptr pointer;
    size_t pitch;
    show("before");
    CHECK(cuMemAllocPitch_v2(&pointer, &pitch, 4000, bytes / 4096, 4));
    printf("pitch=%zu\n", pitch);
    show("held");
    CHECK(cuMemFree_v2(pointer));
    show("after");
    return 0;
}
