/* Allocates and holds until standard input ends: the tenant that others meet on the card. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, bytes));
    show("held");
    while (getchar() != EOF) {
    }
    CHECK(cuMemFree_v2(pointer));
    show("after");
    return 0;
}
