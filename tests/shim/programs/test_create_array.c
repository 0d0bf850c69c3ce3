/* A two-dimensional array of floats. */
#include "program.h"

int main(int argc, char **argv) {
    size_t bytes = start(argc, argv);
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 1024, .Height = bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    show("before");
    CHECK(cuArrayCreate_v2(&array, &shape));
    show("held");
    CHECK(cuArrayDestroy(array));
    show("after");
    return 0;
}
