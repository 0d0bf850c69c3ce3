/* Managed memory counts whole against the share. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUdeviceptr pointer;
    show("before");
    CHECK(cuMemAllocManaged(&pointer, bytes, 1));
    show("held");
    CHECK(cuMemFree_v2(pointer));
    show("after");
    return 0;
}
