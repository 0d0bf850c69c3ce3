/* Pinned host memory is not device memory: used must not move. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    void *pointer;
    show("before");
    CHECK(cuMemAllocHost_v2(&pointer, bytes));
    show("held");
    CHECK(cuMemFreeHost(pointer));
    show("after");
    return 0;
}
