/* Pinned host memory by the call with flags. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    void *pointer;
    show("before");
    CHECK(cuMemHostAlloc(&pointer, bytes, 0));
    show("held");
    CHECK(cuMemFreeHost(pointer));
    show("after");
    return 0;
}
