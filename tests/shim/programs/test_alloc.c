/* One plain allocation: used before, with it, after. Exit 2 when it is refused. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUdeviceptr pointer;
    show("before");
    CHECK(cuMemAlloc_v2(&pointer, bytes));
    show("held");
    CHECK(cuMemFree_v2(pointer));
    show("after");
    return 0;
}
